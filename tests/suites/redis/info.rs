//! What a backend detects when it connects, and the consequences.

use std::time::Duration;

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::{DeploymentKind, RedisBackend, RedisInfo, Support};
use lockcore_testkit::{Feature, RedisServer, server_lacks};
use tokio::task::JoinSet;

use crate::{
    cluster,
    command_proxy::{CommandProxy, Fate},
    errors::{LEAST_RIGHTS, connect_as, set_user},
    log::Log,
    support::{assert_nothing_left, connect, soon},
};

/// The supported features, as `[batches_across_slots, messages, wait]`.
fn support(info: &RedisInfo) -> [Support; 3] {
    [info.batches_across_slots, info.messages, info.wait]
}

#[tokio::test]
async fn a_server_is_described_in_one_line_and_nothing_is_left_there() {
    let server = RedisServer::start_with(&["--requirepass", "c4n4ry"]);
    let url = format!("redis://:c4n4ry@127.0.0.1:{}", server.port());
    let (log, _guard) = Log::start();
    let backend = RedisBackend::builder().url(url).key_prefix("shop:").connect().await.unwrap();
    let info = backend.info();
    assert_eq!(info.deployment, DeploymentKind::Single);
    assert_eq!(support(&info), [Support::Yes, Support::Yes, Support::Unknown]);
    let (software, version) = (info.software.clone().unwrap(), info.version.clone().unwrap());
    let told: String = server.query(&["INFO", "server"]).await;
    assert!(told.contains(&format!("{software}_version:{version}\r\n")), "{info:?}");

    let line = log.line_with("connected to Redis");
    for part in ["INFO", "deployment=single", "messages=yes", "wait=unknown", &version] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!format!("{info:?}{}", log.text()).contains("c4n4ry"));
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn wait_is_tried_if_replicas_are_asked_for() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let asking = || RedisBackend::builder().replicas(1, Duration::from_millis(50));
    let backend = asking().url(server.url()).connect().await.unwrap();
    assert_eq!(backend.info().wait, Support::Yes, "even if there is no replica now");

    set_user(&server, "worker", LEAST_RIGHTS).await;
    let url = format!("redis://worker:pw@127.0.0.1:{}", server.port());
    let error = asking().url(url).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("refuses the command WAIT"), "{error}");
}

#[tokio::test]
async fn the_documented_rights_are_enough_to_find_out() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let backend = connect_as(&server, "worker").await.unwrap();
    assert_eq!(support(&backend.info()), [Support::Yes, Support::Yes, Support::Unknown]);
    let denied: Vec<redis::Value> = server.query(&["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "nothing was tried without the right to it: {denied:?}");
}

#[tokio::test]
async fn a_user_without_the_rights_to_find_out_leaves_the_question_open() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    for missing in ["~lockcore_*", "&lockcore_*", "+info"] {
        let rights: Vec<_> =
            LEAST_RIGHTS.split_whitespace().filter(|right| *right != missing).collect();
        set_user(&server, "poor", &format!("reset on >pw {}", rights.join(" "))).await;
        let backend = connect_as(&server, "poor").await.unwrap();
        let info = backend.info();
        match missing {
            "~lockcore_*" => assert_eq!(info.batches_across_slots, Support::Unknown),
            "&lockcore_*" => assert_eq!(info.messages, Support::Unknown),
            _ => assert_eq!((&info.software, &info.version), (&None, &None)),
        }
        let guard = Locks::new(backend).lock("locks:a").acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn messages_that_do_not_arrive_are_reported() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "mute", &format!("{LEAST_RIGHTS} -publish")).await;
    let (log, _guard) = Log::start();
    let backend = connect_as(&server, "mute").await.unwrap();
    assert_eq!(backend.info().messages, Support::No);
    let warning = log.line_with("no messages arrive");
    assert!(warning.contains("WARN") && warning.contains("every 10 s"), "{warning}");
}

#[tokio::test]
async fn a_cluster_and_its_messages_are_recognized() {
    let cluster = cluster::shared().await;
    let backend = RedisBackend::cluster(cluster.addresses()).connect().await.unwrap();
    let info = backend.info();
    assert_eq!(info.deployment, DeploymentKind::Cluster);
    assert_eq!(support(&info), [Support::No, Support::Yes, Support::Unknown]);
    assert!(info.software.is_some() && info.version.is_some());
}

/// A proxy of a cluster that claims to be one server, as some services have: it refuses calls with
/// keys in different slots.
async fn slot_proxy(server: &RedisServer) -> CommandProxy {
    let fate = |parts: &[String]| match spans_slots(parts) {
        true => Fate::Refuse("CROSSSLOT Keys in request"),
        false => Fate::Pass,
    };
    CommandProxy::start(server, fate).await
}

fn spans_slots(parts: &[String]) -> bool {
    let [name, _, keys, rest @ ..] = parts else { return false };
    if !name.starts_with("EVAL") {
        return false;
    }
    let tag = |key: &String| match key.split_once('{').and_then(|(_, rest)| rest.split_once('}')) {
        Some((tag, _)) => tag.to_owned(),
        None => key.clone(),
    };
    let tags: Vec<_> = rest.iter().take(keys.parse().unwrap()).map(tag).collect();
    tags.iter().any(|tag| *tag != tags[0])
}

#[tokio::test]
async fn behind_a_proxy_that_refuses_two_slots_in_a_call_nothing_is_batched() {
    let server = RedisServer::start();
    let proxy = slot_proxy(&server).await;
    let backend = RedisBackend::connect(proxy.url()).await.unwrap();
    assert_eq!(support(&backend.info()), [Support::No, Support::Yes, Support::Unknown]);
    // By digest, which is known after the first call, or by source as well.
    let tried = proxy.hits();
    assert!((1..=2).contains(&tried), "{tried}");

    let locks = Locks::builder(backend).lease(Duration::from_secs(3)).build().unwrap();
    let mut acquiring = JoinSet::new();
    for number in 0..50 {
        acquiring.spawn(locks.lock(format!("lock:{number}")).acquire());
    }
    let guards = soon("all locks", acquiring.join_all()).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert!(guards.iter().all(lockcore::LockGuard::is_held), "renewed, each on its own");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(proxy.hits(), tried, "it was not asked for more than one slot again");
    let direct = connect(&server).await;
    assert_eq!(direct.info().batches_across_slots, Support::Yes);
}
