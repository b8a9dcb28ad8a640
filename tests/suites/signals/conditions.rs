//! Conditions whose store works.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockcore::{Condition, Lock, LockError, LockGuard, Locks, LossReason, Owner, WaitOutcome};
use lockcore_testkit::{Fault, Fixture, Op};
use tokio::{sync::mpsc::unbounded_channel, task::JoinSet, time::Instant};

use super::bench::{
    A_WHILE, builder, client, faulty, joined, nothing_is_left, soon, waits, waits_and_releases,
};

pub(crate) async fn a_notification_ends_one_wait_and_everybodys_ends_all<F: Fixture>(fixture: &F) {
    let mut waiters = Vec::new();
    for _ in 0..5 {
        let lock = client(fixture).await.lock("a");
        for _ in 0..4 {
            waiters.push(waits_and_releases(&lock, &lock.condition("c")).await);
        }
    }
    let lock = client(fixture).await.lock("a");
    let condition = lock.condition("c");
    let guard = lock.acquire().await.unwrap();
    assert!(condition.notify_one(&guard).await.unwrap());
    guard.release().await.unwrap();
    let first = waiters.remove(0);
    joined("the first", first).await.unwrap();
    fixture.pass(A_WHILE).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one was notified");

    let guard = lock.acquire().await.unwrap();
    assert_eq!(condition.notify_all(&guard).await.unwrap(), 19);
    assert!(!condition.notify_one(&guard).await.unwrap(), "nobody is left");
    fixture.pass(A_WHILE).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "the lock is held");
    guard.release().await.unwrap();
    for waiter in waiters {
        joined("all others", waiter).await.unwrap();
    }
    nothing_is_left(fixture, "a condition without waiters").await;
}

/// A bounded buffer that is only used under a lock.
#[derive(Clone, Debug)]
struct Buffer {
    items: Arc<Mutex<VecDeque<u32>>>,
    capacity: usize,
}

impl Buffer {
    fn new(capacity: usize) -> Self {
        Self { items: Arc::default(), capacity }
    }

    fn of(&self, locks: &Locks) -> End {
        let lock = locks.lock("a");
        let (filled, emptied) = (lock.condition("filled"), lock.condition("emptied"));
        End { buffer: self.clone(), lock, filled, emptied }
    }

    fn len(&self) -> usize {
        self.items.lock().unwrap().len()
    }
}

/// One end of a buffer, in one client.
#[derive(Clone, Debug)]
struct End {
    buffer: Buffer,
    lock: Lock,
    filled: Condition,
    emptied: Condition,
}

impl End {
    async fn put(&self, item: u32) {
        let mut guard = self.lock.acquire().await.unwrap();
        while self.buffer.len() == self.buffer.capacity {
            guard = self.emptied.wait(guard).await.unwrap();
        }
        self.buffer.items.lock().unwrap().push_back(item);
        self.filled.notify_one(&guard).await.unwrap();
        guard.release().await.unwrap();
    }

    async fn take(&self) -> u32 {
        let mut guard = self.lock.acquire().await.unwrap();
        while self.buffer.len() == 0 {
            guard = self.filled.wait(guard).await.unwrap();
        }
        let item = self.buffer.items.lock().unwrap().pop_front().unwrap();
        self.emptied.notify_one(&guard).await.unwrap();
        guard.release().await.unwrap();
        item
    }
}

pub(crate) async fn no_notification_is_lost_between_release_and_wait<F: Fixture>(fixture: &F) {
    let late = Duration::from_millis(3);
    for op in [Op::Join, Op::Release, Op::Subscribe, Op::Stay, Op::Notify, Op::Woken, Op::Acquire] {
        for fault in [Fault::Delay(late), Fault::DelayReply(late)] {
            let (one, faults) = faulty(fixture).await;
            faults.every(op, fault);
            let buffer = Buffer::new(1);
            let (here, there) = (buffer.of(&one), buffer.of(&client(fixture).await));
            let passed = async {
                // Each end has the delayed client once.
                for (put, take) in [(&here, &there), (&there, &here)] {
                    tokio::join!(
                        async {
                            for item in 0..4 {
                                put.put(item).await;
                            }
                        },
                        async {
                            for item in 0..4 {
                                assert_eq!(take.take().await, item);
                            }
                        }
                    );
                }
            };
            soon(&format!("{op:?}, {fault:?}"), passed).await;
        }
    }
    nothing_is_left(fixture, "an empty buffer").await;
}

