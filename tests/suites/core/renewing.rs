//! Background work that panics is retried, as if it had failed.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lockcore::{
    Locks,
    backend::{RenewRequest, async_trait},
};
use lockcore_memory::MemoryBackend;

use super::SECOND;
use crate::hooked::{Hooked, Hooks};

/// The number of calls that panic from now on.
#[derive(Debug, Default)]
struct Panics {
    renewals: AtomicUsize,
    releases: AtomicUsize,
}

fn panic_if_due(left: &AtomicUsize) {
    let is_due = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert!(is_due.is_err(), "the backend panics on purpose");
}

#[async_trait]
impl Hooks for Panics {
    fn renew(&self, _: &[RenewRequest]) {
        panic_if_due(&self.renewals);
    }

    async fn release(&self) {
        panic_if_due(&self.releases);
    }
}

fn scene() -> (MemoryBackend, Arc<Panics>, Locks) {
    let (store, panics) = (MemoryBackend::new(), Arc::<Panics>::default());
    let locks = Locks::builder(Hooked::new(store.clone(), panics.clone())).lease(3 * SECOND);
    (store, panics, locks.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_is_tried_again() {
    let (store, panics, locks) = scene();
    let (one, other) = (locks.lock("a"), locks.lock("b"));
    let (one, other) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    panics.renewals.store(2, Ordering::SeqCst);
    let lost = async {
        tokio::select! { reason = one.lost() => reason, reason = other.lost() => reason }
    };
    let lost = tokio::time::timeout(20 * SECOND, lost).await;
    assert!(lost.is_err(), "a hold was lost: {lost:?}");
    assert_eq!(panics.renewals.load(Ordering::SeqCst), 0, "there was a renewal that panicked");
    drop((one, other));
    tokio::time::sleep(SECOND).await;
    assert_eq!(store.names_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_in_the_background_that_panics_is_tried_again() {
    let (store, panics, locks) = scene();
    let lock = locks.lock("a").lease(3600 * SECOND);
    let guard = lock.acquire().await.unwrap();
    panics.releases.store(2, Ordering::SeqCst);
    drop(guard);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(panics.releases.load(Ordering::SeqCst), 0, "there was a release that panicked");
    assert_eq!(store.names_in_use(), 0, "it is left to its lease");
    drop(Locks::new(store).lock("a").try_acquire().await.unwrap().expect("it was released"));
}

/// A caller that waits for the release gets the panic, and the background task goes on.
#[tokio::test(start_paused = true)]
async fn a_release_that_panics_goes_on_in_the_background() {
    let (store, panics, locks) = scene();
    let guard = locks.lock("a").lease(3600 * SECOND).acquire().await.unwrap();
    panics.releases.store(2, Ordering::SeqCst);
    let released = tokio::spawn(guard.release()).await;
    assert!(released.is_err_and(|error| error.is_panic()), "the backend has panicked");
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(store.names_in_use(), 0, "it is left to its lease");
}

/// A log that panics when it is told of a loss.
struct PanickingLog(Arc<AtomicUsize>);

impl io::Write for PanickingLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(line).contains("hold lost") {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("the log panics on purpose");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The background task checks both holds at once, since they are due together.
#[tokio::test(start_paused = true)]
async fn a_log_that_panics_when_a_hold_is_lost_does_not_end_the_renewals_of_others() {
    let losses = Arc::<AtomicUsize>::default();
    let writer = losses.clone();
    let log = tracing_subscriber::fmt().with_writer(move || PanickingLog(writer.clone()));
    let _log = tracing::subscriber::set_default(log.finish());
    let locks = Locks::builder(MemoryBackend::new()).lease(6 * SECOND).build().unwrap();
    let lost = locks.lock("a").lease(2 * SECOND).acquire().await.unwrap();
    let renewed = locks.lock("b").acquire().await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(losses.load(Ordering::SeqCst), 1, "the background reported the loss once");
    assert!(!lost.is_held() && renewed.is_held(), "the other hold is not renewed any more");
}
