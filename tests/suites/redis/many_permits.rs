//! Holds of many permits.

use std::time::{Duration, Instant};

use lockcore::{
    Mode,
    backend::{AcquireRequest, Backend, ReleaseOutcome, RenewOutcome, RenewRequest},
};
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{LEASE, enters, fill, hold, name, pass, releases, renews, request},
    support::connect,
};

fn renewals(holds: &[AcquireRequest], lease: Duration) -> Vec<RenewRequest> {
    let renewal = |held: &AcquireRequest| {
        RenewRequest::new(held.name.clone(), held.hold.clone(), lease).mode(held.mode)
    };
    holds.iter().map(renewal).collect()
}

/// The end of each permit of a semaphore, in ms.
async fn ends(server: &RedisServer, lock: &str) -> Vec<f64> {
    let key = format!("{{{lock}}}:timeout");
    let ends: Vec<(Vec<u8>, f64)> = server.query(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await;
    ends.into_iter().map(|(_, end)| end).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn their_renewal_keeps_nobody_else_waiting() {
    let server = RedisServer::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let mode = Mode::permits(1024, 1024);
    let mut holds = Vec::new();
    for number in 0..128 {
        let held = request(&format!("pool:{number}"), &hold("a:1"), mode);
        enters(&backend, &held).await;
        holds.push(held);
    }
    // The unrelated lock is acquired with or without a script.
    let calls = async || server.calls_of("evalsha").await + server.calls_of("restore").await;
    let before = calls().await;
    let renewing = tokio::spawn({
        let renewals = renewals(&holds, LEASE * 2);
        async move { (Instant::now(), backend.renew(&renewals).await.unwrap(), Instant::now()) }
    });
    let mut rounds = 0;
    let unrelated = request("unrelated", &hold("b:1"), Mode::Exclusive);
    while !renewing.is_finished() {
        enters(&other, &unrelated).await;
        releases(&other, &unrelated).await;
        rounds += 1;
    }
    let (start, outcomes, end) = renewing.await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, RenewOutcome::Renewed)));
    // With one call for all, there would be one turn at most.
    assert!(rounds > 3, "others had {rounds} turns in {:?}", end - start);
    let calls = calls().await - before - rounds;
    assert!((32..=34).contains(&calls), "{calls} calls for 131072 permits");
    assert!(ends(&server, "pool:77").await.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn all_permits_of_a_hold_are_renewed_and_none_is_shortened() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    // Without the right to this command, one command per permit does the same.
    set_user(&server, "worker", &format!("{LEAST_RIGHTS} +zmscore")).await;
    set_user(&server, "poor", LEAST_RIGHTS).await;
    for user in ["worker", "poor"] {
        let backend = connect_as(&server, user).await.unwrap();
        for count in [1, 2, 999, 1000, 1001, 2500] {
            let lock = format!("locks:{count}");
            let held = request(&lock, &hold("a:1"), Mode::permits(count, count + 1));
            enters(&backend, &held).await;
            let granted = ends(&server, &lock).await;
            assert_eq!(granted.len(), count as usize);
            pass(2).await;
            assert!(renews(&backend, &held, LEASE / 2).await);
            assert_eq!(ends(&server, &lock).await, granted, "not shortened");
            assert!(renews(&backend, &held, LEASE).await);
            let renewed = ends(&server, &lock).await;
            assert!(renewed.iter().zip(&granted).all(|(now, before)| now > before), "{count}");
            // Once one permit has ended, the hold has ended.
            let key = format!("{{{lock}}}:timeout");
            let all: Vec<Vec<u8>> = server.query(&["ZRANGE", &key, "0", "-1"]).await;
            assert_eq!(all.len(), count as usize);
            let script =
                "return redis.call('ZREM', KEYS[1], redis.call('ZRANGE', KEYS[1], -1, -1)[1])";
            let _: i64 = server.query(&["EVAL", script, "1", &key]).await;
            assert!(!renews(&backend, &held, LEASE).await);
            assert_eq!(releases(&backend, &held).await, ReleaseOutcome::NotHeld);
        }
        let _: String = server.query(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn they_are_renewed_although_memory_is_full() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let held = request("pool", &hold("a:1"), Mode::permits(1500, 1500));
    enters(&backend, &held).await;
    fill(&server).await;
    assert!(renews(&backend, &held, LEASE * 2).await);
    assert_eq!(releases(&backend, &held).await, ReleaseOutcome::Released);
    assert_eq!(backend.inspect(&name("pool")).await.unwrap().available(), Some(1500));
}
