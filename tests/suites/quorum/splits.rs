//! Clients that each get some of the members, and none a majority.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Locks,
    backend::{AcquireOutcome, Backend},
};
use lockcore_testkit::{Fault, Op};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{Bench, LEASE, MS, SECOND, enters, name, request};

#[tokio::test(start_paused = true)]
async fn whoever_gets_no_majority_undoes_what_it_got() {
    let bench = Bench::new(5);
    for member in [0, 1] {
        enters(&bench.stores[member], "b:1").await;
    }
    enters(&bench.stores[2], "c:1").await;
    let start = Instant::now();
    let outcome = bench.quorum.acquire(&request("a:1")).await.unwrap();
    let AcquireOutcome::Held { remaining: Some(remaining) } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(remaining <= LEASE && remaining > LEASE - SECOND, "{remaining:?}");
    assert!(start.elapsed() <= 200 * MS, "{:?}", start.elapsed());
    let owners = bench.owners().await;
    assert_eq!(owners[3..], [None, None]);
    // Members that refused have nothing to undo.
    assert_eq!([0, 1, 2, 3, 4].map(|at| bench.faults[at].calls(Op::Release)), [0, 0, 0, 1, 1]);
}

/// On a busy machine, each member is late now and then. That is no reason to treat a refusal as a
/// failure.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_members_that_were_late_is_no_failure() {
    let bench = Bench::new(3);
    for member in [1, 2] {
        bench.faults[member].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    }
    bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    enters(&bench.other(), "b:1").await;
    for member in [1, 2] {
        bench.faults[member].next(Op::Acquire, Fault::Delay(5 * MS));
    }
    let outcome = bench.quorum.acquire(&request("a:2")).await.unwrap();
    let AcquireOutcome::Held { remaining: Some(remaining) } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(remaining > LEASE - SECOND, "{remaining:?}");
}

