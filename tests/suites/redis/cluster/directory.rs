//! The directory of a cluster: a walk reports all names, or fails.

use std::{collections::BTreeSet, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{Backend, Page, Start},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisCluster, server_lacks};

use super::{backend, places};
use crate::{
    directory::{OWNER, directory, names},
    errors::{LEAST_RIGHTS, set_user},
    steps::{enters, hold, request},
    support::until,
};

/// Enough locks for several steps at each node.
const LOCKS: usize = 900;

async fn cluster() -> RedisCluster {
    RedisCluster::builder().replicas_each(0).start().await
}

async fn hold_all(backend: &RedisBackend) -> BTreeSet<String> {
    let all: BTreeSet<_> = (0..LOCKS).map(|number| format!("lock:{number}")).collect();
    for lock in &all {
        enters(backend, &request(lock, &hold(OWNER), Mode::Exclusive)).await;
    }
    all
}

/// Takes all steps of a walk, and runs something before each of them.
async fn walk(
    backend: &RedisBackend,
    mut before: impl AsyncFnMut(usize),
) -> Result<BTreeSet<String>, BackendError> {
    let (mut all, mut start) = (BTreeSet::new(), Start::Beginning);
    for step in 0.. {
        before(step).await;
        let Page { entries, next, .. } = directory(backend).names(&start).await?;
        all.extend(entries.iter().map(|name| name.as_str().to_owned()));
        match next {
            Some(next) => start = Start::At(next),
            None => break,
        }
    }
    Ok(all)
}

fn must_begin_again(error: &BackendError) {
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("begin"), "{error}");
}

#[tokio::test]
async fn the_names_of_all_nodes_are_reported() {
    let cluster = cluster().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let all = hold_all(&backend).await;
    assert_eq!(names(&backend).await.unwrap().into_iter().collect::<BTreeSet<_>>(), all);
}

/// Whenever a slot begins to move, its keys leave, or it has moved: no name is missed silently.
#[tokio::test]
async fn a_walk_while_a_slot_moves_reports_all_names_or_fails() {
    let cluster = cluster().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let mut all = hold_all(&backend).await;
    for number in 0..20 {
        let lock = format!("{{slot}}:{number}");
        enters(&backend, &request(&lock, &hold(OWNER), Mode::Exclusive)).await;
        all.insert(lock);
    }
    let (mut failed, mut whole) = (0, 0);
    for first in [0, 1, 3, 5, 8, 12, 40] {
        let (slot, from, to) = places(&cluster, "{slot}").await;
        let mut migration = None;
        let walked = walk(&backend, async |step| {
            if step == first {
                migration = Some(cluster.begin_migration(slot, to).await);
            } else if step == first + 1 {
                cluster.move_keys(migration.as_ref().unwrap()).await;
            } else if step == first + 2 {
                cluster.finish_migration(migration.take().unwrap()).await;
            }
        })
        .await;
        match walked {
            Ok(found) => {
                assert_eq!(found, all, "with a migration from step {first}");
                whole += 1;
            }
            Err(error) => {
                must_begin_again(&error);
                failed += 1;
            }
        }
        if let Some(migration) = migration {
            cluster.move_keys(&migration).await;
            cluster.finish_migration(migration).await;
        }
        assert_ne!(from, to);
    }
    assert!(failed > 0 && whole > 0, "{failed} failed, {whole} were whole");
    until("a calm cluster", || async { names(&backend).await.is_ok() }).await;
    assert_eq!(names(&backend).await.unwrap().into_iter().collect::<BTreeSet<_>>(), all);
}

/// The whole migration happens between two steps.
#[tokio::test]
async fn a_slot_that_has_moved_between_two_steps_is_noticed() {
    let cluster = cluster().await;
    let backend = backend(&cluster).connect().await.unwrap();
    hold_all(&backend).await;
    let (slot, _, to) = places(&cluster, "lock:1").await;
    let walked = walk(&backend, async |step| {
        if step == 1 {
            cluster.migrate_slot(slot, to).await;
        }
    });
    must_begin_again(&walked.await.unwrap_err());
}

