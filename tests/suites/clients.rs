//! What suites on the paused clock begin and end with.

use std::time::Duration;

use lockcore::Locks;
use lockcore_memory::MemoryBackend;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A store, and two clients of it that share nothing else.
pub(crate) fn two_clients() -> (MemoryBackend, Locks, Locks) {
    let store = MemoryBackend::new();
    (store.clone(), Locks::new(store.clone()), Locks::new(store))
}

/// Nothing is held and nobody is waited for, once the background has had its turn.
pub(crate) async fn assert_all_free(store: &MemoryBackend) {
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(store.names_in_use(), 0);
}
