//! `lockctl bench`, which leaves nothing behind.

use lockcore_testkit::{EtcdCluster, PostgresServer, RedisCluster, RedisServer};
use serde_json::Value;

use crate::program::{QUIET, Running, end, lockctl, until};

/// A run of half a second with 8 tasks, and its report.
fn report(url: &str) -> Value {
    let arguments = ["bench", "--tasks", "8", "--seconds", "500ms", "--json"];
    let end = end(url, &arguments);
    assert_eq!(end.code, Some(0), "{end:?}");
    let report: Value = serde_json::from_str(&end.stdout).expect("JSON");
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).expect(path);
    assert!(number("/pairs") >= 8.0 && number("/seconds") >= 0.5, "{report}");
    let rate = number("/pairs") / number("/seconds");
    assert!((number("/pairs_per_second") - rate).abs() < 1.0, "{report}");
    for times in ["/acquire_ms", "/release_ms"] {
        let at = |name: &str| number(&format!("{times}/{name}"));
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{report}");
    }
    let counted = report["histogram"].as_array().unwrap().iter();
    let counted: u64 = counted.map(|bucket| bucket["acquire"].as_u64().unwrap()).sum();
    assert_eq!(Some(counted), report["pairs"].as_u64(), "each pair is in one bucket: {report}");
    report
}

async fn assert_empty(server: &RedisServer) {
    let left: Vec<String> = server.query(&["KEYS", "*"]).await;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_measures_redis_and_leaves_nothing() {
    let server = RedisServer::start();
    assert_eq!(report(&server.url())["tasks"], 8);
    let text = end(&server.url(), &["bench", "--seconds", "0.3"]);
    assert!(text.stdout.contains("a second; 1 task\n") && text.stdout.contains('#'), "{text:?}");
    assert_empty(&server).await;

    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    report(&format!("redis+cluster://{}", cluster.addresses().join(",")));
    for node in 0..3 {
        assert_empty(cluster.node(node)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_bench_with_a_report_and_leaves_nothing() {
    let server = RedisServer::start();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let arguments = ["bench", "--tasks", "50", "--seconds", "60", "--json"];
        let running = Running::start(lockctl(&server.url(), &arguments));
        let mut calls = 0;
        while calls < 100 {
            calls = server.client_commands().await;
        }
        running.signal(signal);
        let end = running.end();
        assert_eq!(end.code, Some(code), "{end:?}");
        let report: Value = serde_json::from_str(&end.stdout).expect("JSON");
        assert!(report["pairs"].as_u64().is_some_and(|pairs| pairs > 0), "{report}");
        assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds < 50.0), "{report}");
        assert_empty(&server).await;
        let _: String = server.query(&["CONFIG", "RESETSTAT"]).await;
    }
}

/// Nor does it hang if the store does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_bench_on_a_store_that_is_silent() {
    let server = RedisServer::start();
    let running =
        Running::start(lockctl(&server.url(), &["bench", "--tasks", "2", "--seconds", "60"]));
    let mut calls = 0;
    while calls < 100 {
        calls = server.client_commands().await;
    }
    server.freeze();
    running.signal("TERM");
    running.signal("TERM");
    let end = running.end();
    assert!(end.code.is_some_and(|code| code == 143 || code == 69), "{end:?}");
    server.thaw();
    until("the end of its connections", || {
        crate::program::end(&server.url(), &["show", "a"]).code == Some(0)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_measures_the_other_stores_and_leaves_nothing() {
    let server = PostgresServer::start();
    report(&server.url());
    let tables = "SELECT table_name FROM information_schema.tables \
                  WHERE table_schema = 'lockcore' \
                  AND table_name NOT IN ('migration', 'swept', 'server')";
    let tables = server.query(tables).await;
    assert!(!tables.is_empty());
    for table in tables {
        let left = server.query(&format!("SELECT * FROM lockcore.\"{}\"", table[0])).await;
        assert!(left.is_empty(), "{}: {left:?}", table[0]);
    }

    let cluster = EtcdCluster::start(1);
    report(&format!("etcd://{}", cluster.addresses().join(",")));
    let mut client = cluster.client().await;
    let everything = etcd_client::GetOptions::new().with_all_keys();
    let left = client.get("", Some(everything)).await.unwrap();
    assert_eq!(left.count(), 0, "{:?}", left.kvs());
}

/// A thousand histograms would take hundreds of megabytes.
#[test]
#[cfg(target_os = "linux")]
fn a_thousand_tasks_take_little_memory() {
    let _quiet = QUIET.blocking_lock();
    let server = RedisServer::start();
    let arguments = ["bench", "--tasks", "1000", "--seconds", "60", "--json"];
    let running = Running::start(lockctl(&server.url(), &arguments));
    let status = format!("/proc/{}/status", running.pid());
    let most = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        line.strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    };
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    until("a token for each task", || {
        redis::cmd("DBSIZE").query::<u64>(&mut connection).unwrap() >= 1000
    });
    let most = most();
    assert!(most < 100_000, "{most} kB");
    running.signal("INT");
    assert_eq!(running.end().code, Some(130));
}
