//! Holds that replicas must acknowledge.

mod cluster;
mod conformance;
mod faults;
mod settings;

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::support::{assert_nothing_left, connect, soon, until};

const MS: Duration = Duration::from_millis(1);

/// The time limit of replicas that answer, on a busy machine.
const ENOUGH: Duration = Duration::from_secs(1);

/// A primary, and replicas that acknowledge its writes.
struct Group {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Group {
    async fn start(count: usize) -> Self {
        // A replica that joins gets the data at once.
        let primary = RedisServer::start_with(&["--repl-diskless-sync", "no"]);
        let replicas = (0..count).map(|_| replica_of(&primary)).collect();
        let group = Self { primary, replicas };
        group.linked().await;
        group
    }

    /// Completes when all replicas acknowledge writes. `INFO` shows them as connected earlier.
    async fn linked(&self) {
        let count = self.replicas.len().try_into().unwrap();
        let locks = self.locks(count, ENOUGH).await;
        let guard = soon("the replicas", locks.lock("linked").acquire()).await.unwrap();
        guard.release().await.unwrap();
    }

    fn backend(&self) -> RedisBackendBuilder {
        RedisBackend::builder().url(self.primary.url())
    }

    /// A client whose holds must be acknowledged by `count` replicas.
    async fn locks(&self, count: u32, timeout: Duration) -> Locks {
        Locks::new(self.backend().replicas(count, timeout).connect().await.unwrap())
    }

    /// Completes when a client waits for replicas.
    async fn someone_waits(&self) {
        until("a WAIT", || is_blocked(&self.primary)).await;
    }

    /// The number of waiters in the queue of a fair lock.
    async fn queued(&self, name: &str) -> usize {
        let queue = format!("redisson_lock_queue:{{{name}}}");
        self.primary.query(&["LLEN", &queue]).await
    }

    /// The number of calls of `WAIT` at the server.
    async fn waits(&self) -> u64 {
        self.primary.calls_of("wait").await
    }
}

/// Starts a replica, which copies the primary at once.
fn replica_of(primary: &RedisServer) -> RedisServer {
    let port = primary.port().to_string();
    RedisServer::start_with(&["--replicaof", "127.0.0.1", &port])
}

async fn is_blocked(primary: &RedisServer) -> bool {
    primary.query::<String>(&["INFO", "clients"]).await.contains("blocked_clients:1")
}

/// The text of the error of a hold that too few replicas have acknowledged.
fn too_few(error: &LockError) -> String {
    let LockError::Backend(failed) = error else { panic!("{error}") };
    assert_eq!(failed.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(failed.is_retryable(), "{error}");
    error.to_string()
}

fn is_outcome_unknown(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.is_outcome_unknown())
}

#[tokio::test]
async fn a_guard_says_how_many_replicas_have_the_hold() {
    let group = Group::start(2).await;
    let locks = group.locks(2, ENOUGH).await;
    let lock = locks.lock("order:42");
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.replicas(), Some(2));
    for replica in &group.replicas {
        assert!(replica.query::<bool>(&["EXISTS", "order:42"]).await, "a replica has the hold");
    }
    let waits = group.waits().await;
    let nested = lock.owned_by(guard.owner()).acquire().await.unwrap();
    assert_eq!(nested.replicas(), Some(2), "a nested guard reports what the hold reached");
    nested.release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(group.waits().await, waits, "neither nesting nor releasing waits for replicas");

    let unasked = Locks::new(connect(&group.primary).await);
    assert_eq!(unasked.lock("order:42").acquire().await.unwrap().replicas(), None);
}

#[tokio::test]
async fn every_kind_of_lock_can_ask_for_replicas() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    let (fair, shared) = (locks.fair_lock("fair"), locks.rw_lock("shared"));
    let guards = [
        fair.acquire().await.unwrap(),
        shared.write().acquire().await.unwrap(),
        locks.semaphore("permits", 3).permits(2).acquire().await.unwrap(),
        locks.lock("named").owned_by(&lockcore::Owner::named("worker")).acquire().await.unwrap(),
    ];
    for guard in &guards {
        assert_eq!(guard.replicas(), Some(1), "{guard:?}");
    }
    let reader = shared.read().owned_by(guards[1].owner()).acquire().await.unwrap();
    assert_eq!(reader.replicas(), Some(1), "a read hold beside a write hold is one of its own");
}

