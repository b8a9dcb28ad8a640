//! The start and the end of suites on the paused clock.

use std::time::Duration;

use lockcore::Locks;
use lockcore_memory::MemoryBackend;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A store, and two clients that share only this store.
pub(crate) fn two_clients() -> (MemoryBackend, Locks, Locks) {
    let store = MemoryBackend::new();
    (store.clone(), Locks::new(store.clone()), Locks::new(store))
}

/// Shows that nothing is held and nobody waits, once the background task has run.
pub(crate) async fn assert_all_free(store: &MemoryBackend) {
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(store.names_in_use(), 0);
}
