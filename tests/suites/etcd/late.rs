//! Requests that overlap with others, and requests that arrive late.

use std::{collections::BTreeSet, pin::pin, time::Duration};

use etcd_client::{
    Client, Compare, CompareOp, KeyValue, LeaseGrantOptions, PutOptions, Txn, TxnOp,
};
use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireOutcome, Backend, HoldId, ReleaseOutcome, RenewOutcome, RenewRequest},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{EtcdCluster, poll_times};
use tokio::task::JoinSet;

use crate::{
    support::{LEASE, connect, enters, is_held, keys, leases, name, request},
    waiting::{LONG, until},
};

const HOLD: &str = "lockcore/order/lock/hold/a";

/// The stored entry of the hold `a`, if it exists.
async fn stored(client: &mut Client) -> Option<KeyValue> {
    client.get(HOLD, None).await.unwrap().kvs().first().cloned()
}

/// The steps of a nested acquisition that wants a longer lease, after it has read the hold.
async fn grows(client: &mut Client, seen: &KeyValue) -> bool {
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let unchanged = Compare::mod_revision(HOLD, CompareOp::Equal, seen.mod_revision());
    let put = TxnOp::put(HOLD, seen.value(), Some(PutOptions::new().with_lease(lease)));
    let txn = Txn::new().when([unchanged]).and_then([put]);
    client.txn(txn).await.unwrap().succeeded()
}

#[tokio::test]
async fn a_hold_that_grows_during_its_release_is_released() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    for polls in 0.. {
        let held = request("order", "a");
        enters(&backend, &held).await;
        let seen = stored(&mut client).await.unwrap();
        let release = held.release();
        let mut releasing = pin!(backend.release(&release));
        if poll_times(polls, releasing.as_mut()).await.is_some() {
            break;
        }
        grows(&mut client, &seen).await;
        assert_eq!(releasing.await.unwrap(), ReleaseOutcome::Released);
        assert!(keys(&client).await.is_empty(), "it is there after {polls} polls");
        assert!(!grows(&mut client, &seen).await, "it is there again");
    }
}

/// A renewal that has read the hold before extends a lease that the hold has left.
#[tokio::test]
async fn a_hold_that_grows_during_its_renewal_is_renewed() {
    const LASTS: i64 = 60;
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    let held = request("order", "a");
    enters(&backend, &held).await;
    let renewal = [RenewRequest::new(held.name.clone(), held.hold.clone(), LEASE)];
    for _ in 0..3 {
        let lease = client.lease_grant(LASTS, None).await.unwrap().id();
        let left = async || {
            let left = cluster.client().await.lease_time_to_live(lease, None).await.unwrap();
            left.ttl()
        };
        until("a part of the lease to be over", async || left().await < LASTS - 1).await;
        let seen = stored(&mut client).await.unwrap();
        let mut renewing = pin!(backend.renew(&renewal));
        // It has sent the first read, at most.
        assert!(poll_times(1, renewing.as_mut()).await.is_none());
        let put = PutOptions::new().with_lease(lease);
        client.put(HOLD, seen.value(), Some(put)).await.unwrap();
        let renewed = renewing.await.unwrap();
        assert!(matches!(renewed[..], [RenewOutcome::Renewed]), "{renewed:?}");
        assert!(left().await >= LASTS - 1, "the lease that it has was not renewed");
    }
}

