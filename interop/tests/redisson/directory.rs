//! The names in use and the storage of a name, as reported for locks that Java holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use lockcore::{
    Holder, LockName, LockState, Mode,
    backend::{Backend, Directory, Start, StoredKind},
};
use lockcore_interop::{Kind, Lease, Redisson};
use lockcore_redis::RedisBackend;

use crate::{
    deployment::{Deployment, Topology},
    support::{Both, queued, soon},
};

/// Longer than the test takes.
const LONG_LEASE: Lease = Lease::Fixed(Duration::from_secs(60));

#[tokio::test]
async fn a_walk_lists_what_java_holds() {
    lists_all(&Deployment::server()).await;
}

#[tokio::test]
async fn a_walk_over_a_cluster_lists_what_java_holds() {
    lists_all(&Arc::new(Deployment::start(Topology::ShardedCluster).await)).await;
}

async fn lists_all(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let backend = RedisBackend::connect(servers.url()).await.unwrap();
    assert_eq!(names(&backend).await, BTreeSet::new());
    // A waiting thread cannot do anything else.
    let [one, other, third] = [(); 3].map(|()| both.redisson.thread());
    for _ in 0..2 {
        one.acquire("reentrant", LONG_LEASE).await.unwrap();
    }
    let token = one.acquire_fenced("fenced").await.unwrap();
    one.kind(Kind::Fair).acquire("fair", LONG_LEASE).await.unwrap();
    let waiting = other.kind(Kind::Fair).acquire("fair", LONG_LEASE);
    queued(servers, "fair", 1).await;
    for thread in [&one, &third] {
        thread.kind(Kind::Read).acquire("read", LONG_LEASE).await.unwrap();
    }
    one.kind(Kind::Write).acquire("write", LONG_LEASE).await.unwrap();
    let permits = one.kind(Kind::Permits(5));
    assert!(permits.prepare("permits").await.unwrap());
    for _ in 0..2 {
        permits.acquire("permits", LONG_LEASE).await.unwrap();
    }
    let expected = ["fair", "fenced", "permits", "read", "reentrant", "write"];
    assert_eq!(names(&backend).await, expected.map(str::to_owned).into());
    holders_are_right(&backend, &both.redisson).await;
    bare_numbers_are_told_by_name(&backend, &both.redisson).await;
    let entries = directory(&backend).storage(&name("fenced"), &[]).await.unwrap();
    let last = entries.iter().find(|entry| entry.kind == StoredKind::LastToken);
    assert_eq!(last.and_then(|entry| entry.number), Some(token), "{entries:?}");

    one.kind(Kind::Fair).release("fair").await.unwrap();
    soon("Java's entry", waiting).await.unwrap();
    let state = backend.inspect(&name("fair")).await.unwrap();
    assert_eq!((state.holders().len(), state.waiters().len()), (1, 0), "{state:?}");
    other.kind(Kind::Fair).release("fair").await.unwrap();
    assert!(!names(&backend).await.contains("fair"));
    both.close().await;
}

/// Modes, counts and owners are those of Java's holds.
async fn holders_are_right(backend: &RedisBackend, redisson: &Redisson) {
    let mut states = BTreeMap::new();
    for lock in names(backend).await {
        states.insert(lock.clone(), backend.inspect(&name(&lock)).await.unwrap());
    }
    for (lock, mode, counts) in [
        ("reentrant", Mode::Exclusive, &[2][..]),
        ("fenced", Mode::Exclusive, &[1]),
        ("fair", Mode::Exclusive, &[1]),
        ("read", Mode::Read, &[1, 1]),
        ("write", Mode::Write, &[1]),
    ] {
        let holders = states[lock].holders();
        assert!(holders.iter().all(|holder| holder.mode() == mode), "{lock}: {holders:?}");
        let held: Vec<u32> = holders.iter().map(Holder::hold_count).collect();
        assert_eq!(held, counts, "{lock}: {holders:?}");
        let is_java = |holder: &Holder| holder.owner().starts_with(redisson.id());
        assert!(holders.iter().all(is_java), "{lock}: {holders:?}");
    }
    let waiters = states["fair"].waiters();
    assert!(waiters.len() == 1 && waiters[0].starts_with(redisson.id()), "{waiters:?}");
    let permits = &states["permits"];
    assert_eq!((permits.available(), permits.limit()), (Some(3), Some(5)), "{permits:?}");
    assert_eq!(permits.holders().len(), 2, "{permits:?}");
    assert!(states.values().all(|state| LockState::remaining(state).is_some()));
}

/// An `RSemaphore` and an `RCountDownLatch` are numbers, which anything could have stored. A walk
/// skips them, and a query by name reports what they are.
async fn bare_numbers_are_told_by_name(backend: &RedisBackend, redisson: &Redisson) {
    let before = names(backend).await;
    let plain = redisson.thread_for(Kind::Plain(3));
    assert!(plain.prepare("plain").await.unwrap());
    plain.acquire("plain", Lease::Watchdog).await.unwrap();
    assert!(redisson.thread().set_count("gate", 4).await.unwrap());
    assert_eq!(names(backend).await, before);
    let state = backend.inspect(&name("plain")).await.unwrap();
    assert_eq!(state.available(), Some(2), "{state:?}");
    assert_eq!(backend.latches().unwrap().count(&name("gate")).await.unwrap(), 4);
}

fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn directory(backend: &RedisBackend) -> &dyn Directory {
    backend.directory().unwrap()
}

/// The names that a walk reports.
async fn names(backend: &RedisBackend) -> BTreeSet<String> {
    let (mut names, mut start) = (BTreeSet::new(), Start::Beginning);
    loop {
        let page = directory(backend).names(&start).await.unwrap();
        names.extend(page.entries.iter().map(|name| name.as_str().to_owned()));
        match page.next {
            Some(next) => start = Start::At(next),
            None => return names,
        }
    }
}
