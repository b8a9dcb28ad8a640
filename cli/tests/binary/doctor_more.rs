//! `lockctl doctor` on servers that are full, slow to start, or split, and on hosts whose clocks
//! differ.

use std::time::{Duration, Instant};

use lockcore_testkit::{RedisCluster, RedisSentinel, RedisServer};
use tokio::net::TcpStream;

use crate::{
    doctor::{finds, found, server},
    program::{LONG, end},
};

async fn set(server: &RedisServer, setting: &str, value: &str) {
    let _: String = server.query(&["CONFIG", "SET", setting, value]).await;
}

/// A library that shows a program another time of day. The packaged ones allocate memory for that,
/// and `redis-server` asks for the time while it sets up its allocator.
#[cfg(target_os = "linux")]
const OTHER_TIME: &str = r#"#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long off;
__attribute__((constructor)) static void begin(void) {
    const char *value = getenv("CLOCK_OFF");
    off = value ? atol(value) : 0;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += off;
    return result;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

#[test]
#[cfg(target_os = "linux")]
fn a_server_whose_clock_is_an_hour_off_is_found() {
    let folder = RedisServer::start();
    let (source, library) = (folder.directory().join("time.c"), folder.directory().join("time.so"));
    std::fs::write(&source, OTHER_TIME).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O", "-o"]).args([&library, &source]);
    let compiled = compiler.output().expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    for (off, expected) in [("3600", "ahead of"), ("-3600", "behind")] {
        let environment = [("LD_PRELOAD", library.to_str().unwrap()), ("CLOCK_OFF", off)];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let options = ["--appendonly", "yes"];
        let server = RedisServer::try_start_with_environment(&options, &environment).unwrap();
        finds(&server.url(), "problem clock");
        let text = end(&server.url(), &["doctor"]);
        assert!(text.stdout.contains(&format!("{expected} that of this host")), "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fills_up_is_found() {
    let server = server(&[]);
    // So large that the memory of a connection does not matter. The server makes it, so that no
    // buffer of a client has the same size for a moment.
    let _: u64 = server.query(&["SETRANGE", "cached", &(20 << 20).to_string(), "x"]).await;
    let told: String = server.query(&["INFO", "memory"]).await;
    let used = told.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    for (percent, expected) in [(82, "advice memory"), (95, "problem memory")] {
        set(&server, "maxmemory", &(used * 100 / percent).to_string()).await;
        finds(&server.url(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_few_connections_left_is_found() {
    let server = server(&["--maxclients", "40"]);
    let mut idle = Vec::new();
    for _ in 0..36 {
        idle.push(TcpStream::connect(server.address()).await.unwrap());
    }
    finds(&server.url(), "problem clients");
    drop(idle);
    let began = Instant::now();
    while found(&server.url()).1.iter().any(|one| one.contains("clients")) {
        assert!(began.elapsed() < LONG, "they are not closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data_is_found() {
    let server = RedisServer::start_with(&["--save", "3600 1"]);
    let _: redis::Value = server.query(&["DEBUG", "POPULATE", "4000"]).await;
    // 40 s for all of them; it answers after each.
    set(&server, "key-load-delay", "10000").await;
    set(&server, "loading-process-events-interval-bytes", "1024").await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    tokio::spawn(async move {
        let _ = redis::cmd("DEBUG").arg("RELOAD").query_async::<()>(&mut connection).await;
    });
    let began = Instant::now();
    loop {
        let told: String = server.query(&["INFO", "persistence"]).await;
        if told.contains("loading:1") {
            break;
        }
        assert!(began.elapsed() < LONG, "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (code, found) = found(&server.url());
    assert_eq!(code, 1);
    assert!(found.contains(&"problem loading".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_nobody_has_are_found() {
    let options = ["--appendonly", "yes", "--cluster-require-full-coverage", "no"];
    let cluster = RedisCluster::builder().replicas_each(0).options(&options).start().await;
    let slot = cluster.slot_of("a").await;
    let owner = cluster.primary_of(slot).await;
    for node in 0..3 {
        let told = ["CLUSTER", "DELSLOTS", &slot.to_string()];
        let _: String = cluster.node(node).query(&told).await;
    }
    let (code, found) = found(&cluster.node(owner).url());
    assert_eq!(code, 1);
    assert!(found.contains(&"problem cluster-slots".to_owned()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_without_replicas_and_sentinels_that_disagree_are_found() {
    let options = ["--appendonly", "yes"];
    let group = RedisSentinel::builder().replicas(0).options(&options).start().await;
    let name = group.master_name().to_owned();
    let url = format!("redis+sentinel://{}/{name}", group.addresses().join(","));
    let (_, before) = found(&url);
    assert!(before.iter().any(|finding| finding.ends_with(" no-replica")), "{before:?}");
    assert!(!before.contains(&"problem sentinels-disagree".to_owned()), "{before:?}");

    let other = server(&[]);
    let port = other.port().to_string();
    let sentinel = group.sentinel(0);
    let _: String = sentinel.query(&["SENTINEL", "REMOVE", &name]).await;
    let watch = ["SENTINEL", "MONITOR", &name, "127.0.0.1", &port, "2"];
    let _: String = sentinel.query(&watch).await;
    let (code, after) = found(&url);
    assert_eq!(code, 1);
    assert!(after.contains(&"problem sentinels-disagree".to_owned()), "{after:?}");
}
