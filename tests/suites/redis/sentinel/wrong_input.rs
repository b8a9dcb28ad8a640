//! Wrong input: the error names the address and the remedy, and no password.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind};
use lockcore_redis::{Credentials, RedisBackend, RedisBackendBuilder};
use lockcore_testkit::{RedisSentinel, RedisServer};

use super::backend;
use crate::{everything::with_sources, log::Log};

const CANARY: &str = "canary-7f3a9d";

async fn refused(builder: RedisBackendBuilder) -> BackendError {
    let shown = format!("{builder:?}");
    let error = builder.connect().await.expect_err(&shown);
    let shown = shown + &with_sources(&error);
    assert!(!shown.contains(CANARY), "{shown}");
    error
}

fn assert_says(error: &BackendError, kind: BackendErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_wrong_name_a_server_and_a_sentinel_in_the_wrong_place_are_told_apart() {
    use BackendErrorKind::Configuration;
    let group = RedisSentinel::builder().replicas(1).sentinels(1).start().await;
    let (sentinel, server) = (group.sentinel(0).address(), group.server(0).address());
    let name = group.master_name();

    let error = refused(RedisBackend::sentinel([&sentinel], "other")).await;
    assert_says(&error, Configuration, &[&sentinel, "`other`", "`sentinel monitor`"]);
    let error = refused(RedisBackend::sentinel([&server], name)).await;
    assert_says(&error, Configuration, &[&server, "not a Sentinel"]);
    let url = format!("redis://{sentinel}");
    let error = refused(RedisBackend::builder().url(url)).await;
    assert_says(&error, Configuration, &[&sentinel, "RedisBackend::sentinel"]);
    let error = refused(RedisBackend::sentinel(Vec::<String>::new(), name)).await;
    assert_says(&error, Configuration, &["an address"]);
    let error = refused(RedisBackend::sentinel([format!(":{CANARY}@[")], name)).await;
    assert_says(&error, Configuration, &["host:port"]);
    let url = format!("redis+sentinel://:{CANARY}@{sentinel}");
    let error = refused(RedisBackend::builder().url(url)).await;
    assert_says(&error, Configuration, &["redis+sentinel://host:26379"]);
    // One Sentinel that knows the primary is enough.
    let addresses = [server, sentinel];
    RedisBackend::sentinel(addresses, name).connect().await.unwrap();
}

#[tokio::test]
async fn a_primary_that_is_a_replica_is_refused_and_a_retry_can_help() {
    let patient = RedisSentinel::builder().replicas(1).down_after(Duration::from_secs(60));
    let group = patient.start().await;
    let (old, new) = (group.server(0), group.server(1));
    let _: String = new.query(&["REPLICAOF", "NO", "ONE"]).await;
    let _: String = old.query(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    let error = refused(backend(&group)).await;
    assert_says(&error, BackendErrorKind::ReadOnly, &[&old.address(), "is a replica"]);
    assert!(error.is_retryable());
}

#[tokio::test]
async fn each_password_is_asked_for_by_its_name() {
    // Everything in this test runs on one thread.
    let (log, _logging) = Log::start();
    let builder = RedisSentinel::builder().replicas(1).password("servers");
    let group = builder.sentinel_password("Sentinels").start().await;
    let both = || {
        backend(&group)
            .credentials(Credentials::password("servers"))
            .sentinel_credentials(Credentials::password("Sentinels"))
    };
    both().connect().await.unwrap();
    let [first, ..] = &*group.addresses() else { panic!("no Sentinel") };
    let wrong = || Credentials::new("default", CANARY);
    for bad in [both().sentinel_credentials(wrong()), backend(&group)] {
        let error = refused(bad).await;
        assert_says(&error, BackendErrorKind::Auth, &[first, "`sentinel_credentials`"]);
    }
    for bad in [both().credentials(wrong()), both().credentials(Credentials::password(CANARY))] {
        let error = refused(bad).await;
        assert_says(&error, BackendErrorKind::Auth, &[&group.server(0).address()]);
    }

    let sentinels = group.addresses().join(",");
    let url = format!("redis+sentinel://:servers@{sentinels}/{}/1", group.master_name());
    let by_url = RedisBackend::builder().url(url);
    let by_url = by_url.sentinel_credentials(Credentials::password("Sentinels"));
    by_url.connect().await.unwrap();
    let sentinels = group.addresses();
    let addresses = sentinels.iter().map(|address| format!("redis://:Sentinels@{address}"));
    let by_addresses = RedisBackend::sentinel(addresses, group.master_name());
    by_addresses.url("redis://:servers@primary").connect().await.unwrap();
    assert!(!log.text().contains(CANARY), "{}", log.text());
}

#[tokio::test]
async fn credentials_that_nobody_asked_for_are_refused() {
    let server = RedisServer::start();
    let bad = RedisBackend::builder().url(server.url()).credentials(Credentials::new("me", CANARY));
    let error = refused(bad).await;
    assert_says(&error, BackendErrorKind::Auth, &[&server.address()]);
}
