//! One name that Java uses as one kind and Rust as another: Rust refuses, with an error that says
//! so, and changes nothing.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockError, Locks, LossReason};
use lockcore_interop::{Kind, Lease};

use crate::{
    deployment::Deployment,
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, ms, soon},
};

const NAME: &str = "mixed";

/// A waiter would have been refused within this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// The ways to use a name in lockcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Hold(Kind),
    SetLatch,
    CountDown,
    WaitForLatch,
}

const LOCKS: [Use; 2] = [Use::Hold(Kind::Reentrant), Use::Hold(Kind::Fair)];
const READ_WRITE: [Use; 2] = [Use::Hold(Kind::Read), Use::Hold(Kind::Write)];
const SEMAPHORES: [Use; 2] = [Use::Hold(Kind::Permits(3)), Use::Hold(Kind::Plain(3))];
const LATCHES: [Use; 3] = [Use::SetLatch, Use::CountDown, Use::WaitForLatch];

impl Use {
    /// Uses the name once; with `waits`, waits for a while.
    async fn carry_out(self, locks: &Locks, waits: bool) -> Result<(), LockError> {
        let latch = locks.latch(NAME);
        match self {
            Self::Hold(kind) if waits => {
                kind.ours(locks, NAME).acquire_timeout(PATIENCE).await.map(drop)
            }
            Self::Hold(kind) => kind.ours(locks, NAME).try_acquire().await.map(drop),
            Self::SetLatch => latch.set_count(1).await,
            Self::CountDown => latch.count_down().await.map(drop),
            Self::WaitForLatch => latch.wait_timeout(PATIENCE).await,
        }
    }
}

/// Shows that each of these uses is refused and changes no data. Returns their number.
async fn refused(both: &Both, uses: &[Use]) -> usize {
    let before = stored(&both.servers).await;
    for usage in uses {
        for waits in [false, true] {
            match soon("an answer", usage.carry_out(&both.locks, waits)).await {
                Err(LockError::Backend(error)) if error.kind() == BackendErrorKind::WrongType => {
                    assert!(
                        error.to_string().contains("lock `mixed`")
                            && error.to_string().contains("use another name")
                    );
                }
                result => panic!("{usage:?}: {result:?}"),
            }
            assert_eq!(stored(&both.servers).await, before, "{usage:?}");
        }
    }
    uses.len()
}

/// The data that Java has stored under the name.
async fn stored(servers: &Deployment) -> Vec<String> {
    let kind: String = servers.query(&["TYPE", NAME]).await;
    match kind.as_str() {
        "hash" => servers.query(&["HGETALL", NAME]).await,
        _ => vec![servers.query(&["GET", NAME]).await],
    }
}

fn measured(refused: usize) -> String {
    format!(
        "`WrongType` at once in {refused} combinations, also for those who would wait; what Java has stored is the same"
    )
}

/// While Java holds the name as each of these kinds, all the uses are refused; afterwards they
/// succeed.
async fn refused_while_held(promise: Promise, kinds: &[Kind], uses: &[Use]) {
    let both = Both::start().await;
    let mut count = 0;
    for kind in kinds {
        let thread = both.redisson.thread_for(*kind);
        thread.prepare(NAME).await.unwrap();
        thread.acquire(NAME, Lease::Watchdog).await.unwrap();
        count += refused(&both, uses).await;
        thread.release(NAME).await.expect("it is still Java's");
        let _: u32 = both.servers.query(&["DEL", NAME]).await;
    }
    both.close().await;
    record(Section::Mixed, promise, measured(count)).await;
}

#[tokio::test]
async fn what_java_has_locked() {
    let uses = [READ_WRITE.as_slice(), &SEMAPHORES, &LATCHES].concat();
    refused_while_held(Promise::LocksOfJava, &[Kind::Reentrant, Kind::Fair], &uses).await;
}

#[tokio::test]
async fn what_java_reads_or_writes() {
    let uses = [LOCKS.as_slice(), &SEMAPHORES, &LATCHES].concat();
    refused_while_held(Promise::ReadWriteLocksOfJava, &[Kind::Read, Kind::Write], &uses).await;
}

#[tokio::test]
async fn what_java_has_permits_of() {
    let uses = [LOCKS, READ_WRITE].concat();
    refused_while_held(Promise::SemaphoresOfJava, &[Kind::Permits(3), Kind::Plain(3)], &uses).await;
}

#[tokio::test]
async fn what_java_counts_down() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    assert!(thread.set_count(NAME, 3).await.unwrap());
    let count = refused(&both, &[LOCKS, READ_WRITE].concat()).await;
    thread.count_down(NAME, 3).await.unwrap();
    both.locks.latch(NAME).wait().await.expect("it is still Java's");
    both.close().await;
    record(Section::Mixed, Promise::LatchesOfJava, measured(count)).await;
}

#[tokio::test]
async fn our_lock_that_java_reads_and_writes() {
    let both = Both::start().await;
    let mut told = Duration::ZERO;
    for kind in [Kind::Read, Kind::Write] {
        let thread = both.redisson.thread_for(kind);
        let guard = both.locks.lock(NAME).acquire().await.unwrap();
        let start = Instant::now();
        assert!(
            thread.try_acquire(NAME, Duration::ZERO, Lease::Watchdog).await.unwrap(),
            "Redisson lets it in"
        );
        assert_eq!(soon("the next renewal", guard.lost()).await, LossReason::Gone);
        told = told.max(start.elapsed());
        assert!(told < LEASE, "{told:?}");
        assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
        let _: u32 = both.servers.query(&["DEL", NAME]).await;
    }
    both.close().await;
    let measured = format!(
        "Java was let in; `lost()` resolved after {} at most, `release` answers `Lost`",
        ms(told)
    );
    record(Section::Mixed, Promise::LocksOfOurs, measured).await;
}

#[tokio::test]
async fn what_we_have_that_java_uses_as_something_else() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    let mut refused = 0;
    for ours in [Kind::Reentrant, Kind::Read, Kind::Write, Kind::Permits(3), Kind::Plain(3)] {
        let guard = ours.ours(&both.locks, NAME).acquire().await.unwrap();
        let before = stored(&both.servers).await;
        for theirs in
            [Kind::Reentrant, Kind::Fair, Kind::Read, Kind::Write, Kind::Permits(3), Kind::Plain(3)]
        {
            let is_lock = |kind: Kind| matches!(kind, Kind::Reentrant | Kind::Fair);
            let is_read_write = |kind: Kind| matches!(kind, Kind::Read | Kind::Write);
            // The same kind, or a use that Redisson allows.
            if is_lock(ours) && (is_lock(theirs) || is_read_write(theirs))
                || is_read_write(ours) && is_read_write(theirs)
                || ours.limit().is_some() && theirs.limit().is_some()
            {
                continue;
            }
            let entered =
                thread.kind(theirs).try_acquire(NAME, Duration::ZERO, Lease::Watchdog).await;
            assert!(!entered.unwrap_or(false), "{ours:?} {theirs:?}");
            refused += 1;
        }
        assert_eq!(stored(&both.servers).await, before);
        guard.release().await.unwrap();
        let _: u32 = both.servers.query(&["DEL", NAME]).await;
    }
    both.close().await;
    record(
        Section::Mixed,
        Promise::OthersOfOurs,
        format!("{refused} combinations: false, or an exception; our hold is the same"),
    )
    .await;
}
