//! Requests that share calls although their locks are in different slots.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome, RenewOutcome, RenewRequest,
    },
};
use lockcore_redis::{Credentials, RedisBackend};
use lockcore_testkit::{Feature, RedisCluster, RedisServer, poll_times, server_lacks};

use super::{backend, name_at, places, shared};
use crate::{
    batches::{batch, begin, end, exclusive, is_granted, outcome},
    errors::{LEAST_RIGHTS, set_user},
    steps::{enters, exists, hold, releases, request, state},
    support::soon,
};

async fn calls(cluster: &RedisCluster) -> u64 {
    let mut calls = 0;
    for node in 0..3 {
        calls += cluster.node(node).calls_of("evalsha").await;
    }
    calls
}

/// Names that no other test uses, in slots of all nodes.
fn requests(stem: &str, count: usize) -> Vec<AcquireRequest> {
    (0..count).map(|number| exclusive(&format!("{stem}:{number}"), number)).collect()
}

fn renewal(request: &AcquireRequest) -> RenewRequest {
    RenewRequest::new(request.name.clone(), request.hold.clone(), request.lease)
}

async fn assert_renewed(backend: &RedisBackend, requests: &[AcquireRequest]) {
    let renewals: Vec<_> = requests.iter().map(renewal).collect();
    let outcomes = soon("the renewals", backend.renew(&renewals)).await.unwrap();
    let failed = outcomes.iter().find(|outcome| !matches!(outcome, RenewOutcome::Renewed));
    assert!(failed.is_none(), "{failed:?}");
}

/// Locks whose slots are all at node 0.
pub(super) async fn requests_at_one_node(
    cluster: &RedisCluster,
    count: usize,
) -> Vec<AcquireRequest> {
    let mut requests = Vec::new();
    for number in 0..count {
        requests.push(exclusive(&name_at(cluster, 0, &format!("locks:{number}")).await, number));
    }
    requests
}

/// The number of times that the server has read from a connection.
async fn reads(server: &RedisServer) -> u64 {
    let stats = server.query::<String>(&["INFO", "stats"]).await;
    let reads = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn the_first_request_after_a_batch_waits_for_those_that_follow() {
    const ROUNDS: u64 = 20;
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let client = backend(&cluster).connect().await.unwrap();
    let requests = requests_at_one_node(&cluster, 8).await;
    for _ in 0..2 {
        batch(&client, &requests).await;
    }
    let before = reads(cluster.node(0)).await;
    for _ in 0..ROUNDS {
        batch(&client, &requests).await;
    }
    let spent = reads(cluster.node(0)).await - before;
    // One for all acquisitions of a round, and one for all releases.
    assert!(spent < 3 * ROUNDS, "{spent} reads for {ROUNDS} rounds");
}

/// Nobody sends what would wait for others there.
#[test]
fn a_request_does_not_wait_on_a_runtime_that_is_at_a_standstill() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (standing, running) = (runtime(), runtime());
    let cluster = running.block_on(RedisCluster::builder().replicas_each(0).start());
    let requests = running.block_on(requests_at_one_node(&cluster, 8));
    let client = backend(&cluster).response_timeout(Duration::from_secs(2));
    let client = standing.block_on(client.connect()).unwrap();
    for _ in 0..2 {
        standing.block_on(batch(&client, &requests));
        let refused = running.block_on(soon("a time-out", client.acquire(&requests[0])));
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Timeout);
        // It may have been acquired after its time-out.
        let release = requests[0].release();
        let released = async { while client.release(&release).await.is_err() {} };
        standing.block_on(soon("a release", released));
        standing.block_on(batch(&client, &requests[..1]));
    }
}

pub(super) async fn assert_released(backend: &RedisBackend, requests: &[AcquireRequest]) {
    let tasks: Vec<_> = requests.iter().map(|request| end(backend, request)).collect();
    for (task, request) in tasks.into_iter().zip(requests) {
        assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released, "{request:?}");
    }
}

#[tokio::test]
async fn many_requests_share_few_calls_of_each_node() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let client = backend(&cluster).connect().await.unwrap();
    let requests = requests("order", 600);
    batch(&client, &requests).await;
    let before = calls(&cluster).await;
    let tasks: Vec<_> = requests.iter().map(|request| begin(&client, request)).collect();
    let mut nodes = [0; 3];
    for (task, request) in tasks.into_iter().zip(&requests) {
        assert!(is_granted(task).await);
        let (_, node, _) = places(&cluster, request.name.as_str()).await;
        nodes[node] += 1;
        assert!(exists(cluster.node(node), request.name.as_str()).await);
    }
    assert!(nodes.iter().all(|names| *names > 100), "{nodes:?}");
    let acquired = calls(&cluster).await - before;
    // For each node: the first alone, then up to 128 in a call.
    assert!(acquired <= 3 * 4, "{acquired} calls for 600 acquisitions");

    assert_renewed(&client, &requests).await;
    let renewed = calls(&cluster).await - before - acquired;
    assert_eq!(renewed, 3, "one for each node");

    assert_released(&client, &requests).await;
    let released = calls(&cluster).await - before - acquired - renewed;
    assert!(released <= 3 * 4, "{released} calls for 600 releases");
}

