//! Members that are killed, stopped or cut off, and requests that arrive late.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use lockcore::{
    BackendErrorKind, LockError, Locks, LossReason,
    backend::{
        AcquireOutcome, Backend, ReleaseOutcome, RenewOutcome, RenewRequest, SubscribeRequest,
    },
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{Conditions, EtcdCluster, Proxy, poll_times};

use crate::support::{connect, enters, is_held, keys, leases, name, proxy, request, soon, until};

async fn through(proxy: &Proxy) -> EtcdBackend {
    let builder = EtcdBackend::builder([format!("127.0.0.1:{}", proxy.port())]);
    builder.response_timeout(Duration::from_secs(1)).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlast_a_restart_of_all_members_and_waiters_go_on() {
    let mut cluster = EtcdCluster::start(3);
    let locks = Locks::new(connect(&cluster).await);
    let guard = locks.lock("order").acquire().await.unwrap();
    let (token, backend) = (guard.token(), connect(&cluster).await);
    let other = Locks::new(backend.clone());
    let waiting = tokio::spawn(async move { other.lock("order").acquire().await });
    until("a waiter", async || backend.watches_in_use() == 1).await;
    cluster.restart_all(&[0, 1, 2]);
    assert!(is_held(&connect(&cluster).await, "order").await, "the data was lost");
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_go_on_at_other_members() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    // The client asks the first address first.
    let backend = connect(&cluster).await;
    let waiter = request("order", "waiter");
    let subscribe = SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut holder = request("order", "holder");
    enters(&backend, &holder).await;
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    for (member, is_killed) in [(0, true), (1, false)] {
        if is_killed {
            cluster.kill(member)
        } else {
            cluster.freeze(member)
        }
        let asked = Instant::now();
        let renewal = RenewRequest::new(name("order"), holder.hold.clone(), holder.lease);
        let renewed = backend.renew(&[renewal]).await.unwrap();
        assert!(matches!(renewed[..], [RenewOutcome::Renewed]), "{renewed:?}");
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        let released = backend.release(&holder.release()).await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released);
        soon("a wake-up from another member", wakeups.woken()).await;
        holder = request("order", &format!("after member {member}"));
        enters(&backend, &holder).await;
        match is_killed {
            true => cluster.restart(member),
            false => cluster.thaw(member),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_requests_fail_in_time_and_holds_are_lost() {
    let mut cluster = EtcdCluster::start(3);
    let locks = Locks::builder(connect(&cluster).await)
        .lease(Duration::from_secs(3))
        .retry_for(Duration::from_millis(500))
        .build()
        .unwrap();
    let guard = locks.lock("order").acquire().await.unwrap();
    cluster.kill(0);
    cluster.kill(1);
    let lost = soon("the loss", guard.lost()).await;
    assert_eq!(lost, LossReason::LeaseEnded);
    let backend = EtcdBackend::builder(cluster.addresses()).connect().await;
    let error = backend.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    assert!(cluster.addresses().iter().any(|at| error.to_string().contains(at)), "{error}");
    let asked = Instant::now();
    let error = soon("an answer", locks.lock("other").acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());

    cluster.restart_all(&[0, 1]);
    let next = connect(&cluster).await;
    until("the end of the lease", async || !is_held(&next, "order").await).await;
    enters(&next, &request("order", "next")).await;
}

/// The lease is granted, and the transaction that uses it is still pending when the request is
/// undone.
#[tokio::test]
async fn a_request_that_comes_after_its_undoing_has_no_effect() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    let late = request("order", "late");
    let mut polls = 0;
    let lease = loop {
        assert!(poll_times(polls, backend.acquire(&late)).await.is_none(), "never between");
        match leases(&client).await[..] {
            [] => polls += 1,
            [lease] if keys(&client).await.is_empty() => break lease,
            _ => panic!("never between"),
        }
    };
    assert_eq!(backend.release(&late.undo()).await.unwrap(), ReleaseOutcome::NotHeld);
    assert!(leases(&client).await.is_empty(), "the lease is left");
    // The write of the transaction.
    let options = etcd_client::PutOptions::new().with_lease(lease);
    let key = "lockcore/order/lock/hold/late";
    let error = client.put(key, "exclusive 1 60 late", Some(options)).await.unwrap_err();
    assert!(error.to_string().contains("lease not found"), "{error}");
    assert!(!is_held(&backend, "order").await);
}

/// A lease with this id that belongs to another client is neither used nor revoked.
#[tokio::test]
async fn the_lease_of_somebody_else_is_not_touched() {
    let cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    let mut client = cluster.client().await;
    let own = request("order", "own");
    enters(&backend, &own).await;
    let [lease] = leases(&client).await[..] else { panic!("one lease") };
    backend.release(&own.release()).await.unwrap();
    let options = etcd_client::LeaseGrantOptions::new().with_id(lease);
    client.lease_grant(60, Some(options)).await.unwrap();
    let options = etcd_client::PutOptions::new().with_lease(lease);
    client.put("theirs", "", Some(options)).await.unwrap();

    let error = backend.acquire(&own).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    assert_eq!(backend.release(&own.undo()).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(client.get("theirs", None).await.unwrap().count(), 1, "it was revoked");
    enters(&backend, &request("order", "other")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeups_that_were_missed_are_made_up_for() {
    let cluster = EtcdCluster::start(1);
    let proxy = proxy(&cluster).await;
    let (backend, direct) = (through(&proxy).await, connect(&cluster).await);
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&direct, &holder).await;
    let subscribe = SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    proxy.set(Conditions { refuse: true, ..Conditions::default() });
    proxy.reset();
    direct.release(&holder.release()).await.unwrap();
    // The servers have forgotten the history since then.
    let mut client = cluster.client().await;
    let revision = client.get("x", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, None).await.unwrap();
    assert!(poll_times(1, wakeups.woken()).await.is_none(), "nothing could have come");
    proxy.heal();
    soon("the wake-up", wakeups.woken()).await;
    enters(&backend, &waiter).await;
    // It listens again, too.
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    direct.release(&waiter.release()).await.unwrap();
    soon("another wake-up", wakeups.woken()).await;
}

/// A stream that is silent but not closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_falls_silent_is_replaced() {
    let cluster = EtcdCluster::start(1);
    let proxy = proxy(&cluster).await;
    let (backend, direct) = (through(&proxy).await, connect(&cluster).await);
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&direct, &holder).await;
    let subscribe = SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    proxy.freeze(lockcore_testkit::On::All);
    direct.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
    enters(&direct, &waiter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_on_over_connections_that_are_cut() {
    let cluster = EtcdCluster::start(1);
    let proxy = proxy(&cluster).await;
    let locks = Locks::builder(through(&proxy).await).lease(Duration::from_secs(6)).build();
    let guard = locks.unwrap().lock("order").acquire().await.unwrap();
    let mut lost = pin!(guard.lost());
    // Three leases long.
    for _ in 0..15 {
        proxy.reset();
        // A renewal over a new connection takes much less, and begins every 2 s.
        let pause = Duration::from_millis(1_200);
        let lost = tokio::time::timeout(pause, lost.as_mut()).await;
        assert!(lost.is_err(), "lost: {lost:?}");
    }
    assert!(is_held(&connect(&cluster).await, "order").await);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_on_in_time() {
    let mut cluster = EtcdCluster::start(1);
    let builder = EtcdBackend::builder(cluster.addresses());
    let backend = builder.response_timeout(Duration::from_millis(300)).connect().await.unwrap();
    cluster.freeze(0);
    // It may answer one more read before it stops, and then more than a read would be sent.
    until("silence", async || backend.inspect(&name("other")).await.is_err()).await;
    let asked = Instant::now();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
    assert!(!error.is_outcome_unknown(), "only a read was sent: {error}");
    assert!(error.to_string().contains(&cluster.addresses()[0]), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    cluster.thaw(0);
    until("an answer", async || backend.inspect(&name("other")).await.is_ok()).await;
    assert!(!is_held(&backend, "order").await);
}

#[tokio::test]
async fn while_the_server_is_down_requests_fail_soon_and_are_not_applied() {
    let mut cluster = EtcdCluster::start(1);
    let backend = connect(&cluster).await;
    cluster.kill(0);
    // The first request may discover that the connection is gone.
    let _ = backend.inspect(&name("order")).await;
    let asked = Instant::now();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains(&cluster.addresses()[0]), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    cluster.restart(0);
    until("an answer", async || backend.inspect(&name("order")).await.is_ok()).await;
    let outcome = backend.acquire(&request("order", "b")).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Acquired { .. }), "{outcome:?}");
}

/// A stopped leader may consider itself the leader when it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_through_a_leader_that_was_stopped_is_one() {
    const LASTS: Duration = Duration::from_secs(8);
    let mut cluster = EtcdCluster::start(3);
    let leader = cluster.leader().await;
    let builder = EtcdBackend::builder([cluster.addresses()[leader].clone()]);
    let backend = builder.response_timeout(Duration::from_secs(20)).connect().await.unwrap();
    let mut held = request("order", "a");
    held.lease = LASTS;
    enters(&backend, &held).await;
    cluster.freeze(leader);
    let renewal = tokio::spawn(async move {
        let renewal = RenewRequest::new(name("order"), held.hold.clone(), LASTS);
        backend.renew(&[renewal]).await
    });
    // Half of the lease has passed at the new leader as well.
    cluster.leader().await;
    tokio::time::sleep(LASTS / 2).await;
    cluster.thaw(leader);
    let renewed = soon("the answer", renewal).await.unwrap();
    if matches!(renewed.as_deref(), Ok([RenewOutcome::Renewed])) {
        let state = connect(&cluster).await.inspect(&name("order")).await.unwrap();
        let left = state.remaining();
        assert!(
            left > Some(LASTS * 3 / 4),
            "{left:?} is left of a lease that was renewed just now"
        );
    }
}

/// The core gives up on the renewal of a short lease before a member's time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_answer_was_not_waited_for_is_not_asked_next() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let builder = EtcdBackend::builder(cluster.addresses());
    let backend = builder.response_timeout(Duration::from_secs(30)).connect().await.unwrap();
    cluster.freeze(0);
    let order = name("order");
    let given_up = tokio::time::timeout(Duration::from_millis(300), backend.inspect(&order)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    let asked = Instant::now();
    backend.inspect(&order).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}