pub(crate) async fn a_bounded_buffer_passes_everything_on<F: Fixture>(fixture: &F) {
    const EACH: u32 = 12;
    let (buffer, mut producers, mut consumers) = (Buffer::new(2), JoinSet::new(), JoinSet::new());
    for number in 0..3 {
        let end = buffer.of(&client(fixture).await);
        let producer = end.clone();
        producers.spawn(async move {
            for item in 0..EACH {
                producer.put(number * EACH + item).await;
            }
        });
        consumers.spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..EACH {
                taken.push(end.take().await);
            }
            taken
        });
    }
    soon("the producers", producers.join_all()).await;
    let mut taken = soon("the consumers", consumers.join_all()).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (0..3 * EACH).collect::<Vec<_>>());
    nothing_is_left(fixture, "an empty buffer").await;
}

pub(crate) async fn those_who_have_waited_longest_are_notified_first<F: Fixture>(fixture: &F) {
    let locks = [client(fixture).await.lock("a"), client(fixture).await.lock("a")];
    let (went_on, mut order) = unbounded_channel();
    for (number, client) in [0, 1, 1, 0, 1].into_iter().enumerate() {
        let waiter = waits(&locks[client], &locks[client].condition("c")).await;
        let went_on = went_on.clone();
        tokio::spawn(async move {
            let guard = waiter.await.unwrap().unwrap();
            went_on.send(number).unwrap();
            guard.release().await.unwrap();
        });
    }
    for number in 0..5 {
        let guard = locks[0].acquire().await.unwrap();
        assert!(locks[0].condition("c").notify_one(&guard).await.unwrap());
        guard.release().await.unwrap();
        assert_eq!(soon("the next", order.recv()).await, Some(number));
    }
    nothing_is_left(fixture, "a condition without waiters").await;
}

pub(crate) async fn a_wait_ends_in_time<F: Fixture>(fixture: &F) {
    let (lock, other) = (client(fixture).await.lock("a"), client(fixture).await.lock("a"));
    let condition = lock.condition("c");
    for time in [A_WHILE, Duration::ZERO] {
        let (guard, start) = (lock.acquire().await.unwrap(), Instant::now());
        let (guard, outcome) = condition.wait_timeout(guard, time).await.unwrap();
        assert!(outcome == WaitOutcome::TimedOut && guard.is_held(), "{time:?}");
        assert!(start.elapsed() >= time, "{time:?}");
        assert!(!condition.notify_one(&guard).await.unwrap(), "it has no place any more");
        guard.release().await.unwrap();
    }
    for time in [Duration::from_secs(3600), Duration::MAX] {
        let waiter = tokio::spawn(condition.wait_timeout(lock.acquire().await.unwrap(), time));
        let guard = other.acquire().await.unwrap();
        assert!(other.condition("c").notify_one(&guard).await.unwrap());
        guard.release().await.unwrap();
        let (guard, outcome) = joined("a notification in time", waiter).await.unwrap();
        assert!(outcome == WaitOutcome::Notified && guard.is_held(), "{time:?}");
    }
    // A held lock delays the return, but not the decision. On a busy machine, the time may be over
    // before the other client has the lock, and that may take a while to decide.
    for time in (1..=10).map(|patience| patience * A_WHILE) {
        let guard = lock.acquire().await.unwrap();
        let mut waiter = tokio::spawn(condition.wait_timeout(guard, time));
        let guard = tokio::select! {
            guard = other.acquire() => guard.unwrap(),
            back = &mut waiter => {
                back.unwrap().unwrap().0.release().await.unwrap();
                continue;
            }
        };
        fixture.pass(3 * time).await;
        assert!(!waiter.is_finished(), "it has the lock again when it returns");
        let is_notified = other.condition("c").notify_one(&guard).await.unwrap();
        guard.release().await.unwrap();
        let (guard, outcome) = joined("the lock", waiter).await.unwrap();
        assert!(guard.is_held());
        guard.release().await.unwrap();
        match is_notified {
            true => assert_eq!(outcome, WaitOutcome::Notified),
            false => {
                assert_eq!(outcome, WaitOutcome::TimedOut);
                return nothing_is_left(fixture, "waits with a time-out").await;
            }
        }
    }
    panic!("a waiter stays beyond its time");
}