/// The same, with one member that is always late, and another one that fails or is later still.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_member_that_is_always_late_is_no_failure() {
    for fault in [Fault::Refuse(BackendErrorKind::Connection), Fault::Delay(40 * MS)] {
        let bench = Bench::new(3);
        enters(&bench.other(), "b:1").await;
        bench.faults[1].every(Op::Acquire, Fault::Delay(25 * MS));
        bench.faults[2].every(Op::Acquire, fault);
        // For longer than a member is remembered to be late.
        for attempt in 0..60 {
            let outcome = bench.quorum.acquire(&request(&format!("a:{attempt}"))).await;
            assert!(
                matches!(outcome, Ok(AcquireOutcome::Held { remaining: Some(_) })),
                "{fault:?}, attempt {attempt}: {outcome:?}"
            );
            sleep(attempt * MS).await;
        }
        assert_eq!(bench.owners().await, vec![Some("b:1".to_owned()); 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_remaining_time_is_that_until_a_majority_can_be_free() {
    let bench = Bench::new(3);
    for (member, seconds) in [(0, 5), (1, 20), (2, 10)] {
        let request =
            lockcore::backend::AcquireRequest::new(name(), crate::hold("b:1"), seconds * SECOND);
        bench.stores[member].acquire(&request).await.unwrap();
    }
    let outcome = bench.quorum.acquire(&request("a:1")).await.unwrap();
    let AcquireOutcome::Held { remaining: Some(remaining) } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(remaining <= 10 * SECOND && remaining > 9 * SECOND, "{remaining:?}");
}

/// With one member down, two clients split the others whenever they meet.
#[tokio::test(start_paused = true)]
async fn clients_that_split_the_members_get_in_one_after_the_other() {
    for round in 0..20 {
        let bench = Bench::new(3);
        let mut tasks = JoinSet::new();
        for client in 0..4_usize {
            let (quorum, faults) = crate::client(&bench.stores);
            faults[2].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
            // Each reaches another member first.
            faults[client % 2].every(Op::Acquire, Fault::Delay(2 * MS));
            faults[1 - client % 2].every(Op::Acquire, Fault::DelayReply(2 * MS));
            let locks = Locks::new(quorum);
            tasks.spawn(async move {
                let guard = locks.lock("a").acquire().await.unwrap();
                sleep(MS).await;
                guard.release().await.unwrap();
            });
        }
        let all = timeout(3 * SECOND, tasks.join_all()).await;
        assert!(all.is_ok(), "round {round}: they keep each other out");
    }
}

/// The same, with one member that is always late: clients that wait for it keep each other out.
#[tokio::test(start_paused = true)]
async fn clients_that_split_the_members_do_not_wait_for_a_late_one() {
    let (bench, start, mut tasks) = (Bench::new(3), Instant::now(), JoinSet::new());
    for client in 0..3 {
        let (quorum, faults) = crate::client(&bench.stores);
        for op in [Op::Acquire, Op::Release] {
            faults[2].every(op, Fault::Delay(400 * MS));
        }
        faults[client % 2].every(Op::Acquire, Fault::Delay(2 * MS));
        faults[1 - client % 2].every(Op::Acquire, Fault::DelayReply(2 * MS));
        let locks = Locks::builder(quorum).hand_over(Duration::ZERO).build().unwrap();
        tasks.spawn(async move {
            for _ in 0..20 {
                locks.lock("a").acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert!(start.elapsed() <= 6 * SECOND, "60 turns took {:?}", start.elapsed());
}

/// A client undoes the part that it has just been granted, so a majority may be free without the
/// slow members. An older part stays, and then only they can complete one.
#[tokio::test(start_paused = true)]
async fn slow_members_are_waited_for_if_the_others_cannot_be_a_majority() {
    const SLOW: Duration = Duration::from_millis(200);
    for (members, slow) in [(3, 2..3), (5, 3..5)] {
        let bench = Bench::new(members);
        for member in slow {
            for op in [Op::Acquire, Op::Release] {
                bench.faults[member].every(op, Fault::Delay(SLOW));
            }
        }
        // They are known to be slow from then on.
        enters(&bench.quorum, "a:1").await;
        bench.quorum.release(&request("a:1").release()).await.unwrap();
        sleep(SECOND).await;
        enters(&bench.stores[0], "b:1").await;
        let start = Instant::now();
        let refused = bench.quorum.acquire(&request("a:2")).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
        // A random pause is included.
        assert!(start.elapsed() < SLOW, "it has waited for {:?}", start.elapsed());
        sleep(SECOND).await;
        // Now that part is one that somebody has left.
        if members == 5 {
            enters(&bench.stores[1], "c:1").await;
        }
        let start = Instant::now();
        enters(&bench.quorum, "a:3").await;
        assert!(start.elapsed() >= SLOW && start.elapsed() < 2 * SLOW, "{:?}", start.elapsed());
    }
}

/// Of two clients that ask at the same moment, one gets in, because the third member answers soon
/// enough: within 50 ms, or twice the time of the others.
#[tokio::test(start_paused = true)]
async fn a_quick_member_decides_between_clients_that_split_the_others() {
    for (soon, late) in [(MS, 40 * MS), (60 * MS, 100 * MS)] {
        let bench = Bench::new(3);
        let clients = [0, 1].map(|client| {
            let (quorum, faults) = crate::client(&bench.stores);
            faults[client].every(Op::Acquire, Fault::Delay(soon));
            faults[1 - client].every(Op::Acquire, Fault::Delay(soon + 2 * MS));
            for op in [Op::Acquire, Op::Release] {
                faults[2].every(op, Fault::Delay(late));
            }
            quorum
        });
        for round in 0..20 {
            let mut asking = JoinSet::new();
            for (client, quorum) in clients.iter().cloned().enumerate() {
                let asked = request(&format!("{client}:{round}"));
                asking.spawn(async move {
                    let outcome = quorum.acquire(&asked).await.unwrap();
                    (outcome.token().is_some(), quorum, asked)
                });
            }
            let mut granted = asking.join_all().await;
            granted.retain(|(is_granted, ..)| *is_granted);
            let [(_, quorum, asked)] = &granted[..] else {
                panic!("{late:?}, round {round}: {} got in", granted.len())
            };
            quorum.release(&asked.release()).await.unwrap();
            // The slow member has answered everything.
            sleep(SECOND).await;
        }
    }
}

/// A member that the holder could not reach grants the lock to every waiter, and each undoes its
/// grant.
#[tokio::test(start_paused = true)]
async fn waiters_that_meet_at_a_free_member_do_not_wake_each_other_for_ever() {
    let bench = Bench::new(3);
    for member in [0, 1] {
        enters(&bench.stores[member], "b:1").await;
    }
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (quorum, faults) = crate::client(&bench.stores);
            let lock = Locks::new(quorum).lock("a");
            let waiting = tokio::spawn(async move {
                let guard = lock.acquire_timeout(9 * SECOND).await.unwrap();
                guard.release().await.unwrap();
            });
            (waiting, faults)
        })
        .collect();
    sleep(8 * SECOND).await;
    for (_, faults) in &waiters {
        let asked = faults[2].calls(Op::Acquire);
        assert!((2..=12).contains(&asked), "asked {asked} times");
    }
    for member in [0, 1] {
        bench.stores[member].release(&crate::release("b:1")).await.unwrap();
    }
    for (waiting, _) in waiters {
        waiting.await.unwrap();
    }
}