/// A missing lease may have been replaced by a longer one, or the hold has ended.
#[tokio::test]
async fn a_hold_that_grows_or_ends_during_an_inspection_is_there_or_not() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    let order = name("order");
    for polls in 0.. {
        let held = request("order", "a");
        enters(&backend, &held).await;
        let seen = stored(&mut client).await.unwrap();
        let mut inspecting = pin!(backend.inspect(&order));
        if poll_times(polls, inspecting.as_mut()).await.is_some() {
            break;
        }
        assert!(grows(&mut client, &seen).await);
        client.lease_revoke(seen.lease()).await.unwrap();
        let state = inspecting.await.unwrap();
        assert!(state.is_held(), "after {polls} polls");
        assert!(state.remaining() > Some(LEASE / 2), "{state:?} after {polls} polls");

        let mut inspecting = pin!(backend.inspect(&order));
        // This one may need fewer polls.
        let early = poll_times(polls, inspecting.as_mut()).await;
        backend.release(&held.release()).await.unwrap();
        let state = match early {
            Some(state) => state.unwrap(),
            None => inspecting.await.unwrap(),
        };
        let is_over = state.is_held() && state.remaining() < Some(LEASE / 2);
        assert!(!is_over, "{state:?} after {polls} polls");
    }
}

#[tokio::test]
async fn a_nested_acquisition_that_comes_after_its_undoing_has_no_effect() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    let held = request("order", "a");
    enters(&backend, &held).await;
    let seen = stored(&mut client).await.unwrap();
    let undo = held.clone().count(2).undo().remaining(1);
    assert_eq!(backend.release(&undo).await.unwrap(), ReleaseOutcome::StillHeld);
    assert!(!grows(&mut client, &seen).await);
}

/// A member that was stopped may carry out earlier requests once it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_that_comes_late_spares_the_next_hold() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    for polls in 0..6 {
        let lock = format!("order {polls}");
        // The client asks the first address first.
        let backend = connect(&cluster).await;
        enters(&backend, &request(&lock, "a")).await;
        let order = name(&lock);
        let mut forcing = pin!(backend.force_release(&order));
        let mut forced = poll_times(polls, forcing.as_mut()).await;
        cluster.freeze(0);
        if forced.is_none() {
            forced = Some(forcing.await);
        }
        match forced.unwrap() {
            Ok(was_held) => assert!(was_held),
            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
        }
        if !is_held(&backend, &lock).await {
            enters(&backend, &request(&lock, "next")).await;
        }
        cluster.thaw(0);
        let thawed = EtcdBackend::connect([cluster.addresses()[0].clone()]).await.unwrap();
        assert!(is_held(&thawed, &lock).await, "it is gone after {polls} polls");
    }
}

/// A client that waits for the second member. Others soon turn to the next one.
async fn patient_client(cluster: &EtcdCluster) -> EtcdBackend {
    let builder = EtcdBackend::builder([cluster.addresses()[1].clone()]);
    builder.response_timeout(LONG).connect().await.unwrap()
}