#[tokio::test]
async fn each_request_of_a_batch_has_its_own_outcome() {
    let cluster = shared().await;
    let [client, other] =
        [backend(&cluster).connect().await.unwrap(), backend(&cluster).connect().await.unwrap()];
    let stem = "outcomes";
    let mut names = Vec::new();
    for number in 0..5 {
        names.push(name_at(&cluster, 0, &format!("{stem}:{number}")).await);
    }
    let [first, free, held, read, string] = &names[..] else { unreachable!() };
    let _: String = cluster.node(0).query(&["SET", string, "precious"]).await;
    enters(&other, &exclusive(held, 77)).await;
    let reader = request(read, &hold("other:1"), Mode::Read);
    enters(&other, &reader).await;

    let tasks = [first, free, held, read, string].map(|name| begin(&client, &exclusive(name, 1)));
    let [first_task, free_task, held_task, read_task, string_task] = tasks;
    let strange = [free, held].map(|name| end(&client, &exclusive(name, 2)));
    assert!(is_granted(first_task).await && is_granted(free_task).await);
    let refused = outcome(held_task).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { remaining: Some(_) }), "{refused:?}");
    for task in [read_task, string_task] {
        let error = outcome(task).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    }
    for task in strange {
        assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::NotHeld);
    }
    assert_eq!(cluster.node(0).query::<String>(&["GET", string]).await, "precious");
    for name in [first, free] {
        assert_eq!(releases(&client, &exclusive(name, 1)).await, ReleaseOutcome::Released);
    }
    releases(&other, &exclusive(held, 77)).await;
    releases(&other, &reader).await;
    let _: i64 = cluster.node(0).query(&["DEL", string]).await;
}

#[tokio::test]
async fn a_slot_that_moves_delays_none_of_the_others_in_its_batch() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let client = backend(&cluster).connect().await.unwrap();
    let all = requests("n", 200);
    batch(&client, &all).await;
    let (held, free) = all.split_at(100);
    for request in held {
        enters(&client, request).await;
    }
    // The slot of a hold, and that of a free lock.
    for (name, moves_keys) in [("n:3", false), ("n:4", true), ("n:103", false), ("n:104", true)] {
        let (slot, from, to) = places(&cluster, name).await;
        let migration = cluster.begin_migration(slot, to).await;
        if moves_keys {
            cluster.move_keys(&migration).await;
        }
        let tasks: Vec<_> = free.iter().map(|request| begin(&client, request)).collect();
        assert_renewed(&client, held).await;
        for (task, request) in tasks.into_iter().zip(free) {
            // The token of the name is on the other side than the lock would be.
            let is_torn = !moves_keys && request.name.as_str() == name;
            match outcome(task).await {
                Ok(AcquireOutcome::Acquired { .. }) => assert!(!is_torn, "{name}"),
                Err(error) if is_torn => {
                    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                    assert!(!error.is_outcome_unknown(), "{error}");
                }
                other => panic!("{name}, {request:?}: {other:?}"),
            }
        }
        let tasks: Vec<_> = free.iter().map(|request| end(&client, request)).collect();
        for (task, request) in tasks.into_iter().zip(free) {
            let is_torn = !moves_keys && request.name.as_str() == name;
            let expected = if is_torn { ReleaseOutcome::NotHeld } else { ReleaseOutcome::Released };
            assert_eq!(outcome(task).await.unwrap(), expected, "{name}, {request:?}");
        }
        cluster.move_keys(&migration).await;
        cluster.finish_migration(migration).await;
        // The client has the old map, or has followed one request.
        assert_renewed(&client, held).await;
        batch(&client, free).await;
        cluster.migrate_slot(slot, from).await;
        batch(&client, free).await;
        assert_renewed(&client, held).await;
    }
    assert_released(&client, held).await;
}

#[tokio::test]
async fn a_name_without_rights_spoils_nothing_else_of_its_batch() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let rights = format!("{LEAST_RIGHTS} +asking +cluster|slots +cluster|info +spublish");
    for node in 0..3 {
        set_user(cluster.node(node), "worker", &rights).await;
    }
    let worker = backend(&cluster).credentials(Credentials::new("worker", "pw"));
    let worker = worker.connect().await.unwrap();
    let allowed = requests("locks", 30);
    let mut tasks: Vec<_> = allowed.iter().map(|request| begin(&worker, request)).collect();
    let forbidden = requests("elsewhere", 30);
    let refused: Vec<_> = forbidden.iter().map(|request| begin(&worker, request)).collect();
    tasks.push(begin(&worker, &exclusive("locks:last", 1)));
    for task in tasks {
        assert!(is_granted(task).await);
    }
    for task in refused {
        let error = outcome(task).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    }
    let both: Vec<_> = allowed.iter().chain(&forbidden).map(renewal).collect();
    let outcomes = worker.renew(&both).await.unwrap();
    for (index, outcome) in outcomes.iter().enumerate() {
        match outcome {
            RenewOutcome::Renewed => assert!(index < allowed.len()),
            RenewOutcome::Failed(error) => {
                assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
                assert!(index >= allowed.len());
            }
            outcome => panic!("{index}: {outcome:?}"),
        }
    }
    assert_released(&worker, &allowed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_overtakes_no_acquisition_that_was_dropped() {
    let cluster = shared().await;
    let client = backend(&cluster).connect().await.unwrap();
    let others: Vec<_> = (0..8)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let request = exclusive(&format!("overtaking:{number}"), number);
                loop {
                    enters(&client, &request).await;
                    releases(&client, &request).await;
                }
            })
        })
        .collect();
    for round in 0..600 {
        let name = format!("overtaken:{}", round % 7);
        let request = exclusive(&name, round);
        if round % 100 == 50 {
            for node in 0..3 {
                let _: String = cluster.node(node).query(&["SCRIPT", "FLUSH"]).await;
            }
        }
        drop(poll_times(round % 6, client.acquire(&request)).await);
        soon("the release", client.release(&request.release())).await.unwrap();
        let holder = state(&client, &name).await;
        assert!(!holder.is_held(), "round {round}: {holder:?}");
    }
    for task in others {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "another was refused");
    }
}