pub(crate) async fn whoever_waits_has_the_lock_again_as_it_had_it<F: Fixture>(fixture: &F) {
    const LEASE: Duration = Duration::from_secs(7);
    let (one, other) = (client(fixture).await, client(fixture).await);
    let locks = |locks: &Locks| [locks.lock("a"), locks.fair_lock("b"), locks.rw_lock("d").write()];
    for (lock, other) in locks(&one).into_iter().zip(locks(&other)) {
        for owner in [Owner::new(), Owner::named("somebody")] {
            let lock = lock.clone().owned_by(&owner).lease(LEASE);
            let guard = lock.acquire().await.unwrap();
            let (token, mode) = (guard.token(), guard.mode());
            let waiter = tokio::spawn(lock.condition("c").wait(guard));
            let guard = other.acquire().await.unwrap();
            assert!(guard.token() > token);
            assert!(other.condition("c").notify_one(&guard).await.unwrap());
            let token = guard.token();
            guard.release().await.unwrap();
            let again = joined("the lock", waiter).await.unwrap();
            assert!(again.is_held() && again.token() > token && again.mode() == mode);
            assert_eq!((again.owner(), again.hold_count()), (&owner, 1));
            assert!(again.remaining() <= LEASE, "{:?}", again.remaining());
            let nested = lock.acquire().await.unwrap();
            assert_eq!(nested.token(), again.token());
            nested.release().await.unwrap();
            again.release().await.unwrap();
        }
    }
    nothing_is_left(fixture, "locks of every kind").await;
}

pub(crate) async fn conditions_do_not_touch_each_other<F: Fixture>(fixture: &F) {
    let locks = client(fixture).await;
    let (a, b) = (locks.lock("a"), locks.lock("b"));
    let waiters = [
        waits(&a, &a.condition("c")).await,
        waits(&a, &a.condition("d")).await,
        waits(&b, &b.condition("c")).await,
        waits(&b, &b.condition("a")).await,
    ];
    for (number, waiter) in waiters.into_iter().enumerate() {
        let (lock, name) = [(&a, "c"), (&a, "d"), (&b, "c"), (&b, "a")][number];
        let guard = lock.acquire().await.unwrap();
        assert_eq!(lock.condition(name).notify_all(&guard).await.unwrap(), 1, "{name}");
        assert_eq!(lock.condition("e").notify_all(&guard).await.unwrap(), 0);
        guard.release().await.unwrap();
        joined("its own notification", waiter).await.unwrap().release().await.unwrap();
    }
    nothing_is_left(fixture, "several conditions").await;
}

/// Shows that the guard is refused as the wrong one, for a wait or a notification.
async fn is_refused(condition: &Condition, guard: LockGuard, part: &str) {
    let name = guard.name().to_owned();
    for error in [
        condition.notify_one(&guard).await.map(drop).unwrap_err(),
        condition.wait(guard).await.map(drop).unwrap_err().into(),
    ] {
        let is_wrong =
            matches!(error, LockError::WrongGuard { .. } | LockError::InvalidOption { .. });
        assert!(is_wrong, "{name}: {error}");
        assert!(error.to_string().contains(part), "{name}: {error}");
    }
}

pub(crate) async fn guards_of_something_else_are_refused<F: Fixture>(fixture: &F) {
    let (locks, faults) = faulty(fixture).await;
    let lock = locks.lock("a");
    let condition = lock.condition("c");
    let elsewhere = client(fixture).await.lock("a");
    for other in [locks.lock("b"), locks.rw_lock("d").write(), elsewhere] {
        let part = "the guard given to a condition of lock `a`";
        is_refused(&condition, other.acquire().await.unwrap(), part).await;
    }
    let permits = locks.semaphore("e", 1).acquire().await.unwrap();
    is_refused(&condition, permits, "`e` in permit mode").await;

    let shared = locks.rw_lock("f");
    let reader = shared.read().acquire().await.unwrap();
    is_refused(&shared.write().condition("c"), reader, "read mode").await;
    let reader = shared.read().acquire().await.unwrap();
    is_refused(&shared.read().condition("c"), reader, "a single holder").await;

    let owner = Owner::new();
    let outer = lock.clone().owned_by(&owner).acquire().await.unwrap();
    let inner = lock.clone().owned_by(&owner).acquire().await.unwrap();
    assert!(!condition.notify_one(&inner).await.unwrap(), "a nested guard may notify");
    let failed = condition.wait(inner).await.unwrap_err();
    let is_invalid = matches!(failed.error(), LockError::InvalidOption { option: "wait", .. });
    assert!(is_invalid, "{failed}");
    assert!(failed.to_string().contains("2 guards"), "{failed}");
    assert_eq!(outer.hold_count(), 2, "the error has the guard");
    drop(failed.into_guard().expect("the guard comes back"));
    assert_eq!(outer.hold_count(), 1);

    let error = lock.condition("").notify_one(&outer).await.unwrap_err();
    assert!(matches!(error, LockError::InvalidName { .. }), "{error}");
    outer.release().await.unwrap();
    assert_eq!(faults.calls(Op::Join), 0);
    nothing_is_left(fixture, "guards that were refused").await;
}

