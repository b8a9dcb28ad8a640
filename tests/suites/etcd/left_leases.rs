//! Requests that are granted a lease, and then fail, are dropped, or lose the race for the lock.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use etcd_client::{Client, GetOptions};
use futures_util::future::join_all;
use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome, RenewOutcome, RenewRequest,
    },
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::{Conditions, EtcdCluster, Proxy, poll_times};
use tokio::time::sleep;

use crate::{
    support::{connect, enters, keys, leases, proxy, request},
    waiting::until,
};

/// Longer than a server usually takes to grant a lease.
const GRANTING: Duration = Duration::from_millis(20);

/// Lets a request be granted its lease, and then a rival be granted the lock. Returns `false` if
/// the request has already been granted the lock by then.
async fn is_overtaken(
    mut asking: Pin<&mut impl Future<Output = Result<AcquireOutcome, BackendError>>>,
    client: &Client,
    rival: &EtcdBackend,
    rivals: &AcquireRequest,
) -> bool {
    while leases(client).await.is_empty() {
        let early = poll_times(1, asking.as_mut()).await;
        assert!(early.is_none(), "before its lease is granted: {early:?}");
        sleep(GRANTING).await;
    }
    matches!(rival.acquire(rivals).await, Ok(AcquireOutcome::Acquired { .. }))
}

#[tokio::test]
async fn a_name_that_becomes_another_kind_meanwhile_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let (backend, rival) = (connect(&cluster).await, connect(&cluster).await);
    let mut kinds = vec![(Mode::Exclusive, Mode::Read), (Mode::Read, Mode::Fair)];
    while let Some((own, other)) = kinds.pop() {
        let (asked, rivals) = (request("order", "a").mode(own), request("order", "b").mode(other));
        let mut asking = pin!(backend.acquire(&asked));
        if !is_overtaken(asking.as_mut(), &client, &rival, &rivals).await {
            asking.await.unwrap();
            backend.release(&asked.release()).await.unwrap();
            kinds.push((own, other));
            continue;
        }
        let error = asking.await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
        assert!(!error.is_outcome_unknown(), "{error}");
        assert_eq!(leases(&client).await.len(), 1, "that of the rival");
        rival.release(&rivals.release()).await.unwrap();
        assert!(leases(&client).await.is_empty());
    }
}

/// Either the caller has to undo the request, or it has left nothing.
#[tokio::test]
async fn a_lost_race_that_fails_leaves_no_lease_behind() {
    let mut cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let rival = connect(&cluster).await;
    let mut unknown = 0;
    let mut polls = 0;
    loop {
        let (asked, rivals) = (request("order", "a"), request("order", "b"));
        let builder = EtcdBackend::builder(cluster.addresses());
        let builder = builder.response_timeout(Duration::from_millis(400));
        let backend = builder.connect().await.unwrap();
        let mut asking = pin!(backend.acquire(&asked));
        if !is_overtaken(asking.as_mut(), &client, &rival, &rivals).await {
            asking.await.unwrap();
            backend.release(&asked.release()).await.unwrap();
            continue;
        }
        let early = poll_times(polls, asking.as_mut()).await;
        let is_over = early.is_some();
        cluster.freeze(0);
        let outcome = match early {
            Some(outcome) => outcome,
            None => asking.await,
        };
        cluster.thaw(0);
        match outcome {
            Err(error) if error.is_outcome_unknown() => {
                backend.release(&asked.undo()).await.unwrap();
                unknown += 1;
            }
            Err(error) => assert_eq!(leases(&client).await.len(), 1, "{error}, {polls} polls"),
            Ok(outcome) => assert_eq!(outcome.token(), None),
        }
        until("the end", || async { leases(&client).await.len() == 1 }).await;
        rival.release(&rivals.release()).await.unwrap();
        if is_over {
            break;
        }
        polls += 1;
    }
    assert!(unknown > 1, "{unknown} unknown");
}