#[tokio::test]
async fn a_slot_that_nobody_serves_fails_a_request_of_a_batch_for_now() {
    let cluster = RedisCluster::builder()
        .replicas_each(0)
        .option("--cluster-require-full-coverage", "no")
        .start()
        .await;
    let client = backend(&cluster).connect().await.unwrap();
    let mut all = Vec::new();
    for number in 0..6 {
        all.push(exclusive(&name_at(&cluster, 0, &format!("n:{number}")).await, number));
    }
    let (free, held) = all.split_at(3);
    for request in held {
        enters(&client, request).await;
    }
    // Neither is the first request, which is sent alone.
    for request in [&free[1], &held[1]] {
        let slot = cluster.slot_of(request.name.as_str()).await.to_string();
        let _: String = cluster.node(0).query(&["CLUSTER", "DELSLOTS", &slot]).await;
    }
    let acquiring: Vec<_> = free.iter().map(|request| begin(&client, request)).collect();
    let releasing: Vec<_> = held.iter().map(|request| end(&client, request)).collect();
    let mut errors = Vec::new();
    for task in acquiring {
        errors.extend(outcome(task).await.err());
    }
    for task in releasing {
        errors.extend(outcome(task).await.err());
    }
    assert_eq!(errors.len(), 2, "{errors:?}");
    for error in errors {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    }
}

/// The progress of the migration when the batch is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SlotProgress {
    Begun,
    KeysMoved,
    Finished,
}

#[tokio::test]
async fn each_request_of_a_small_batch_follows_its_slot() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let client = backend(&cluster).connect().await.unwrap();
    let mut requests = Vec::new();
    for number in 0..5 {
        requests.push(exclusive(&name_at(&cluster, 0, &format!("n:{number}")).await, number));
    }
    batch(&client, &requests).await;
    let [first, held, free, moved_held, moved_free] = &requests[..] else { unreachable!() };
    for progress in [SlotProgress::Begun, SlotProgress::KeysMoved, SlotProgress::Finished] {
        for request in [first, held, moved_held] {
            enters(&client, request).await;
        }
        let mut migrations = Vec::new();
        for moved in [moved_held, moved_free] {
            let slot = cluster.slot_of(moved.name.as_str()).await;
            let migration = cluster.begin_migration(slot, 1).await;
            if progress != SlotProgress::Begun {
                cluster.move_keys(&migration).await;
            }
            if progress == SlotProgress::Finished {
                cluster.finish_migration(migration).await;
            } else {
                migrations.push(migration);
            }
        }
        for node in [0, 1] {
            let _: String = cluster.node(node).query(&["SCRIPT", "FLUSH"]).await;
        }
        // The requests after the first form a batch of four.
        let releasing = [first, held, moved_held].map(|request| end(&client, request));
        let [free_task, moved_task] = [free, moved_free].map(|request| begin(&client, request));
        for task in releasing {
            assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released, "{progress:?}");
        }
        assert!(is_granted(free_task).await, "{progress:?}");
        let mut granted = vec![free];
        match outcome(moved_task).await {
            Ok(AcquireOutcome::Acquired { .. }) if progress != SlotProgress::Begun => {
                let lock = moved_free.name.as_str();
                let keys: Vec<String> = cluster.node(1).query(&["KEYS", lock]).await;
                assert_eq!(keys, [lock]);
                granted.push(moved_free);
            }
            // The token of the name has not moved, while the lock would be at the target.
            Err(error) if progress == SlotProgress::Begun => {
                assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
            }
            other => panic!("{progress:?}: {other:?}"),
        }
        for request in granted {
            assert_eq!(releases(&client, request).await, ReleaseOutcome::Released, "{progress:?}");
        }
        for migration in migrations {
            cluster.move_keys(&migration).await;
            cluster.finish_migration(migration).await;
        }
        for moved in [moved_held, moved_free] {
            cluster.migrate_slot(cluster.slot_of(moved.name.as_str()).await, 0).await;
        }
        batch(&client, &requests).await;
    }
}
