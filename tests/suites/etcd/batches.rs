//! Renewals of many holds at once: none fails because of another.

use std::{sync::Arc, time::Duration};

use etcd_client::PutOptions;
use lockcore::backend::{Backend, RenewOutcome, RenewRequest};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    support::{enters, request, until},
    waiting::LONG,
};

/// The core waits for a third of this lease. A hold that cannot be renewed is waited for twice, for
/// an eighth of it each.
const LEASE: Duration = Duration::from_secs(30);

/// The hold changes all the time, so that its lease cannot be replaced by a longer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_cannot_be_renewed_does_not_fail_the_others() {
    const WRITERS: usize = 8;
    let cluster = Arc::new(EtcdCluster::start(1));
    let builder = EtcdBackend::builder(cluster.addresses());
    let backend = builder.response_timeout(LONG).connect().await.unwrap();
    let (mut stuck, mut other) = (request("order", "stuck"), request("parcel", "other"));
    (stuck.lease, other.lease) = (LEASE, LEASE);
    enters(&backend, &stuck).await;
    enters(&backend, &other).await;
    let mut writing = JoinSet::new();
    for _ in 0..WRITERS {
        let client = cluster.client().await;
        writing.spawn(async move {
            loop {
                // Once in a while the lease may be replaced nevertheless.
                let options = PutOptions::new().with_ignore_value().with_ignore_lease();
                let key = "lockcore/order/lock/hold/stuck";
                client.kv_client().put(key, "", Some(options)).await.unwrap();
            }
        });
    }
    let half_is_over = async || {
        let state = backend.inspect(&stuck.name).await.unwrap();
        assert!(state.is_held(), "{state:?}");
        state.remaining() < Some(LEASE / 2)
    };
    until("half of the lease to be over", half_is_over).await;
    let renewal = |held: &lockcore::backend::AcquireRequest, factor| {
        RenewRequest::new(held.name.clone(), held.hold.clone(), held.lease * factor)
    };
    let asked = Instant::now();
    let renewed = backend.renew(&[renewal(&stuck, 2), renewal(&other, 1)]).await.unwrap();
    let took = asked.elapsed();
    let [of_stuck, RenewOutcome::Renewed] = &renewed[..] else { panic!("{renewed:?}") };
    assert!(!matches!(of_stuck, RenewOutcome::NotHeld), "{renewed:?}");
    assert!(!half_is_over().await, "it was not even kept for as long as before");
    // The core gives up after this.
    assert!(took < LEASE / 3, "{took:?}");
    if let RenewOutcome::Failed(error) = of_stuck {
        assert!(error.is_retryable() && error.is_outcome_unknown(), "{error}");
    }
    writing.shutdown().await;
    let renewed = backend.renew(&[renewal(&stuck, 2)]).await.unwrap();
    assert!(matches!(renewed[..], [RenewOutcome::Renewed]), "{renewed:?}");
}