/// A lease that is too short is revoked and granted again. The revocation may be carried out when a
/// stopped member resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_revocation_of_a_lease_that_was_too_short_comes_before_the_hold() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let patient = patient_client(&cluster).await;
    let mut granted = 0;
    for polls in 6..16 {
        let lock = format!("order {polls}");
        let builder = EtcdBackend::builder(cluster.addresses());
        let builder = builder.response_timeout(Duration::from_millis(1_200));
        let backend = builder.connect().await.unwrap();
        let mut client = cluster.client_of(1).await;
        let asked = request(&lock, "a");
        enters(&patient, &asked).await;
        let key = format!("lockcore/{lock}/lock/hold/a");
        let lease = client.get(key, None).await.unwrap().kvs()[0].lease();
        patient.release(&asked.release()).await.unwrap();
        let options = LeaseGrantOptions::new().with_id(lease);
        client.lease_grant(20, Some(options)).await.unwrap();
        let mut asking = pin!(backend.acquire(&asked));
        let mut outcome = poll_times(polls, asking.as_mut()).await;
        cluster.freeze(0);
        if outcome.is_none() {
            outcome = Some(asking.await);
        }
        cluster.thaw(0);
        match outcome.unwrap() {
            Ok(outcome) => {
                assert!(outcome.token().is_some(), "{outcome:?}");
                granted += 1;
                let thawed = EtcdBackend::connect([cluster.addresses()[0].clone()]).await.unwrap();
                assert!(is_held(&thawed, &lock).await, "it is gone after {polls} polls");
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    assert!(granted > 0, "it never got so far");
}

/// The lease of the place is gone as well, which a late copy of the request would use.
#[tokio::test]
async fn a_release_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let client = cluster.client().await;
    for mode in [Mode::Fair, Mode::Write] {
        let (first, next) = (request("order", "a").mode(mode), request("order", "b").mode(mode));
        let reader = request("order", "reader").mode(Mode::Read);
        let first = if mode == Mode::Write { reader } else { first };
        enters(&backend, &first).await;
        let next = next.queue(Some(LEASE));
        let refused = backend.acquire(&next).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
        assert_eq!(keys(&client).await.len(), 2, "it has no place");
        backend.release(&first.release()).await.unwrap();
        enters(&backend, &next).await;
        let released = backend.release(&next.release()).await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(leases(&client).await.is_empty(), "{mode:?}");
    }
}

/// Each of those who ask at once is granted a lease, and one of them the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_that_is_lost_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let backends = [connect(&cluster).await, connect(&cluster).await];
    for lock in 0..20 {
        let mut asking = JoinSet::new();
        for number in 0..8 {
            let backend = backends[number % 2].clone();
            let request = request(&format!("order:{lock}"), &format!("hold:{number}"));
            asking.spawn(async move { backend.acquire(&request).await.unwrap().token() });
        }
        let granted = asking.join_all().await;
        assert_eq!(granted.iter().flatten().count(), 1);
    }
    assert_eq!(keys(&client).await.len(), 20);
    assert_eq!(leases(&client).await.len(), 20);
}

/// Between the grant of the lease for its place and the place, the lock becomes one of another kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_is_not_taken_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let [backend, rival] = [connect(&cluster).await, connect(&cluster).await];
    let client = cluster.client().await;
    let mut failed = 0;
    for round in 0..10 {
        let lock = format!("order {round}");
        let (held, read) = (request(&lock, "b"), request(&lock, "c").mode(Mode::Read));
        let asked = request(&lock, "a").mode(Mode::Fair).queue(Some(LEASE));
        enters(&rival, &held).await;
        let mut asking = pin!(backend.acquire(&asked));
        while leases(&client).await.len() < 2 {
            let early = poll_times(1, asking.as_mut()).await;
            assert!(early.is_none(), "before its lease is granted: {early:?}");
        }
        rival.release(&held.release()).await.unwrap();
        let is_read = rival.acquire(&read).await;
        let outcome = asking.await;
        if is_read.is_ok_and(|outcome| outcome.token().is_some())
            && let Err(error) = outcome
        {
            assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
            assert!(!error.is_outcome_unknown(), "{error}");
            assert_eq!(leases(&client).await.len(), 1, "after {error}");
            failed += 1;
        }
        rival.release(&read.release()).await.unwrap();
        backend.release(&asked.undo()).await.unwrap();
        assert!(leases(&client).await.is_empty());
    }
    assert!(failed > 0, "it never got so far");
}

/// The answer to the first copy of the request was lost, so that another member is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_an_earlier_copy_has_taken_is_kept() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    for round in 0..10 {
        let lock = format!("order {round}");
        let held = request(&lock, "b");
        enters(&backend, &held).await;
        let before = leases(&client).await;
        let asked = request(&lock, "a").mode(Mode::Fair).queue(Some(LEASE));
        let mut asking = pin!(backend.acquire(&asked));
        let own = loop {
            let new = leases(&client).await.into_iter().find(|lease| !before.contains(lease));
            match new {
                Some(lease) => break lease,
                None => assert!(poll_times(1, asking.as_mut()).await.is_none(), "without a lease"),
            }
        };
        let place = format!("lockcore/{lock}/lock/wait/a");
        let value = format!("fair 0 {} {}", LEASE.as_secs(), asked.hold.owner());
        let options = PutOptions::new().with_lease(own);
        client.put(place.as_str(), value, Some(options)).await.unwrap();
        let outcome = asking.await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
        let places = client.get(place.as_str(), None).await.unwrap();
        assert_eq!(places.kvs().len(), 1, "the place is gone, and the answer is {outcome:?}");
        backend.release(&held.release()).await.unwrap();
        enters(&backend, &asked).await;
        backend.release(&asked.release()).await.unwrap();
        assert!(leases(&client).await.is_empty());
    }
}

