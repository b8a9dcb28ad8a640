//! What a backend finds out when it connects, and what follows from it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::{DeploymentKind, RedisBackend, RedisInfo, Support};
use lockcore_testkit::{Feature, RedisServer, server_lacks};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use crate::{
    cluster,
    errors::{LEAST_RIGHTS, connect_as, set_user},
    log::Log,
    support::{assert_nothing_left, connect, soon},
};

/// What works, as `[batches_across_slots, messages, wait]`.
fn support(info: &RedisInfo) -> [Support; 3] {
    [info.batches_across_slots, info.messages, info.wait]
}

#[tokio::test]
async fn a_server_is_described_and_nothing_is_left_there() {
    let server = RedisServer::start_with(&["--requirepass", "c4n4ry"]);
    let url = format!("redis://:c4n4ry@127.0.0.1:{}", server.port());
    let backend = RedisBackend::builder().url(url).key_prefix("shop:").connect().await.unwrap();
    let info = backend.info();
    assert_eq!(info.deployment, DeploymentKind::Single);
    assert_eq!(support(&info), [Support::Yes, Support::Yes, Support::Unknown]);
    let (software, version) = (info.software.clone().unwrap(), info.version.clone().unwrap());
    let told: String = server.query(&["INFO", "server"]).await;
    assert!(told.contains(&format!("{software}_version:{version}\r\n")), "{info:?}");

    assert!(!format!("{info:?}").contains("c4n4ry"));
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn wait_is_tried_if_replicas_are_asked_for() {
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
            "~lockcore_*" => assert_eq!(support(&info), [Support::Unknown; 3]),
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
struct SlotProxy {
    port: u16,
    refused: Arc<AtomicU64>,
}

impl SlotProxy {
    async fn start(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, refused) = (listener.local_addr().unwrap().port(), Arc::<AtomicU64>::default());
        let (target, counter) = (server.address(), refused.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, mut to_client) = client.into_split();
                let server = TcpStream::connect(&target).await.unwrap();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(pass_on(from_client, to_server, counter.clone()));
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
            }
        });
        Self { port, refused }
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Passes commands on, and errors in place of those that the proxy refuses.
async fn pass_on(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, refused: Arc<AtomicU64>) {
    const REFUSAL: &str = "return redis.error_reply('CROSSSLOT Keys in request')";
    let mut bytes = Vec::new();
    while client.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        while let Some((parts, length)) = command(&bytes) {
            let passed_on = match spans_slots(&parts) {
                true => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    redis::cmd("EVAL").arg(REFUSAL).arg(0).get_packed_command()
                }
                false => bytes[..length].to_vec(),
            };
            bytes.drain(..length);
            if server.write_all(&passed_on).await.is_err() {
                return;
            }
        }
    }
}

/// The parts of the first command, and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let number = |at: usize| -> Option<(usize, usize)> {
        let end = at + bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let digits = std::str::from_utf8(&bytes[at + 1..end]).unwrap();
        Some((digits.parse().unwrap(), end + 2))
    };
    let (count, mut at) = number(0)?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let (length, start) = number(at)?;
        parts.push(String::from_utf8_lossy(bytes.get(start..start + length)?).into_owned());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((parts, at))
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
    let proxy = SlotProxy::start(&server).await;
    let backend = RedisBackend::connect(format!("redis://127.0.0.1:{}", proxy.port)).await.unwrap();
    assert_eq!(support(&backend.info()), [Support::No, Support::Yes, Support::Unknown]);
    // By digest, which is known after the first call, or by source as well.
    let tried = proxy.refused();
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
    assert_eq!(proxy.refused(), tried, "it was not asked for more than one slot again");
    let direct = connect(&server).await;
    assert_eq!(direct.info().batches_across_slots, Support::Yes);
}