#[tokio::test]
async fn too_few_replicas_are_an_error_with_figures_and_leave_nothing() {
    let group = Group::start(2).await;
    let locks = group.locks(2, ENOUGH).await;
    group.replicas[0].freeze();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(!is_outcome_unknown(&error), "{error}");
    let error = too_few(&error);
    for part in ["lock `a`", "1 of the 2 replicas", "within 1s", "check the replicas"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!group.primary.query::<bool>(&["EXISTS", "a"]).await, "it was released");

    let waits = group.waits().await;
    let guard = locks.lock("a").replicas(0, MS).try_acquire().await.unwrap();
    assert_eq!(guard.expect("the lock is free").replicas(), None);
    assert_eq!(group.waits().await, waits, "no replica was waited for");
    assert_nothing_left(&group.primary).await;
}

#[tokio::test]
async fn every_kind_of_lock_is_left_to_others_if_too_few_replicas_have_it() {
    let group = Group::start(1).await;
    let locks = group.locks(1, 20 * MS).await;
    group.replicas[0].freeze();
    let (shared, permits) = (locks.rw_lock("shared"), locks.semaphore("permits", 2));
    let named = lockcore::Owner::named("worker");
    let attempts = [
        locks.fair_lock("fair").try_acquire().await,
        shared.read().try_acquire().await,
        shared.write().try_acquire().await,
        permits.permits(2).try_acquire().await,
        locks.lock("named").owned_by(&named).try_acquire().await,
    ];
    for attempt in attempts {
        too_few(&attempt.unwrap_err());
    }
    too_few(&locks.multi_lock(["one", "two"]).try_acquire().await.unwrap_err());

    let other = Locks::new(connect(&group.primary).await);
    let guards = [
        other.fair_lock("fair").try_acquire().await,
        other.rw_lock("shared").write().try_acquire().await,
        other.semaphore("permits", 2).permits(2).try_acquire().await,
        other.lock("named").try_acquire().await,
        other.lock("one").try_acquire().await,
        other.lock("two").try_acquire().await,
    ];
    for guard in guards {
        guard.unwrap().expect("it is free").release().await.unwrap();
    }
    assert_eq!(group.primary.keys_without_expiry().await, Vec::<String>::new());
}

/// The place in the queue is lost with the hold. The next waiter gets the lock.
#[tokio::test]
async fn a_fair_lock_goes_on_to_the_next_if_too_few_replicas_have_it() {
    let group = Group::start(1).await;
    let (strict, loose) = (group.locks(1, 20 * MS).await, connect(&group.primary).await);
    let loose = Locks::new(loose);
    let held = loose.fair_lock("a").acquire().await.unwrap();
    let first = tokio::spawn(strict.fair_lock("a").acquire());
    let queued = || async { group.queued("a").await };
    until("the first in line", || async { queued().await == 1 }).await;
    let second = tokio::spawn(loose.fair_lock("a").acquire());
    until("the second in line", || async { queued().await == 2 }).await;
    group.replicas[0].freeze();
    held.release().await.unwrap();
    let second = soon("the second", second).await.unwrap().unwrap();
    assert!(!first.is_finished(), "it goes on trying");
    group.replicas[0].thaw();
    second.release().await.unwrap();
    let first = soon("the first", first).await.unwrap().unwrap();
    assert_eq!(first.replicas(), Some(1));
}

#[tokio::test]
async fn nested_acquisitions_wait_for_no_replicas_and_leave_the_outer_hold_alone() {
    let group = Group::start(1).await;
    let locks = group.locks(1, 20 * MS).await;
    let guard = locks.lock("a").replicas(1, ENOUGH).acquire().await.unwrap();
    group.replicas[0].freeze();
    let waits = group.waits().await;
    let nested = locks.lock("a").owned_by(guard.owner());
    let same = nested.acquire().await.unwrap();
    // A longer lease is a request.
    let longer = nested.lease(60 * ENOUGH).replicas(1, 20 * MS).acquire().await.unwrap();
    let counts: Vec<u32> = group.primary.query(&["HVALS", "a"]).await;
    assert!(counts.len() == 1 && counts[0] > 1, "{counts:?}");
    assert_eq!(longer.hold_count(), 3);
    assert_eq!(longer.replicas(), Some(1), "those of the hold");
    for nested in [longer, same] {
        nested.release().await.unwrap();
    }
    assert_eq!(group.waits().await, waits);
    assert!(guard.is_held());
    assert!(group.primary.query::<bool>(&["EXISTS", "a"]).await);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_deadline_before_the_replicas_have_answered_is_kept() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    drop(locks.lock("before").acquire().await.unwrap());
    group.replicas[0].freeze();
    let start = Instant::now();
    let error = locks.lock("a").acquire_timeout(100 * MS).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    assert!(start.elapsed() < ENOUGH, "{:?}", start.elapsed());
    let guard = locks.lock("a").replicas(0, MS).try_acquire().await.unwrap();
    guard.expect("it was released").release().await.unwrap();
    assert!(start.elapsed() < ENOUGH, "{:?}", start.elapsed());
    assert_nothing_left(&group.primary).await;
}