#[tokio::test]
async fn a_failing_request_that_is_dropped_and_undone_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let (backend, rival) = (connect(&cluster).await, connect(&cluster).await);
    let mut polls = 0;
    loop {
        let asked = request("order", "a");
        let rivals = request("order", "b").mode(Mode::Read);
        let (is_overtaken, is_over) = {
            let mut asking = pin!(backend.acquire(&asked));
            let is_overtaken = is_overtaken(asking.as_mut(), &client, &rival, &rivals).await;
            (is_overtaken, poll_times(polls, asking.as_mut()).await.is_some())
        };
        backend.release(&asked.undo()).await.unwrap();
        assert_eq!(leases(&client).await.len(), usize::from(is_overtaken), "after {polls} polls");
        rival.release(&rivals.release()).await.unwrap();
        if is_overtaken && is_over {
            break;
        }
        polls += usize::from(is_overtaken);
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Asks for a lease of an hour.
async fn lengthen(backend: &EtcdBackend, held: &AcquireRequest) -> RenewOutcome {
    let renewal = [RenewRequest::new(held.name.clone(), held.hold.clone(), HOUR)];
    backend.renew(&renewal).await.unwrap().remove(0)
}

/// The release is repeated, and has to find the longer lease.
#[tokio::test]
async fn a_release_of_a_longer_lease_that_is_dropped_and_repeated_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let backend = connect(&cluster).await;
    for polls in 0.. {
        let held = request("order", &format!("after {polls} polls"));
        enters(&backend, &held).await;
        assert!(matches!(lengthen(&backend, &held).await, RenewOutcome::Renewed));
        let release = held.release();
        let first = poll_times(polls, backend.release(&release)).await;
        let again = backend.release(&release).await.unwrap();
        assert_eq!(keys(&client).await, [""; 0], "after {polls} polls");
        // The first lease may be left to the renewal.
        until("the end of all leases", || async { leases(&client).await.is_empty() }).await;
        if let Some(first) = first {
            assert_eq!(
                (first.unwrap(), again),
                (ReleaseOutcome::Released, ReleaseOutcome::NotHeld)
            );
            break;
        }
    }
}

/// A hold may grow while it is released, more than once.
#[tokio::test]
async fn a_hold_that_grows_during_its_release_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let client = cluster.client().await;
    let (backend, other) = (connect(&cluster).await, connect(&cluster).await);
    for polls in 0.. {
        let held = request("order", &format!("after {polls} polls"));
        enters(&backend, &held).await;
        assert!(matches!(lengthen(&backend, &held).await, RenewOutcome::Renewed));
        let release = held.release();
        let mut releasing = pin!(backend.release(&release));
        let early = poll_times(polls, releasing.as_mut()).await;
        let longer = [RenewRequest::new(held.name.clone(), held.hold.clone(), 2 * HOUR)];
        other.renew(&longer).await.unwrap();
        let is_over = early.is_some();
        let released = match early {
            Some(released) => released.unwrap(),
            None => releasing.await.unwrap(),
        };
        assert_eq!(released, ReleaseOutcome::Released, "after {polls} polls");
        assert_eq!(keys(&client).await, [""; 0], "after {polls} polls");
        until("the end of all leases", || async { leases(&client).await.is_empty() }).await;
        if is_over {
            break;
        }
    }
}