pub(crate) async fn a_hold_that_was_lost_neither_waits_nor_notifies<F: Fixture>(fixture: &F) {
    let (locks, faults) = faulty(fixture).await;
    let lock = locks.lock("a").lease(A_WHILE);
    let condition = lock.condition("c");
    let guard = lock.acquire().await.unwrap();
    fixture.pass(2 * A_WHILE).await;
    let lost = |error: LockError, expected: LossReason| {
        assert!(
            matches!(&error, LockError::Lost { reason, .. } if *reason == expected),
            "{error}, and not {expected}"
        );
    };
    lost(condition.notify_all(&guard).await.unwrap_err(), LossReason::LeaseEnded);
    lost(condition.wait(guard).await.unwrap_err().into(), LossReason::LeaseEnded);
    assert_eq!(faults.calls(Op::Join) + faults.calls(Op::Notify), 0);

    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    assert!(client(fixture).await.lock("a").force_release().await.unwrap());
    lost(lock.condition("c").wait(guard).await.unwrap_err().into(), LossReason::Gone);
    nothing_is_left(fixture, "holds that were lost").await;
}

pub(crate) async fn a_long_wait_keeps_its_place<F: Fixture>(fixture: &F) {
    // Longer than the pauses of a busy machine.
    let keep = Duration::from_secs(3);
    let locks = builder(fixture).await.queue_timeout(keep).build().unwrap();
    let lock = locks.lock("a");
    let waiter = waits(&lock, &lock.condition("c")).await;
    fixture.pass(keep * 2).await;
    assert!(!waiter.is_finished(), "nobody was notified");
    let other = client(fixture).await.lock("a");
    let guard = other.acquire().await.unwrap();
    assert!(other.condition("c").notify_one(&guard).await.unwrap());
    guard.release().await.unwrap();
    drop(joined("a long wait", waiter).await.unwrap());
    nothing_is_left(fixture, "a long wait").await;
}

pub(crate) async fn a_waiter_that_has_died_is_skipped<F: Fixture>(fixture: &F) {
    let keep = Duration::from_millis(500);
    let locks = builder(fixture).await.queue_timeout(keep).build().unwrap();
    let lock = locks.lock("a");
    let mut dies = Box::pin(lock.condition("c").wait(lock.acquire().await.unwrap()));
    let other = client(fixture).await.lock("a");
    // It is no longer polled once the lock is free, and does not leave.
    tokio::select! {
        biased;
        _ = dies.as_mut() => panic!("nobody was notified"),
        guard = other.acquire() => guard.unwrap().release().await.unwrap(),
    }
    Box::leak(Box::new(dies));
    let waiter = waits(&other, &other.condition("c")).await;
    fixture.pass(2 * keep).await;
    let guard = other.acquire().await.unwrap();
    assert_eq!(other.condition("c").notify_all(&guard).await.unwrap(), 1);
    guard.release().await.unwrap();
    drop(joined("the one that is alive", waiter).await.unwrap());
}

pub(crate) async fn closing_a_client_ends_its_waits_and_leaves_nothing<F: Fixture>(fixture: &F) {
    let ((locks, faults), other) = (faulty(fixture).await, client(fixture).await.lock("a"));
    let lock = locks.lock("a");
    let waiter = waits(&lock, &lock.condition("c")).await;
    let next = waits(&other, &other.condition("c")).await;
    other.acquire().await.unwrap().release().await.unwrap();
    // Closing waits for delayed requests.
    faults.next(Op::Leave, Fault::Delay(A_WHILE));
    locks.close().await.unwrap();
    let guard = other.acquire().await.unwrap();
    assert_eq!(
        other.condition("c").notify_all(&guard).await.unwrap(),
        1,
        "the closed client waits no more"
    );
    guard.release().await.unwrap();
    drop(joined("the other client", next).await.unwrap());
    let error = joined("the end of the wait", waiter).await.unwrap_err();
    assert!(matches!(error, LockError::Closed { .. }), "{error}");
    nothing_is_left(fixture, "a closed client").await;
}
