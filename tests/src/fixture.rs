//! [`Fixture`]: what the kit must be given to test a backend.

use std::{future::Future, time::Duration};

use lockcore::{LockName, backend::Backend};

/// A store to be tested, and the way to it.
///
/// Every case gets a fixture of its own. The store behind it may be shared: each case uses names that nobody else has.
///
/// # Examples
/// A store in memory, whose clones share what they hold:
/// ```
/// use lockcore::LockName;
/// use lockcore_memory::MemoryBackend;
/// use lockcore_testkit::Fixture;
///
/// struct MemoryFixture(MemoryBackend);
///
/// impl Fixture for MemoryFixture {
///     type Backend = MemoryBackend;
///
///     async fn set_up() -> Self {
///         Self(MemoryBackend::new())
///     }
///
///     async fn client(&self) -> MemoryBackend {
///         self.0.clone()
///     }
///
///     async fn left_behind(&self, _: &LockName) -> Vec<String> {
///         (0..self.0.names_in_use()).map(|_| "a name in use".into()).collect()
///     }
/// }
///
/// lockcore_testkit::conformance_tests!(
///     MemoryFixture,
///     fair,
///     read_write,
///     permits,
///     hand_over,
///     demand,
///     direct_grant,
///     proposed_tokens,
///     latches,
///     conditions,
///     directory,
///     paused,
/// );
/// # fn main() {}
/// ```
pub trait Fixture: Sized + Send + Sync + 'static {
    /// The backend to be tested.
    type Backend: Backend;

    /// Makes a store, or finds the shared one. Panics if it is not there: a missing server is a failure.
    fn set_up() -> impl Future<Output = Self> + Send;

    /// A new client of the store that shares nothing with the earlier ones but the store, as if it were in another
    /// process.
    fn client(&self) -> impl Future<Output = Self::Backend> + Send;

    /// What the store has under or because of `name` that would stay for ever: records without an expiry, subscriptions.
    /// One line for each, for the message of a test that fails.
    ///
    /// A fixture with a store of its own may report everything that it finds there.
    fn left_behind(&self, name: &LockName) -> impl Future<Output = Vec<String>> + Send;

    /// Lets at least `time` pass, on tokio's clock and on the store's. By default it sleeps, which a paused clock
    /// turns into an advance.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    /// Returns `true` if the store cannot have a latch of this name, so that the backend must refuse it with an error of
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration). By default every name can be that of a latch.
    fn refuses_latch(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// The lease of holds that are to end during a test: at least five times the backend's
    /// [shortest](lockcore::backend::Limits::shortest_lease), and longer than a few round trips and than the pauses of a
    /// busy machine. Default 500 ms.
    fn short_lease(&self) -> Duration {
        Duration::from_millis(500)
    }
}
