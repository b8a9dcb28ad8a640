//! `lockctl doctor` on servers that are fit for locks, and on those that are not.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{Locks, Owner};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Conditions, Proxy, RedisCluster, RedisSentinel, RedisServer};
use serde_json::Value;
use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    answering::{AnsweringProxy, bulk},
    program::{End, LONG, QUIET, end},
};

const OWNER: &str = "0123abcd-0000-4000-8000-0123456789ab:17";

/// A server without findings, started with `options`.
pub(crate) fn server(options: &[&str]) -> RedisServer {
    RedisServer::start_with(&[&["--appendonly", "yes"], options].concat())
}

/// The result of `lockctl doctor --json`: its exit code, and the findings as `severity id`.
pub(crate) fn found(url: &str) -> (i32, Vec<String>) {
    let end = end(url, &["doctor", "--json"]);
    let code = end.code.unwrap_or_else(|| panic!("{end:?}"));
    let report = report(&end);
    let findings = report["findings"].as_array().unwrap();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let found: Vec<String> = findings
        .iter()
        .map(|finding| {
            for part in ["seen", "why", "what_to_do"] {
                assert!(!text(finding, part).is_empty(), "{finding}");
            }
            format!("{} {}", text(finding, "severity"), text(finding, "id"))
        })
        .collect();
    let is_sound = found.iter().all(|finding| finding.starts_with("advice"));
    assert_eq!(report["sound"], is_sound, "{report}");
    let has_problems = found.iter().any(|finding| finding.starts_with("problem"));
    assert_eq!(code, i32::from(has_problems), "{report}");
    (code, found)
}

fn report(end: &End) -> Value {
    serde_json::from_str(&end.stdout).unwrap_or_else(|error| panic!("{error}: {end:?}"))
}

/// The findings, without those of a busy machine.
pub(crate) fn found_but_latency(url: &str) -> Vec<String> {
    let (_, mut found) = found(url);
    found.retain(|finding| !finding.ends_with("latency"));
    found
}

/// Shows that the server has this finding. A busy machine may be slow as well.
pub(crate) fn finds(url: &str, expected: &str) {
    assert_eq!(found_but_latency(url), [expected]);
}

/// Shows that the server has this finding, and refuses clients because of it, so that nobody could
/// look for deadlocks.
pub(crate) fn finds_refusing(url: &str, expected: &str) {
    assert_eq!(found_but_latency(url), [expected, "unknown deadlock"]);
}

async fn set_user(server: &RedisServer, rights: &str) -> String {
    let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", ">hunter2"];
    command.extend(rights.split_whitespace());
    let _: String = server.query(&command).await;
    format!("redis://worker:hunter2@{}", server.address())
}

