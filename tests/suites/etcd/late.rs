//! Requests that meet others halfway, and requests that arrive late.

use std::pin::pin;

use etcd_client::{Client, Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp};
use lockcore::backend::{Backend, ReleaseOutcome};
use lockcore_testkit::{EtcdCluster, poll_times};

use crate::support::{connect, enters, keys, request};

const HOLD: &str = "lockcore/order/lock/hold/a";

/// What is stored for the hold `a`, if it is there.
async fn stored(client: &mut Client) -> Option<KeyValue> {
    client.get(HOLD, None).await.unwrap().kvs().first().cloned()
}

/// What a nested acquisition does that wants a longer lease, from what it has seen on.
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