/// Asks for a longer lease through a network that breaks after `sent` requests, and releases the
/// hold, at once or after the client has put the rest in order.
async fn grows_without_an_answer(cluster: &EtcdCluster, sent: u32, has_other: bool, waits: bool) {
    const LATENCY: Duration = Duration::from_millis(20);
    let proxy = proxy(cluster).await;
    let mut addresses = vec![format!("127.0.0.1:{}", proxy.port())];
    if has_other {
        addresses.push(cluster.addresses()[0].clone());
    }
    let builder = EtcdBackend::builder(addresses).response_timeout(Duration::from_secs(2));
    let (backend, other) = (builder.connect().await.unwrap(), connect(cluster).await);
    let held = request(&format!("order {sent} {has_other} {waits}"), "a");
    enters(&backend, &held).await;
    let client = cluster.client().await;
    let (first, usual) = (lease_of_hold(&client).await, leases(&client).await.len());
    proxy.set(Conditions { latency: LATENCY, ..Conditions::default() });
    let cutting = async {
        sleep(2 * LATENCY * sent).await;
        // Either the answer or the request is lost.
        let cut =
            Conditions { cut_to_client: !waits, cut_to_server: waits, ..Conditions::default() };
        proxy.set(cut);
        if waits {
            sleep(5 * LATENCY).await;
            proxy.reset();
            proxy.heal();
        }
    };
    let (outcome, ()) = tokio::join!(lengthen(&backend, &held), cutting);
    assert!(!matches!(outcome, RenewOutcome::NotHeld), "after {sent} requests");
    proxy.heal();
    // The client does the rest in the background, except that the first lease of a hold that has
    // grown may be left to the release.
    if waits {
        until("the end of one lease", || async {
            let has_grown = lease_of_hold(&client).await != first;
            leases(&client).await.len() <= usual + usize::from(has_grown)
        })
        .await;
    }
    other.release(&held.release()).await.unwrap();
    until("the end of all leases", || async { leases(&client).await.len() < usual }).await;
}

/// The lease of the only key.
async fn lease_of_hold(client: &Client) -> i64 {
    let all = GetOptions::new().with_prefix();
    let found = client.kv_client().get("lockcore/", Some(all)).await.unwrap();
    let [key] = found.kvs() else { panic!("{found:?}") };
    key.lease()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_without_an_answer_leaves_no_lease_behind() {
    // The leases of each are counted.
    let clusters: Vec<_> = (0..10).map(|_| EtcdCluster::start(1)).collect();
    for (has_other, waits) in [(false, false), (true, false), (false, true), (true, true)] {
        let growing = (0..).zip(&clusters);
        let growing =
            growing.map(|(sent, cluster)| grows_without_an_answer(cluster, sent, has_other, waits));
        join_all(growing).await;
    }
}

/// A copy that a frozen leader carries out later would grant the lease once more. The network delays
/// what is sent to the leader, so that it is frozen while a request is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_whose_grant_was_repeated_leaves_no_lease_behind() {
    let mut cluster = EtcdCluster::start(3);
    for at in [60, 100, 140, 180, 220].map(Duration::from_millis) {
        let leader = cluster.leader().await;
        let mut addresses = cluster.addresses();
        addresses.rotate_left(leader);
        let (_, port) = addresses[0].rsplit_once(':').unwrap();
        let proxy = Proxy::start_opaque(port.parse().unwrap()).await.unwrap();
        let other = EtcdBackend::connect(addresses[1..].to_vec()).await.unwrap();
        addresses[0] = format!("127.0.0.1:{}", proxy.port());
        let builder = EtcdBackend::builder(addresses);
        let builder = builder.response_timeout(Duration::from_millis(4_500));
        let backend = builder.connect().await.unwrap();
        let held = request(&format!("order {at:?}"), "a");
        enters(&backend, &held).await;
        proxy.set(Conditions { latency: Duration::from_millis(20), ..Conditions::default() });
        let freezing = async {
            sleep(at).await;
            cluster.freeze(leader);
        };
        let (outcome, ()) = tokio::join!(lengthen(&backend, &held), freezing);
        assert!(matches!(outcome, RenewOutcome::Renewed), "frozen after {at:?}: {outcome:?}");
        until("a release", || async { other.release(&held.release()).await.is_ok() }).await;
        cluster.thaw(leader);
    }
    // The leaders carry out what they have received. No event tells that they have done so.
    sleep(Duration::from_secs(1)).await;
    let client = cluster.client_of(cluster.leader().await).await;
    until("the end of all leases", || async { leases(&client).await.is_empty() }).await;
}