#[tokio::test]
async fn holds_are_renewed_while_replicas_do_not_answer() {
    let group = Group::start(1).await;
    let backend = group.backend().replicas(1, ENOUGH).connect().await.unwrap();
    let locks = Locks::builder(backend).lease(ENOUGH).build().unwrap();
    for round in 1.. {
        let held = locks.lock("held").acquire().await.unwrap();
        group.replicas[0].freeze();
        for _ in 0..3 {
            // Each takes as long as the lease.
            too_few(&locks.lock("a").try_acquire().await.unwrap_err());
        }
        group.replicas[0].thaw();
        match held.release().await {
            Ok(()) => return,
            // A busy machine may pause for as long as the lease, but not in each round.
            Err(LockError::Lost { .. }) if round < 5 => group.linked().await,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_patient_acquisition_goes_on_until_the_replicas_are_back() {
    let group = Group::start(1).await;
    let locks = group.locks(1, 50 * MS).await;
    group.replicas[0].freeze();
    let acquiring = tokio::spawn(locks.lock("a").acquire());
    let waits = group.waits().await;
    until("several attempts", || async { group.waits().await > waits + 2 }).await;
    assert!(!acquiring.is_finished());
    group.replicas[0].thaw();
    let guard = soon("the lock", acquiring).await.unwrap().unwrap();
    assert_eq!(guard.replicas(), Some(1));
}

#[tokio::test]
async fn an_acquisition_gives_up_like_after_any_other_outage() {
    let group = Group::start(1).await;
    let backend = group.backend().replicas(1, 20 * MS).connect().await.unwrap();
    let locks = Locks::builder(backend).retry_for(300 * MS).build().unwrap();
    group.replicas[0].freeze();
    let error = soon("the error", locks.lock("a").acquire()).await.unwrap_err();
    assert!(too_few(&error).contains("0 of the 1 replicas"), "{error}");
    assert_nothing_left(&group.primary).await;
}

#[tokio::test]
async fn acquisitions_at_the_same_time_share_a_wait() {
    const LOCKS: usize = 400;
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    drop(locks.lock("first").acquire().await.unwrap());
    let waits = group.waits().await;
    let mut acquiring = JoinSet::new();
    for number in 0..LOCKS {
        acquiring.spawn(locks.lock(format!("lock:{number}")).acquire());
    }
    let guards = soon("all locks", acquiring.join_all()).await;
    assert!(guards.iter().all(|guard| guard.as_ref().unwrap().replicas() == Some(1)));
    let waits = group.waits().await - waits;
    assert!((1..=LOCKS as u64 / 10).contains(&waits), "{waits} calls of WAIT");
}

#[tokio::test]
async fn a_refused_acquisition_does_not_wait_for_replicas() {
    let group = Group::start(1).await;
    let holder = Locks::new(connect(&group.primary).await);
    let _guard = holder.lock("a").acquire().await.unwrap();
    group.replicas[0].freeze();
    let locks = group.locks(1, ENOUGH).await;
    let (start, waits) = (Instant::now(), group.waits().await);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert!(start.elapsed() < ENOUGH, "{:?}", start.elapsed());
    assert_eq!(group.waits().await, waits);
}

#[tokio::test]
async fn other_requests_do_not_wait_behind_a_wait() {
    let group = Group::start(1).await;
    let locks = group.locks(1, ENOUGH).await;
    let held = locks.lock("held").lease(60 * ENOUGH).acquire().await.unwrap();
    group.replicas[0].freeze();
    let stuck = tokio::spawn(locks.lock("a").try_acquire());
    group.someone_waits().await;
    let other = locks.lock("other").replicas(0, MS).acquire().await.unwrap();
    held.extend(120 * ENOUGH).await.unwrap();
    held.release().await.unwrap();
    other.release().await.unwrap();
    assert!(is_blocked(&group.primary).await && !stuck.is_finished(), "still waiting");
    too_few(&soon("the error", stuck).await.unwrap().unwrap_err());
}