#[tokio::test]
async fn a_walk_fails_while_a_primary_is_down() {
    let mut cluster = cluster().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let all = hold_all(&backend).await;
    let mut first_steps = Vec::new();
    let mut start = Start::Beginning;
    while let Page { next: Some(next), .. } = directory(&backend).names(&start).await.unwrap() {
        start = Start::At(next);
        first_steps.push(start.clone());
    }
    cluster.node_mut(1).kill();
    let error = names(&backend).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // A walk in progress fails as well, wherever it is: no node reports the names there.
    let walked = walk_from(&backend, &first_steps[0]).await;
    let failure = walked.err().unwrap();
    assert!(failure.is_retryable(), "{failure}");
    assert_eq!(all.len(), LOCKS);
}

async fn walk_from(backend: &RedisBackend, start: &Start) -> Result<(), BackendError> {
    let mut start = start.clone();
    loop {
        match directory(backend).names(&start).await?.next {
            Some(next) => start = Start::At(next),
            None => return Ok(()),
        }
    }
}

/// A restarted node has other cursors, although it serves the same slots.
#[tokio::test]
async fn a_walk_does_not_go_on_at_a_node_that_was_restarted() {
    let persists = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut cluster = RedisCluster::builder().replicas_each(0).options(&persists).start().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let all = hold_all(&backend).await;
    let page = directory(&backend).names(&Start::Beginning).await.unwrap();
    for index in 0..3 {
        cluster.node_mut(index).kill();
        cluster.node_mut(index).restart();
    }
    cluster.settle().await;
    until("the nodes", || async { names(&backend).await.is_ok() }).await;
    let next = Start::At(page.next.unwrap());
    must_begin_again(&directory(&backend).names(&next).await.unwrap_err());
    assert_eq!(names(&backend).await.unwrap().into_iter().collect::<BTreeSet<_>>(), all);
}

#[tokio::test]
async fn the_rights_of_a_walk_on_a_cluster_are_enough() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = cluster().await;
    let rights = format!(
        "{LEAST_RIGHTS} +scan +zrangebylex +asking +cluster|slots +cluster|info +cluster|nodes \
         +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe"
    );
    for index in 0..3 {
        set_user(cluster.node(index), "worker", &rights).await;
    }
    let credentials = lockcore_redis::Credentials::new("worker", "pw");
    let backend = backend(&cluster).credentials(credentials).connect().await.unwrap();
    enters(&backend, &request("locks:a", &hold(OWNER), Mode::Exclusive)).await;
    assert_eq!(names(&backend).await.unwrap(), ["locks:a"]);
    let records = backend.directory().unwrap();
    records.put_client("id", "record", Duration::from_secs(60)).await.unwrap();
    let page = records.clients(&Start::Beginning).await.unwrap();
    assert_eq!(page.entries, [("id".to_owned(), "record".to_owned())]);
}

/// The records of clients follow their slot.
#[tokio::test]
async fn records_of_clients_are_whole_or_refused_while_their_slot_moves() {
    let cluster = cluster().await;
    let backend = backend(&cluster).connect().await.unwrap();
    let ids: Vec<_> = (0..5).map(|number| format!("id-{number}")).collect();
    for id in &ids {
        directory(&backend).put_client(id, "record", Duration::from_secs(600)).await.unwrap();
    }
    let (slot, _, to) = places(&cluster, "{clients}").await;
    let migration = cluster.begin_migration(slot, to).await;
    let are_whole = |page: Page<(String, String)>| {
        assert_eq!(page.entries.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), ids);
    };
    are_whole(directory(&backend).clients(&Start::Beginning).await.unwrap());
    for key in ["lockcore_client:{clients}:id-1", "lockcore_clients:{clients}"] {
        cluster.move_keys_of(&migration, &[key]).await;
        let error = directory(&backend).clients(&Start::Beginning).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    }
    cluster.move_keys(&migration).await;
    are_whole(directory(&backend).clients(&Start::Beginning).await.unwrap());
    cluster.finish_migration(migration).await;
    are_whole(directory(&backend).clients(&Start::Beginning).await.unwrap());
    directory(&backend).put_client("id-1", "another", Duration::from_secs(600)).await.unwrap();
    directory(&backend).remove_client("id-2").await.unwrap();
    let page = directory(&backend).clients(&Start::Beginning).await.unwrap();
    assert_eq!(page.entries.len(), ids.len() - 1);
}
