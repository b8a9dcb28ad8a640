//! `lockctl ls`, and its common parts with `lockctl show`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lockcore::{Lock, LockGuard, Locks, backend::Backend};
use lockcore_etcd::EtcdBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{EtcdCluster, PostgresServer, RedisCluster, RedisServer};
use serde_json::{Value, json};

use crate::program::{QUIET, Running, end, shown, until};

/// So long that nothing is renewed or ends during a test.
const LEASE: Duration = Duration::from_secs(600);

/// An owner in the format of Redisson.
const JAVA: &str = "0c97a3c4-7b3c-4b63-9d5c-6f2d8a1b0e55:42";

/// The output of `lockctl ls --json` for each name.
fn listed(url: &str, arguments: &[&str]) -> Vec<Value> {
    let end = end(url, &[&["ls", "--json", "--rate", "0"], arguments].concat());
    assert_eq!((end.code, &*end.stderr), (Some(0), ""), "{end:?}");
    serde_json::from_str(&end.stdout).expect("JSON")
}

/// The cells of the output of `lockctl ls`, by name.
fn table(url: &str, arguments: &[&str]) -> HashMap<String, Vec<String>> {
    let end = end(url, &[&["ls", "--rate", "0"], arguments].concat());
    assert_eq!((end.code, &*end.stderr), (Some(0), ""), "{end:?}");
    let mut rows = end.stdout.lines().map(|line| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect::<Vec<_>>()
    });
    let header = rows.next().unwrap();
    assert_eq!(header, ["NAME", "KIND", "HOLDER", "COUNT", "LEASE LEFT", "WAITERS"]);
    rows.map(|cells| (cells[0].clone(), cells)).collect()
}

/// Starts waiting for `lock`, and returns once the store knows.
async fn waiter(lock: Lock, known: usize) -> tokio::task::JoinHandle<()> {
    let state = lock.clone();
    let waiting = tokio::spawn(async move {
        let _guard = lock.acquire().await;
    });
    let began = Instant::now();
    while state.state().await.unwrap().waiters().len() < known {
        assert!(began.elapsed() < crate::program::LONG, "nobody waits");
        tokio::task::yield_now().await;
    }
    waiting
}

fn is_lease(cell: &str) -> bool {
    let seconds = cell.strip_suffix(" s").and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.is_some_and(|seconds| seconds > 500.0 && seconds <= 600.0)
}

