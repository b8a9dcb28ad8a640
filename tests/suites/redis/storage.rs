//! The reported keys of a name, compared with those on the server.

use std::time::Duration;

use lockcore::{
    LockName, Mode,
    backend::{
        Backend, ConditionId, HoldId, ReleaseRequest, ResizeRequest, StoredEntry, StoredKind,
    },
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{RedisCluster, RedisServer};

use crate::{
    directory::{OWNER, directory},
    steps::{enters, hold, name, pttl, request},
    support::connect,
};

/// How long a place is kept.
const KEEP: Duration = Duration::from_secs(60);

async fn stored(backend: &RedisBackend, lock: &LockName, asked: &[LockName]) -> Vec<StoredEntry> {
    directory(backend).storage(lock, asked).await.unwrap()
}

/// Shows that exactly the keys on the server are reported, each with its time to live.
async fn all_keys_are_told_of(server: &RedisServer, backend: &RedisBackend, lock: &LockName) {
    let asked = [name("ready")];
    let mut entries = stored(backend, lock, &asked).await;
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), keys, "{lock}");
    for entry in entries {
        let left = u64::try_from(pttl(server, &entry.key).await).ok().map(Duration::from_millis);
        assert_eq!(entry.left.is_some(), left.is_some(), "{entry:?}");
        assert!(entry.left >= left, "time passes: {entry:?} {left:?}");
    }
}

/// The numbers of the entries of a kind that have one.
fn numbers(entries: &[StoredEntry], kind: &StoredKind) -> Vec<u64> {
    let of_kind = entries.iter().filter(|entry| entry.kind == *kind);
    of_kind.filter_map(|entry| entry.number).collect()
}

/// Brings a name into use in one way, or in several compatible ones.
async fn uses(backend: &RedisBackend, lock: &str, way: usize) {
    let (one, other) = (hold(OWNER), HoldId::unique("other:1"));
    let waits = |mode| request(lock, &other, mode).queue(Some(KEEP));
    match way {
        0 => {
            _ = enters(backend, &request(lock, &HoldId::named("job", "job:1"), Mode::Exclusive))
                .await
        }
        1 => {
            enters(backend, &request(lock, &one, Mode::Fair)).await;
            backend.acquire(&waits(Mode::Fair)).await.unwrap();
        }
        2 => {
            enters(backend, &request(lock, &one, Mode::Read)).await;
            enters(backend, &request(lock, &one, Mode::Read).count(2)).await;
            backend.acquire(&waits(Mode::Write)).await.unwrap();
        }
        3 => {
            enters(backend, &request(lock, &one, Mode::permits(2, 5))).await;
        }
        4 => {
            enters(backend, &request(lock, &one, Mode::plain_permits(2, 5))).await;
        }
        5 => {
            backend.resize(&ResizeRequest::new(name(lock), 3)).await.unwrap();
        }
        6 => {
            let set = backend.latches().unwrap().set_count(&name(lock), 4, "id").await;
            assert!(set.unwrap());
        }
        _ => {
            enters(backend, &request(lock, &one, Mode::Exclusive)).await;
            let ready = ConditionId::new(name(lock), name("ready"));
            for waiter in ["a", "b"] {
                backend.conditions().unwrap().join(&ready, waiter, KEEP).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn every_key_of_a_name_is_told_of_whatever_it_is() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for way in 0..=7 {
        for lock in ["order:1", "{shop}:1"] {
            let _: String = server.query(&["FLUSHALL"]).await;
            uses(&backend, lock, way).await;
            all_keys_are_told_of(&server, &backend, &name(lock)).await;
            let unused = stored(&backend, &name("order:2"), &[name("ready")]).await;
            assert_eq!(unused, []);
        }
    }
}

#[tokio::test]
async fn the_last_token_and_the_counts_are_told() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let lock = request("a", &hold(OWNER), Mode::Exclusive);
    let token = u64::from(enters(&backend, &lock).await);
    let entries = stored(&backend, &name("a"), &[]).await;
    assert_eq!(numbers(&entries, &StoredKind::LastToken), [token]);
    backend.release(&ReleaseRequest::new(name("a"), hold(OWNER))).await.unwrap();
    let entries = stored(&backend, &name("a"), &[]).await;
    assert_eq!(numbers(&entries, &StoredKind::LastToken), [token], "it is kept");
    for (lock, way, kind, number) in [
        ("fair", 1, StoredKind::Queue, 1),
        ("seats", 3, StoredKind::Permits, 3),
        ("latch", 6, StoredKind::Latch, 4),
        ("box", 7, StoredKind::Condition(name("ready")), 2),
    ] {
        uses(&backend, lock, way).await;
        let entries = stored(&backend, &name(lock), &[name("ready"), name("other")]).await;
        assert_eq!(numbers(&entries, &kind), [number], "{entries:?}");
    }
}

#[tokio::test]
async fn the_node_that_has_a_name_tells_of_its_keys() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let url = format!("redis+cluster://{}", cluster.addresses().join(","));
    let backend = RedisBackend::connect(url).await.unwrap();
    for lock in ["a", "b", "c", "{tag}:d"] {
        uses(&backend, lock, 1).await;
        let entries = stored(&backend, &name(lock), &[]).await;
        assert_eq!(numbers(&entries, &StoredKind::Queue), [1], "{entries:?}");
        assert_eq!(numbers(&entries, &StoredKind::LastToken).len(), 1, "{entries:?}");
    }
}
