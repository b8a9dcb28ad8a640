//! The limits of a backend, which the core never exceeds.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{
    BackendError, LockError, Locks,
    backend::{AcquireOutcome, AcquireRequest, Limits, RenewRequest, async_trait},
};
use lockcore_memory::MemoryBackend;

use crate::hooked::{Hooked, Hooks};

const SECOND: Duration = Duration::from_secs(1);

/// A store with limits, and the largest values that it was asked for.
#[derive(Debug, Default)]
struct Limited {
    limits: Limits,
    tokens: AtomicU32,
    renewals: Mutex<Vec<usize>>,
}

#[async_trait]
impl Hooks for Limited {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        self.tokens.fetch_max(request.tokens, Ordering::SeqCst);
        None
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn renew(&self, holds: &[RenewRequest]) {
        self.renewals.lock().unwrap().push(holds.len());
    }
}

fn limited(limits: Limits) -> (Arc<Limited>, Hooked<Limited>) {
    let limited = Arc::new(Limited { limits, ..Limited::default() });
    (limited.clone(), Hooked::new(MemoryBackend::new(), limited))
}

/// The store would keep such a hold for longer than requested.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_too_short_for_the_store_is_refused() {
    let too_short = |error: LockError, option: &str| {
        let said = error.to_string();
        for part in [option, "must be 2s to 365 days with this backend", "but is 1.999s"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    let limits = Limits::default().shortest_lease(2 * SECOND);
    let short = Duration::from_millis(1999);
    let error = Locks::builder(limited(limits).1).lease(short).build().unwrap_err();
    too_short(error, "lease");
    let locks = Locks::builder(limited(limits).1).lease(2 * SECOND).build().unwrap();
    let error = locks.lock("a").lease(short).acquire().await.unwrap_err();
    assert!(error.to_string().contains("`a`"), "{error}");
    too_short(error, "lease");
    let guard = locks.lock("a").lease(2 * SECOND).acquire().await.unwrap();
    too_short(guard.extend(short).await.unwrap_err(), "extend");
    guard.extend(3 * SECOND).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_tokens_are_reserved_than_the_store_grants() {
    for most in [1, 3, u32::MAX] {
        let (limited, backend) = limited(Limits::default().most_tokens(most));
        let locks = Locks::new(backend);
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let lock = locks.lock("a");
                tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let token = guard.token();
                    guard.release().await.unwrap();
                    token
                })
            })
            .collect();
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.push(task.await.unwrap());
        }
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        let reserved = limited.tokens.load(Ordering::SeqCst);
        assert!(if most == u32::MAX { reserved > 3 } else { reserved == most }, "{reserved}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_renewal_has_more_holds_than_the_store_takes() {
    for (most, sizes) in [(1, vec![1; 300]), (100, vec![100, 100, 100]), (999, vec![128, 128, 44])]
    {
        let (limited, backend) = limited(Limits::default().largest_renewal(most));
        let locks = Locks::builder(backend).lease(3 * SECOND).build().unwrap();
        let mut guards = Vec::new();
        for number in 0..300 {
            guards.push(locks.lock(format!("lock:{number}")).acquire().await.unwrap());
        }
        tokio::time::sleep(SECOND + SECOND / 2).await;
        assert_eq!(*limited.renewals.lock().unwrap(), sizes);
        assert!(guards.iter().all(lockcore::LockGuard::is_held));
    }
}
