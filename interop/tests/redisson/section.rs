//! [`Section`]: the synchronizer under test, and the parameters of the tests that all kinds share.

use lockcore_interop::Kind;

/// A synchronizer of both sides; the table has a section for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Reentrant,
    Fair,
    ReadWrite,
    Semaphore,
    PlainSemaphore,
    Latch,
    Mixed,
    Failover,
}

impl Section {
    pub(crate) const ALL: [Self; 8] = [
        Self::Reentrant,
        Self::Fair,
        Self::ReadWrite,
        Self::Semaphore,
        Self::PlainSemaphore,
        Self::Latch,
        Self::Mixed,
        Self::Failover,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Reentrant => "Reentrant lock: `Locks::lock` and `RLock`",
            Self::Fair => "Fair lock: `Locks::fair_lock` and `RFairLock`",
            Self::ReadWrite => "Read-write lock: `Locks::rw_lock` and `RReadWriteLock`",
            Self::Semaphore => "Semaphore: `Locks::semaphore` and `RPermitExpirableSemaphore`",
            Self::PlainSemaphore => "Plain semaphore: `Locks::plain_semaphore` and `RSemaphore`",
            Self::Latch => "Count-down latch: `Locks::latch` and `RCountDownLatch`",
            Self::Mixed => "One name used as two kinds",
            Self::Failover => "Failover",
        }
    }

    pub(crate) fn is_semaphore(self) -> bool {
        matches!(self, Self::Semaphore | Self::PlainSemaphore)
    }

    /// Holders, and waiters that they exclude.
    pub(crate) fn pairs(self) -> &'static [(Kind, Kind)] {
        match self {
            Self::Reentrant => &[(Kind::Reentrant, Kind::Reentrant)],
            Self::Fair => &[(Kind::Fair, Kind::Fair)],
            Self::ReadWrite => {
                &[(Kind::Write, Kind::Write), (Kind::Write, Kind::Read), (Kind::Read, Kind::Write)]
            }
            Self::Semaphore => &[(Kind::Permits(1), Kind::Permits(1))],
            Self::PlainSemaphore => &[(Kind::Plain(1), Kind::Plain(1))],
            Self::Latch | Self::Mixed | Self::Failover => &[],
        }
    }

    /// The acquisitions in turn of each contender: the kinds with their weights, and the weight
    /// that may be inside.
    pub(crate) fn turns(self) -> (&'static [(Kind, u32)], u32) {
        match self {
            Self::Reentrant => (&[(Kind::Reentrant, 1)], 1),
            Self::Fair => (&[(Kind::Fair, 1)], 1),
            Self::ReadWrite => (&[(Kind::Read, 1), (Kind::Read, 1), (Kind::Write, 1000)], 1000),
            Self::Semaphore => (&[(Kind::Permits(3), 1)], 3),
            Self::PlainSemaphore => (&[(Kind::Plain(3), 1)], 3),
            Self::Latch | Self::Mixed | Self::Failover => (&[], 0),
        }
    }
}

/// The tests that all synchronizers with holds share: who is inside, who is woken, and who stays
/// outside.
macro_rules! tests_of_holds {
    ($section:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn rust_and_java_exclude_each_other() {
            crate::contention::exclude_each_other(
                $section,
                &crate::deployment::Deployment::server(),
            )
            .await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn work_without_a_common_lock_is_noticed() {
            crate::contention::is_noticed($section).await;
        }

        #[tokio::test]
        async fn a_release_in_rust_wakes_java() {
            crate::wakeups::rust_wakes_java($section, &crate::deployment::Deployment::server())
                .await;
        }

        #[tokio::test]
        async fn a_release_in_java_wakes_rust() {
            crate::wakeups::java_wakes_rust($section, &crate::deployment::Deployment::server())
                .await;
        }

        #[tokio::test]
        async fn either_side_stays_outside_while_the_other_holds() {
            let java = crate::watchdog::java_awaits_rust($section);
            tokio::join!(java, crate::watchdog::rust_awaits_java($section));
        }
    };
}

/// The tests of synchronizers whose holds have a lease on both sides.
macro_rules! tests_of_crashes {
    ($section:expr) => {
        #[tokio::test]
        async fn a_rust_holder_that_is_killed_frees_the_lock_for_java() {
            crate::crash::of_rust($section, &crate::deployment::Deployment::server()).await;
        }

        #[tokio::test]
        async fn a_java_holder_that_halts_frees_the_lock_for_rust() {
            crate::crash::of_java($section, &crate::deployment::Deployment::server()).await;
        }
    };
}

pub(crate) use {tests_of_crashes, tests_of_holds};