/// Shows that locks of the kinds that every store has, below `prefix`, are listed with each column.
async fn lists_locks(url: &str, locks: &Locks, prefix: &str) {
    let name = |name: &str| format!("{prefix}{name}");
    let plain = locks.lock(name("plain"));
    let guard = plain.acquire().await.unwrap();
    let fair = locks.fair_lock(name("fair"));
    let held = fair.acquire().await.unwrap();
    let waiting = [waiter(fair.clone(), 1).await, waiter(fair.clone(), 2).await];
    let shared = locks.rw_lock(name("shared"));
    let readers = [spawned(shared.read()).await, spawned(shared.read()).await];
    let owner = |guard: &LockGuard| guard.wire_owner().to_owned();

    let rows = table(url, &[&name("*")]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    let row = |name: &str| &rows[&format!("{prefix}{name}")];
    assert_eq!(row("plain")[1..3], ["lock".to_owned(), owner(&guard)]);
    assert!(row("plain")[3] == "1" && is_lease(&row("plain")[4]), "{rows:?}");
    assert_eq!(row("plain")[5], "-");
    assert_eq!(row("fair")[1..4], ["fair lock".to_owned(), owner(&held), "1".to_owned()]);
    assert_eq!(row("fair")[5], "2");
    assert!(row("shared")[2].ends_with(" +1"), "{rows:?}");
    assert_eq!((&*row("shared")[1], &*row("shared")[3]), ("read-write lock", "2"));

    let all = listed(url, &[&name("*")]);
    let names: Vec<_> = all.iter().map(|report| report["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fair", "plain", "shared"].map(name));
    let mut shown = shown(url, &name("fair"));
    for more in ["last_token", "conditions", "storage"] {
        assert!(shown.as_object_mut().unwrap().remove(more).is_some(), "{more}");
    }
    let mut listed_fair = all[0].clone();
    for report in [&mut shown, &mut listed_fair] {
        let left = report.as_object_mut().unwrap().remove("lease_left_seconds").unwrap();
        assert!(left.as_f64().is_some_and(|left| left > 500.0), "{left}");
    }
    assert_eq!(shown, listed_fair, "ls and show say the same");
    assert_eq!(shown["queue"].as_array().unwrap().len(), 2);
    assert_eq!(listed(url, &[&name("*"), "--limit", "2"]).len(), 2);
    assert_eq!(listed(url, &[&name("pla?n")]).len(), 1);
    assert!(listed(url, &[prefix]).is_empty(), "a pattern is for the whole name");

    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop((guard, held, readers));
    until("the end of the locks", || listed(url, &[&name("*")]).is_empty());
}

/// A guard of another owner than this task.
async fn spawned(lock: Lock) -> LockGuard {
    tokio::spawn(async move { lock.acquire().await.unwrap() }).await.unwrap()
}

/// The same for the kinds that etcd lacks.
async fn lists_permits_and_latches(url: &str, locks: &Locks, prefix: &str) {
    let name = |name: &str| format!("{prefix}{name}");
    let _permits = locks.semaphore(name("seats"), 5).permits(3).acquire().await.unwrap();
    locks.semaphore(name("unused"), 7).resize(7).await.unwrap();
    locks.latch(name("latch")).set_count(4).await.unwrap();
    let rows = table(url, &[&name("*")]);
    let row = |name: &str| &rows[&format!("{prefix}{name}")][1..];
    assert_eq!((&*row("seats")[0], &*row("seats")[2]), ("semaphore", "3/5"), "{rows:?}");
    assert!(is_lease(&row("seats")[3]), "{rows:?}");
    assert_eq!(row("unused"), ["semaphore", "-", "0/7", "-", "-"]);
    assert_eq!(row("latch"), ["latch", "-", "4", "-", "-"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    locks.latch(name("latch")).open().await.unwrap();
    assert_eq!(table(url, &[&name("*")]).len(), 2, "an open latch is not in use");
}

/// A client without a record, which is otherwise written a while after the first hold.
fn silent(backend: impl Backend) -> Locks {
    Locks::builder(backend).lease(LEASE).description(None).build().unwrap()
}

async fn redis_locks(url: &str) -> Locks {
    silent(RedisBackend::connect(url).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ls_lists_each_kind_on_redis() {
    let server = RedisServer::start();
    let url = server.url();
    assert!(listed(&url, &[]).is_empty());
    let locks = redis_locks(&url).await;
    lists_locks(&url, &locks, "a:").await;
    lists_permits_and_latches(&url, &locks, "b:").await;
    let _: i64 = server.query(&["HSET", "java", JAVA, "2"]).await;
    let _: i64 = server.query(&["PEXPIRE", "java", "590000"]).await;
    let _: String = server.query(&["SET", "counter", "17"]).await;
    let _: i64 = server.query(&["HSET", "user:7", "name", "x"]).await;
    let java = listed(&url, &["java"]);
    let holders = json!([{"owner": JAVA, "mode": "exclusive", "count": 2, "client": null}]);
    assert_eq!((java.len(), &java[0]["holders"]), (1, &holders));
    assert!(listed(&url, &["user:*"]).is_empty(), "a hash of somebody else is no lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn ls_lists_each_kind_on_a_redis_cluster() {
    let nodes = RedisCluster::start().await;
    let url = format!("redis+cluster://{}", nodes.addresses().join(","));
    let locks = redis_locks(&url).await;
    lists_locks(&url, &locks, "a:").await;
    lists_permits_and_latches(&url, &locks, "b:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ls_lists_each_kind_on_postgresql() {
    let server = PostgresServer::shared();
    let url = server.url();
    let backend = PostgresBackend::connect(&url).await.unwrap();
    let locks = silent(backend);
    lists_locks(&url, &locks, "ls:a:").await;
    lists_permits_and_latches(&url, &locks, "ls:b:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ls_lists_each_kind_on_etcd() {
    let cluster = EtcdCluster::shared();
    let members = cluster.addresses();
    let url = format!("etcd://{}/ls", members.join(","));
    let members = members.iter().map(|member| format!("http://{member}"));
    let backend = EtcdBackend::builder(members).prefix("ls").connect().await.unwrap();
    let locks = silent(backend);
    lists_locks(&url, &locks, "a:").await;
}

/// The record of a client is written when something was held or waited for about a second.
#[tokio::test(flavor = "multi_thread")]
async fn holders_and_waiters_are_processes_that_one_can_find() {
    let server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["a"]);
    let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await.is_ok() });
    let is_told = |report: &Value| {
        !report["holders"][0]["client"].is_null()
            && !report["waiting"].as_array().unwrap().is_empty()
    };
    until("the records", || listed(&url, &[]).iter().any(is_told));
    let report = shown(&url, "a");
    let client = &report["holders"][0]["client"];
    assert_eq!(client["program"], "lockctl", "{report}");
    assert_eq!(client["pid"], holder.pid(), "{report}");
    let wait = &report["waiting"][0];
    assert_eq!(wait["client"]["pid"], std::process::id(), "{report}");
    assert!(wait["site"].as_str().unwrap().contains("ls.rs:"), "{report}");
    assert!(wait["seconds"].as_f64().unwrap() > 1.0, "{report}");
    assert_eq!(report["waiters"], 1);
    let host = client["host"].as_str().unwrap();
    let row = &table(&url, &[])["a"];
    assert_eq!((&row[2], &*row[5]), (&format!("{host} lockctl {}", holder.pid()), "1"));
    let text = end(&url, &["show", "a"]).stdout;
    assert!(text.contains("WAITING FOR") && text.contains("ls.rs:"), "{text}");
    assert_eq!(holder.end().code, Some(0));
    assert!(waiting.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_owners_cannot_act_on_the_terminal() {
    let server = RedisServer::start();
    let url = server.url();
    let names = ["a\u{1b}]0;x\u{7}", "b\u{9b}2J\u{202e}\r\nc", "-rf", "{s}:*?[x]\\", "ü 漢字", " "];
    let owner = &format!("{JAVA}\u{1b}[2J\n");
    for name in names {
        let _: i64 = server.query(&["HSET", name, owner, "1"]).await;
        let _: i64 = server.query(&["PEXPIRE", name, "600000"]).await;
    }
    let found = listed(&url, &[]);
    let mut expected = names.to_vec();
    expected.sort_unstable();
    let found: Vec<_> = found.iter().map(|report| report["name"].as_str().unwrap()).collect();
    assert_eq!(found, expected, "JSON says what they are");
    for arguments in [&["ls"][..], &["ls", "--json"], &["show", names[0]], &["show", names[1]]] {
        let output = end(&url, arguments).stdout;
        let is_obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!output.is_empty() && !output.contains(is_obeyed), "{output:?}");
    }
    assert_eq!(listed(&url, &["{s}:\\*\\?[x]\\\\"]).len(), 1, "a backslash makes them plain");
}

/// Locks of all kinds, in the formats of this library and of Redisson, that nobody renews.
async fn ten_thousand(server: &RedisServer, url: &str) {
    let _quiet = QUIET.lock().await;
    let locks = redis_locks(url).await;
    let names = |kind: &'static str, count: usize| {
        (0..count).map(move |number| format!("{kind}:{number:04}"))
    };
    let mut guards = Vec::new();
    guards.extend(join_all(names("lock", 4000).map(|name| locks.lock(name).acquire())).await);
    guards.extend(join_all(names("fair", 1000).map(|name| locks.fair_lock(name).acquire())).await);
    let read = |name| locks.rw_lock(name).read().acquire();
    guards.extend(join_all(names("read", 1000).map(read)).await);
    let permits = |name| locks.semaphore(name, 5).permits(2).acquire();
    guards.extend(join_all(names("seats", 1000).map(permits)).await);
    assert!(guards.iter().all(Result::is_ok));
    let latches = names("latch", 1000).map(|name| {
        let latch = locks.latch(name);
        async move { latch.set_count(3).await }
    });
    assert!(join_all(latches).await.iter().all(Result::is_ok));
    for name in names("java", 2000) {
        let _: i64 = server.query(&["HSET", &name, JAVA, "1"]).await;
        let _: i64 = server.query(&["PEXPIRE", &name, "600000"]).await;
    }
    let places: Vec<String> = (0..1000).map(|number| format!("{JAVA}{number}")).collect();
    let mut queue = vec!["RPUSH", "redisson_lock_queue:{fair:0000}"];
    queue.extend(places.iter().map(String::as_str));
    let _: i64 = server.query(&queue).await;
    let mut times = vec!["ZADD", "redisson_lock_timeout:{fair:0000}"];
    times.extend(places.iter().flat_map(|place| ["9999999999999", place]));
    let _: i64 = server.query(&times).await;
    locks.abandon();
    drop(guards);
}

/// The CPU time that the server has used.
async fn cpu_seconds(server: &RedisServer) -> f64 {
    let info: String = server.query(&["INFO", "cpu"]).await;
    let of = |key: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_else(|| panic!("no {key}: {info}")).trim().parse::<f64>().unwrap()
    };
    of("used_cpu_sys:") + of("used_cpu_user:")
}

/// The server's time for this many scripts that read one hash, sent as `lockctl` sends its own
/// without a rate.
async fn short_scripts(server: &RedisServer, count: usize) -> f64 {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let before = cpu_seconds(server).await;
    for batch in (0..count).step_by(32) {
        let mut pipeline = redis::pipe();
        for number in batch..count.min(batch + 32) {
            let name = format!("lock:{:04}", number % 4000);
            pipeline.cmd("EVAL").arg("return redis.call('HGETALL', KEYS[1])").arg(1).arg(name);
        }
        let _: Vec<redis::Value> = pipeline.query_async(&mut connection).await.unwrap();
    }
    cpu_seconds(server).await - before
}

/// How often the state of a name was asked for: each time is one script. Steps of `SCAN` count
/// too.
async fn asked(server: &RedisServer) -> u64 {
    let info: String = server.query(&["INFO", "commandstats"]).await;
    let calls = info.lines().filter_map(|line| {
        let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_asked = matches!(command, "eval" | "evalsha" | "scan");
        is_asked.then(|| numbers.split(',').next().unwrap().parse::<u64>().unwrap())
    });
    calls.sum()
}

/// The share of the server's time is not measured at the default rate: where the processor sleeps
/// between requests, waking it takes most of the time, and an idle server is busy by that measure.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_ten_thousand_names_costs_the_server_little() {
    let server = RedisServer::start();
    let url = server.url();
    ten_thousand(&server, &url).await;
    let before = cpu_seconds(&server).await;
    let end = end(&url, &["ls", "--json", "--rate", "0"]);
    let list = cpu_seconds(&server).await - before;
    let short = short_scripts(&server, 50_000).await / 5.0;
    let ratio = list / short;
    let times =
        format!("the list took {list:.3} s of the server, {ratio:.1} times as many short scripts");
    println!("{times}");
    assert!(ratio < 12.0, "{times}");
    let reports: Vec<Value> = serde_json::from_str(&end.stdout).expect("JSON");
    let mut kinds: HashMap<&str, usize> = HashMap::new();
    for report in &reports {
        *kinds.entry(report["kind"].as_str().unwrap()).or_default() += 1;
    }
    let expected = [
        // A fair lock without waiters looks like any other.
        ("lock", 6999),
        ("fair lock", 1),
        ("read-write lock", 1000),
        ("semaphore", 1000),
        ("latch", 1000),
    ];
    assert_eq!(kinds, expected.into());
    let fair = reports.iter().find(|report| report["name"] == "fair:0000").unwrap();
    assert_eq!(fair["waiters"], 1000);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_of_ten_thousand_names_is_drawn() {
    let server = RedisServer::start();
    let url = server.url();
    ten_thousand(&server, &url).await;
    let tmux = crate::tmux::Tmux::start(&url, 80, 24);
    tmux.command(r#""$LOCKCTL" top --rate 0"#);
    tmux.until_within(Duration::from_secs(60), "a sweep", |screen| {
        screen.contains("10,000 names") && screen.contains("████ 1000")
    });
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn by_default_the_store_is_asked_a_hundred_times_a_second() {
    let server = RedisServer::start();
    let url = server.url();
    let locks = redis_locks(&url).await;
    let acquiring = (0..300).map(|number| locks.lock(format!("lock:{number:03}")).acquire());
    let guards = join_all(acquiring).await;
    assert!(guards.iter().all(Result::is_ok));
    locks.abandon();
    drop(guards);
    let (before, began) = (asked(&server).await, Instant::now());
    end(&url, &["ls"]);
    assert_rate("ls", asked(&server).await - before, began.elapsed());
    let tmux = crate::tmux::Tmux::start(&url, 80, 24);
    let (before, began) = (asked(&server).await, Instant::now());
    tmux.command(r#""$LOCKCTL" top"#);
    let mut requests = 0;
    while requests < 300 {
        assert!(began.elapsed() < Duration::from_secs(60), "{requests} requests in a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
        requests = asked(&server).await - before;
    }
    assert_rate("top", requests, began.elapsed());
}

/// Shows that there were enough requests to tell, and no more than a hundred a second, beside those
/// that are sent together at the beginning.
fn assert_rate(what: &str, requests: u64, time: Duration) {
    println!("{what}: {requests} requests in {time:?}");
    assert!(requests >= 300, "{what}: {requests} requests");
    let most = 10.0 + time.as_secs_f64() * 100.0;
    assert!((requests as f64) < most, "{what}: {requests} requests in {time:?}");
}

/// The name can be listed because of its queue, but the lock itself must not be read.
#[tokio::test]
async fn a_name_that_cannot_be_read_does_not_end_the_list() {
    let server = RedisServer::start();
    let locks = redis_locks(&server.url()).await;
    let _held = [
        locks.lock("ok:1").acquire().await.unwrap(),
        locks.fair_lock("hidden").acquire().await.unwrap(),
        locks.lock("ok:2").acquire().await.unwrap(),
    ];
    let waiting = waiter(locks.fair_lock("hidden"), 1).await;
    let rules = "SETUSER me on >hunter2 +@all &* ~ok:* ~{ok:* ~{hidden}:* ~redisson_* ~lockcore*";
    let words: Vec<&str> = ["ACL"].into_iter().chain(rules.split(' ')).collect();
    let _: String = server.query(&words).await;
    let url = server.url().replace("redis://", "redis://me:hunter2@");
    let list = end(&url, &["ls"]);
    assert_eq!((list.code, list.stderr.lines().count()), (Some(0), 1), "{list:?}");
    assert!(list.stderr.starts_with("lockctl: hidden could not be read: "), "{list:?}");
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(lines[1].starts_with("hidden  unreadable"), "{list:?}");
    assert!(lines[2].starts_with("ok:1    lock") && lines[3].starts_with("ok:2    lock"));
    let list = end(&url, &["ls", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&list.stdout).unwrap();
    assert!(list.code == Some(0) && listed[0]["error"].is_string(), "{list:?}");
    assert!(listed[1]["error"].is_null() && listed[1]["held"] == true, "{list:?}");
    assert!(!format!("{list:?}").contains("hunter2"));
    waiting.abort();
}

#[tokio::test]
async fn a_missing_right_is_told_with_one_piece_of_advice() {
    let server = RedisServer::start();
    let rules = ["ACL", "SETUSER", "me", "on", ">hunter2", "~*", "&*", "+@all", "-scan"];
    let _: String = server.query(&rules).await;
    let list = end(&server.url().replace("redis://", "redis://me:hunter2@"), &["ls"]);
    assert_eq!((list.code, list.stderr.lines().count()), (Some(69), 1), "{list:?}");
    assert!(list.stderr.contains("+scan"), "{list:?}");
    for once in ["grant", "can't run this command"] {
        assert_eq!(list.stderr.matches(once).count(), 1, "{list:?}");
    }
}

#[test]
fn a_server_that_ends_meanwhile_is_69() {
    let mut server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["a"]);
    assert_eq!(listed(&url, &[]).len(), 1);
    drop(holder);
    server.kill();
    let end = end(&url, &["ls"]);
    assert_eq!((end.code, end.stdout.as_str()), (Some(69), ""), "{end:?}");
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
}
