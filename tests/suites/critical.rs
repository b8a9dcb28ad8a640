//! The section that a lock protects, for tests of exclusion.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{Lock, LockError, LockGuard, Locks, Owner};
use lockcore_testkit::poll_times;
use tokio::{task::JoinSet, time::timeout};

use crate::waiting::LONG;

/// The state of the section. It is outside of the system under test, so that it shows the truth.
#[derive(Default)]
pub(crate) struct Critical {
    inside: AtomicU64,
    greatest_token: AtomicU64,
    entries: AtomicU64,
}

impl Critical {
    /// Asserts that this visitor is alone inside, with the greatest token so far.
    pub(crate) async fn visit(&self, guard: &LockGuard) {
        let token = u64::from(guard.token());
        let before = self.inside.swap(token, Ordering::SeqCst);
        assert_eq!(before, 0, "token {token} met token {before} inside");
        let greatest = self.greatest_token.swap(token, Ordering::SeqCst);
        assert!(token > greatest, "token {token} after {greatest}");
        tokio::task::yield_now().await;
        assert_eq!(self.inside.swap(0, Ordering::SeqCst), token, "somebody else came in");
        self.entries.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of visits so far.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::SeqCst)
    }
}

/// Makes `tasks` tasks of each client visit the section, each with its own handle of the lock.
/// Returns the number of visits.
pub(crate) async fn contend(
    clients: &[Locks],
    lock: fn(&Locks) -> Lock,
    tasks: u64,
    rounds: u64,
) -> u64 {
    let (critical, mut visits) = (Arc::new(Critical::default()), JoinSet::new());
    for (client, locks) in (0_u64..).zip(clients) {
        for task in 0..tasks {
            let (locks, critical) = (locks.clone(), critical.clone());
            visits.spawn(async move {
                for round in 0..rounds {
                    let way = (client * 31 + task * 17 + round * 13) % 997;
                    visit(lock(&locks), &critical, way).await.unwrap();
                }
            });
        }
    }
    finish(visits, || critical.entries()).await;
    critical.entries()
}

/// Waits for the end of all tasks. It may take any time, as long as there are new visits meanwhile.
pub(crate) async fn finish(mut tasks: JoinSet<()>, entries: impl Fn() -> u64) {
    let mut before = entries();
    loop {
        match timeout(LONG, tasks.join_next()).await {
            Ok(Some(task)) => task.unwrap(),
            Ok(None) => return,
            Err(_) => {
                let now = entries();
                assert!(now > before, "{} tasks are stuck after {now} entries", tasks.len());
                before = now;
            }
        }
    }
}

/// One visit of a task, in one of the ways in which locks are used. The way depends only on the
/// task and the round, so that a failure can be repeated.
async fn visit(lock: Lock, critical: &Critical, way: u64) -> Result<(), LockError> {
    match way % 7 {
        0 => {
            let guard = lock.acquire().await?;
            critical.visit(&guard).await;
            guard.release().await
        }
        1 => {
            if let Some(guard) = lock.try_acquire().await? {
                critical.visit(&guard).await;
                guard.release().await?;
            }
            Ok(())
        }
        2 => match lock.acquire_timeout(Duration::from_millis(way % 40)).await {
            Ok(guard) => {
                critical.visit(&guard).await;
                guard.release().await
            }
            Err(LockError::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        },
        3 => {
            let lock = lock.owned_by(&Owner::new());
            let outer = lock.acquire().await?;
            let inner = lock.acquire().await?;
            critical.visit(&inner).await;
            outer.release().await?;
            inner.release().await
        }
        4 => {
            // Dropped at some point of the acquisition.
            drop(poll_times((way / 7 % 5) as usize, lock.acquire()).await);
            Ok(())
        }
        5 => {
            let guard = lock.acquire().await?;
            critical.visit(&guard).await;
            drop(guard);
            Ok(())
        }
        _ => lock.run(async |guard| critical.visit(guard).await).await,
    }
}