async fn run(server: &RedisServer, command: &[&str]) {
    let _: redis::Value = server.query(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_on_servers_that_are_sound() {
    let _quiet = QUIET.lock().await;
    let single = server(&[]);
    // A foreign hash, and a lock that is held.
    run(&single, &["HSET", "page:1", "views:1", "7"]).await;
    run(&single, &["HSET", "held", OWNER, "1"]).await;
    run(&single, &["PEXPIRE", "held", "30000"]).await;
    assert_eq!(found_but_latency(&single.url()), [""; 0]);
    assert_eq!(end(&single.url(), &["doctor"]).stderr, "");
    let keys: Vec<String> = single.query(&["KEYS", "*"]).await;
    assert_eq!(keys.len(), 2, "nothing stays there: {keys:?}");

    let all = ["--appendonly", "yes", "--min-replicas-to-write", "1"];
    let group = RedisSentinel::builder().options(&all).start().await;
    let addresses = group.addresses().join(",");
    let url = format!("redis+sentinel://{addresses}/{}", group.master_name());
    assert_eq!(found_but_latency(&url), [""; 0]);

    let cluster = RedisCluster::builder().options(&all).start().await;
    let url = format!("redis+cluster://{}", cluster.addresses().join(","));
    assert_eq!(found_but_latency(&url), [""; 0]);
    assert_eq!(found_but_latency(&cluster.node(0).url()), [""; 0], "by one of its nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_wait_for_each_other_are_found() {
    let server = server(&[]);
    let backend = RedisBackend::connect(server.url()).await.unwrap();
    // Holds its name once the first barrier is passed, and then wants the name of the next one.
    let barrier = Arc::new(Barrier::new(3));
    let mut waiting = JoinSet::new();
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "a")] {
        let (locks, barrier) = (Locks::new(backend.clone()), barrier.clone());
        waiting.spawn(Owner::new().scope(async move {
            let _from = locks.lock(from).acquire().await.unwrap();
            barrier.wait().await;
            drop(locks.lock(to).acquire().await);
        }));
    }
    let began = Instant::now();
    let finding = loop {
        let report = report(&end(&server.url(), &["doctor", "--json"]));
        let findings = report["findings"].as_array().unwrap().clone();
        match findings.into_iter().find(|finding| finding["id"] == "deadlock") {
            Some(finding) => break finding,
            None => assert!(began.elapsed() < LONG, "{report}"),
        }
    };
    assert_eq!(finding["severity"], "problem");
    let seen = finding["seen"].as_str().unwrap();
    let pid = format!("process {}", std::process::id());
    for part in ["`a`", "`b`", "`c`", &pid, "doctor.rs:", "a deadlock"] {
        assert!(seen.contains(part), "{part} is not in {seen}");
    }
    waiting.shutdown().await;
}

#[test]
fn settings_that_lose_locks_are_found() {
    for (options, expected) in [
        (&["--maxmemory-policy", "volatile-ttl"][..], "advice eviction"),
        (&["--appendonly", "no"], "problem persistence"),
        (&["--appendonly", "no", "--save", "3600 1"], "advice persistence"),
        (&["--appendfsync", "no"], "advice persistence"),
        (&["--maxmemory", "1"], "problem memory"),
        (&["--min-replicas-to-write", "1"], "problem replicas-missing"),
        (&["--client-output-buffer-limit", "pubsub 65536 0 0"], "problem pubsub-buffer"),
        (&["--timeout", "5"], "advice timeout"),
        (&["--rename-command", "HSET", ""], "problem rights"),
    ] {
        let server = server(options);
        finds(&server.url(), expected);
    }
    let evicting = server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    finds_refusing(&evicting.url(), "problem eviction");
    // The records of clients are read with a script.
    let server = server(&["--rename-command", "EVAL", ""]);
    assert_eq!(found_but_latency(&server.url()), ["problem scripts", "unknown deadlock"]);
}

/// Another finding does not hide that nobody could look for deadlocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_read_the_records_of_clients_is_told_so() {
    let server = server(&["--appendonly", "no", "--save", "3600 1"]);
    let rules = "+@all &* ~a ~{a}* ~redisson_* ~lockcore_t* ~lockcore:*";
    let user = ["ACL", "SETUSER", "worker", "reset", "on", ">hunter2"];
    run(&server, &user.into_iter().chain(rules.split(' ')).collect::<Vec<_>>()).await;
    let url = server.url().replace("redis://", "redis://worker:hunter2@");
    let (_, found) = found(&url);
    for expected in ["advice persistence", "unknown deadlock"] {
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_found_and_so_is_a_primary_that_does_not_need_its_replicas() {
    let primary = server(&[]);
    let port = primary.port().to_string();
    let replica = server(&["--replicaof", "127.0.0.1", &port]);
    let began = Instant::now();
    loop {
        let told: String = primary.query(&["INFO", "replication"]).await;
        if told.contains("state=online") {
            break;
        }
        assert!(began.elapsed() < LONG, "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    finds_refusing(&replica.url(), "problem replica");
    finds(&primary.url(), "advice replicas-not-required");

    replica.freeze();
    let began = Instant::now();
    loop {
        let told: String = primary.query(&["INFO", "replication"]).await;
        let lag = told.split("lag=").nth(1).and_then(|rest| rest.lines().next());
        if lag.is_some_and(|lag| lag.parse::<u64>().unwrap() > 10) {
            break;
        }
        assert!(began.elapsed() < LONG, "{told}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (code, found) = found(&primary.url());
    assert_eq!(code, 1);
    assert!(found.contains(&"problem replica-behind".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_to_the_disk_that_fail_are_found() {
    let server = server(&[]);
    fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    run(&server, &["SET", "a", "1"]).await;
    run(&server, &["BGSAVE"]).await;
    let began = Instant::now();
    loop {
        let told: String = server.query(&["INFO", "persistence"]).await;
        if told.contains("rdb_last_bgsave_status:err") {
            break;
        }
        assert!(began.elapsed() < LONG, "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    finds(&server.url(), "problem persistence-failing");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_missing_are_found_and_named() {
    let server = server(&[]);
    let url = set_user(&server, "~* &* +@all -hset -pexpire").await;
    finds(&url, "problem rights");
    let text = end(&url, &["doctor"]);
    assert!(text.stdout.contains("refuses hset, pexpire\n"), "{text:?}");
    assert!(!format!("{text:?}").contains("hunter2"), "{text:?}");

    finds(&set_user(&server, "~* &* +@all -eval").await, "problem rights");
    finds(&set_user(&server, "~* &* +@all -rpush").await, "advice rights-of-kind");
    let no_tokens = "%RW~lockcore_* ~locks:* &* +@all";
    let text = end(&set_user(&server, no_tokens).await, &["doctor"]);
    assert!(text.stdout.contains("get with redisson_lock_token:*"), "{text:?}");

    let (code, found) = found(&set_user(&server, "~* resetchannels +@all").await);
    assert_eq!(code, 1);
    assert!(found.contains(&"problem rights".to_owned()), "{found:?}");
    assert!(found.contains(&"problem messages".to_owned()), "{found:?}");

    let left: Vec<String> = server.query(&["KEYS", "*"]).await;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_unknown_and_not_sound() {
    let server = server(&[]);
    finds(&set_user(&server, "~* &* +@all -config").await, "unknown config");
    finds(&set_user(&server, "~* &* +@all -scan").await, "unknown names");
    let (code, found) = found(&set_user(&server, "~* &* +@all -info -config").await);
    assert_eq!((code, found), (0, vec!["unknown info".into(), "unknown config".into()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_is_found() {
    let _quiet = QUIET.lock().await;
    let server = server(&[]);
    let proxy = Proxy::start(server.port()).await.unwrap();
    for (latency, expected) in [(12, "advice latency"), (60, "problem latency")] {
        let latency = Duration::from_millis(latency);
        proxy.set(Conditions { latency, ..Conditions::default() });
        assert_eq!(found(&proxy.url()).1, [expected]);
    }
}

/// The version and the clock of a real server cannot be set, so a proxy reports them.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_and_a_clock_that_is_off_are_found() {
    let server = server(&[]);
    let told: String = server.query(&["INFO"]).await;
    let version = told.lines().find(|line| line.contains("redis_version:")).unwrap().to_owned();
    for (old, expected) in [("5.0.14", "problem version"), ("6.0.16", "advice version")] {
        let told = told.replace(&version, &format!("redis_version:{old}"));
        let proxy = AnsweringProxy::start(&server, move |command| {
            (command[0] == "INFO").then(|| bulk(&told))
        });
        finds(&proxy.await.url(), expected);
    }
    for (off, expected) in [(-90, "behind"), (7, "ahead of")] {
        let proxy = AnsweringProxy::start(&server, move |command| {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            let seconds = i64::try_from(now.as_secs()).unwrap() + off;
            let micros = now.subsec_micros().to_string();
            let reply = || format!("*2\r\n{}{}", bulk(&seconds.to_string()), bulk(&micros));
            (command[0] == "TIME").then(reply)
        });
        let url = proxy.await.url();
        finds(&url, "problem clock");
        let text = end(&url, &["doctor"]);
        assert!(text.stdout.contains(&format!("{expected} that of this host")), "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_proxy_drops_are_found() {
    let server = server(&[]);
    let dropping = AnsweringProxy::start(&server, |command| {
        (command[0] == "PUBLISH").then(|| ":1\r\n".to_owned())
    });
    finds(&dropping.await.url(), "problem messages");
    let refusing = AnsweringProxy::start(&server, |command| {
        (command[0] == "SUBSCRIBE").then(|| "-ERR unsupported command\r\n".to_owned())
    });
    finds(&refusing.await.url(), "problem messages");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_that_nobody_cleans_up_are_found() {
    let server = server(&[]);
    let name = "nightly\u{1b}[2J\r\n";
    run(&server, &["HSET", name, OWNER, "1"]).await;
    for number in 0..2000 {
        run(&server, &["HSET", &format!("page:{number}"), "views:1", "7"]).await;
    }
    finds(&server.url(), "problem endless");
    let text = end(&server.url(), &["doctor"]);
    assert!(text.stdout.contains("`nightly\\u{1b}[2J\\r\\n`"), "{text:?}");
    assert!(!text.stdout.contains('\u{1b}'), "{text:?}");

    run(&server, &["PEXPIRE", name, "600000"]).await;
    run(&server, &["ZADD", "redisson_lock_timeout:{fair}", "1000", OWNER]).await;
    finds(&server.url(), "advice dead-places");
    run(&server, &["HSET", "fair", OWNER, "1"]).await;
    run(&server, &["PEXPIRE", "fair", "600000"]).await;
    let found = found_but_latency(&server.url());
    assert!(!found.iter().any(|finding| finding.starts_with("problem")), "{found:?}");
    let sound = report(&end(&server.url(), &["doctor", "--json"]));
    assert!(!sound.to_string().contains("dead-places"), "somebody holds it: {sound}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_half_down_is_found() {
    let options = ["--appendonly", "yes"];
    let mut cluster = RedisCluster::builder().replicas_each(0).options(&options).start().await;
    let url = format!("redis+cluster://{}", cluster.addresses().join(","));
    finds(&url, "advice node-alone");

    let address = cluster.node(1).address();
    cluster.node_mut(1).kill();
    let began = Instant::now();
    while !cluster.node(0).query::<String>(&["CLUSTER", "INFO"]).await.contains("state:fail") {
        assert!(began.elapsed() < LONG, "the cluster does not notice");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, found) = found(&url);
    assert_eq!(code, 1);
    for expected in ["problem node-failing", "problem unreachable", "problem cluster-down"] {
        assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
    }
    let text = end(&url, &["doctor"]);
    assert!(text.stdout.contains(&format!("{address} is down")), "{text:?}");
    assert!(text.stdout.contains("only if it never comes back"), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_cannot_fail_over_are_found() {
    let options = ["--appendonly", "yes", "--min-replicas-to-write", "1"];
    let mut group = RedisSentinel::builder().sentinels(2).options(&options).start().await;
    let url = format!("redis+sentinel://{}/{}", group.addresses().join(","), group.master_name());
    finds(&url, "advice sentinels-few");
    group.sentinel_mut(1).kill();
    let began = Instant::now();
    let name = group.master_name().to_owned();
    let ask = ["SENTINEL", "CKQUORUM", &name];
    while group.sentinel(0).try_query::<String>(&ask).await.is_ok() {
        assert!(began.elapsed() < LONG, "the Sentinel does not notice");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, found) = found(&url);
    assert_eq!(code, 1);
    for expected in ["problem sentinel-quorum", "problem unreachable"] {
        assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
    }
}

#[test]
fn a_server_that_is_away_or_silent_is_69_within_bounds() {
    let mut server = server(&[]);
    server.freeze();
    let began = Instant::now();
    for arguments in [&["doctor"][..], &["doctor", "--json"]] {
        let silent = end(&server.url(), arguments);
        assert_eq!(silent.code, Some(69), "{silent:?}");
        assert!(silent.stdout.is_empty() && silent.stderr.lines().count() == 1, "{silent:?}");
    }
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    server.thaw();
    let url = server.url();
    server.kill();
    let away = end(&url, &["doctor"]);
    assert_eq!((away.code, away.stdout.as_str()), (Some(69), ""), "{away:?}");
}
