//! [`Fixture`]: the access to a backend that the kit needs to test it.

use std::{future::Future, time::Duration};

use lockcore::{LockName, backend::Backend};

/// A store to be tested, and the access to it.
///
/// Every case gets its own fixture. The store behind it may be shared: each case uses unique names.
///
/// A fixture is dropped when its case has ended, also if the case panics, so its [`Drop`] is the
/// place to stop what it has started, such as a server for the case alone. It is dropped on the
/// runtime of the case, whose tasks end soon afterwards.
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

    /// Creates a store, or connects to a shared one. Panics if there is none: a missing server is a
    /// failure.
    fn set_up() -> impl Future<Output = Self> + Send;

    /// A new client of the store. It shares nothing with the earlier ones but the store, as if it
    /// were in another process. Most cases have two, and some a hundred, all of which stay until
    /// the end of the case.
    fn client(&self) -> impl Future<Output = Self::Backend> + Send;

    /// The entries under or because of `name` that would stay in the store forever: records without
    /// an expiry, subscriptions. Each is one line of the message of a failed test.
    ///
    /// A fixture with a private store may report everything that it finds there.
    fn left_behind(&self, name: &LockName) -> impl Future<Output = Vec<String>> + Send;

    /// Lets at least `time` pass, on tokio's clock and on the store's. The default is to sleep,
    /// which advances a paused clock.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    /// Returns `true` if the store cannot have a latch of this name, so that the backend must
    /// refuse it with an error of the kind
    /// [`Configuration`](lockcore::BackendErrorKind::Configuration). By default a latch can have
    /// any name.
    fn refuses_latch(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// The lease of holds that are to end during a test: at least five times the backend's
    /// [shortest](lockcore::backend::Limits::shortest_lease), and longer than a few round trips and
    /// than the pauses of a busy machine. Default 1.5 s.
    fn short_lease(&self) -> Duration {
        Duration::from_millis(1_500)
    }
}