/// The next request for the hold is granted the same lease, which a late revocation would end. The
/// member is stopped after more and more polls: before the transaction is answered, before the
/// revocation is, and afterwards. How many polls that takes depends on the machine, so this is
/// repeated until all of them have occurred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_that_is_lost_leaves_no_revocation_on_its_way() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let rival = patient_client(&cluster).await;
    let client = cluster.client_of(1).await;
    let (mut refused, mut unknown, mut polls) = (0, BTreeSet::new(), 0);
    for round in 0.. {
        assert!(
            round < 200,
            "{refused} refused, unknown after these numbers of polls: {unknown:?}"
        );
        let lock = format!("order {round}");
        let (asked, rivals) = (request(&lock, "a"), request(&lock, "b"));
        let builder = EtcdBackend::builder(cluster.addresses());
        let builder = builder.response_timeout(Duration::from_millis(1_200));
        let backend = builder.connect().await.unwrap();
        let mut asking = pin!(backend.acquire(&asked));
        let mut early = None;
        while early.is_none() && leases(&client).await.is_empty() {
            early = poll_times(1, asking.as_mut()).await;
        }
        // Unless this thread was stopped for a moment: one poll may send the transaction and find
        // it answered, or the lease may be granted and the transaction sent before the list is
        // read.
        let is_race = early.is_none() && rival.acquire(&rivals).await.unwrap().token().is_some();
        if !is_race {
            let outcome = match early {
                Some(outcome) => outcome,
                None => asking.await,
            };
            let outcome = outcome.unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert!(outcome.token().is_some(), "round {round}: {outcome:?}");
            backend.release(&asked.release()).await.unwrap();
            until("the end", || async { leases(&client).await.is_empty() }).await;
            continue;
        }
        let early = poll_times(polls, asking.as_mut()).await;
        let is_over = early.is_some();
        cluster.freeze(0);
        let outcome = match early {
            Some(outcome) => outcome,
            None => asking.await,
        };
        match outcome {
            Ok(outcome) => {
                assert_eq!(outcome.token(), None, "after {polls} polls");
                until("the revocation", || async { leases(&client).await.len() == 1 }).await;
                refused += 1;
            }
            Err(error) => {
                assert!(error.is_outcome_unknown(), "{error} after {polls} polls");
                unknown.insert(polls);
            }
        }
        cluster.thaw(0);
        rival.release(&rivals.release()).await.unwrap();
        backend.release(&asked.undo()).await.unwrap();
        until("the end", || async { leases(&client).await.is_empty() }).await;
        if is_over && refused > 0 && unknown.len() > 1 {
            break;
        }
        polls = if is_over { 0 } else { polls + 1 };
    }
}

/// The lease of the replaced hold has no keys any more.
#[tokio::test]
async fn a_takeover_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let client = cluster.client().await;
    let mut held = request("order", "a");
    for (id, mode) in [("a", Mode::Exclusive), ("b", Mode::Fair), ("c", Mode::Exclusive)] {
        held.hold = HoldId::named("a job", id);
        held.mode = mode;
        enters(&backend, &held).await;
    }
    assert_eq!(keys(&client).await, ["lockcore/order/lock/hold/c"]);
    assert_eq!(leases(&client).await.len(), 1);
    backend.release(&held.release()).await.unwrap();
    assert!(leases(&client).await.is_empty());
}
