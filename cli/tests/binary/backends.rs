//! The same on every store that a URL can name.

use lockcore_testkit::{EtcdCluster, PostgresServer, RedisCluster, RedisSentinel, RedisServer};

use crate::program::{Running, code, end, is_free, shown};

/// The commands on the store at `url`.
fn works(url: &str) {
    let holder = Running::inside(url, &["-v", "a"]);
    assert!(!is_free(url, "a", &[]));
    let state = shown(url, "a");
    assert_eq!((state["kind"].as_str(), state["held"].as_bool()), (Some("lock"), Some(true)));
    assert!(state["lease_left_seconds"].as_f64().is_some_and(|left| left > 1.0), "{state}");
    assert_eq!(holder.end().code, Some(0));
    assert!(is_free(url, "a", &[]), "it was released");

    let nested = r#""$LOCKCTL" run -n a -- sh -c 'exit 6'"#;
    assert_eq!(code(url, &["run", "a", "--", "sh", "-c", nested]), 6);

    let reader = Running::inside(url, &["-s", "shared"]);
    assert!(is_free(url, "shared", &["-s"]) && !is_free(url, "shared", &["-x"]));
    assert_eq!(reader.end().code, Some(0));

    let fair = Running::inside(url, &["--fair", "fair"]);
    assert!(!is_free(url, "fair", &["--fair"]));
    let taken = end(url, &["release", "fair", "--force", "--yes"]);
    assert!(taken.stdout.starts_with("released fair"), "{taken:?}");
    assert!(is_free(url, "fair", &["--fair"]));
    assert_eq!(fair.end().code, Some(76), "its lock was taken away");

    let mut job = Running::script(url, &["--at-least", "60", "job"], "echo ran");
    assert_eq!(job.line(), "ran");
    job.signal("KILL");
    assert_eq!(job.end().signal, Some(9));
    assert!(shown(url, "job")["lease_left_seconds"].as_f64().is_some_and(|left| left > 40.0));
}

/// Commands that etcd lacks.
fn has_permits(url: &str) {
    let two = Running::inside(url, &["--permits", "2", "--of", "2", "seats"]);
    assert!(!is_free(url, "seats", &["--of", "2"]));
    assert_eq!(shown(url, "seats")["kind"], "semaphore");
    assert_eq!(two.end().code, Some(0));
}

#[test]
fn lockctl_works_on_redis() {
    let server = RedisServer::start();
    works(&server.url());
    has_permits(&server.url().replace("redis://", "valkey://"));
    let server = RedisServer::start();
    works(&format!("unix://{}", server.socket().display()));
}

#[tokio::test(flavor = "multi_thread")]
async fn lockctl_works_on_redis_with_sentinels() {
    let servers = RedisSentinel::start().await;
    let (addresses, name) = (servers.addresses().join(","), servers.master_name().to_owned());
    works(&format!("redis+sentinel://{addresses}/{name}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn lockctl_works_on_a_redis_cluster() {
    let nodes = RedisCluster::start().await;
    let url = format!("redis+cluster://{}", nodes.addresses().join(","));
    works(&url);
    has_permits(&url);
}

#[test]
fn lockctl_works_on_postgresql() {
    let server = PostgresServer::shared();
    works(&server.url());
    has_permits(&server.url());
}

#[test]
fn lockctl_works_on_etcd() {
    let cluster = EtcdCluster::shared();
    let url = format!("etcd://{}/lockctl", cluster.addresses().join(","));
    works(&url);
    let permits = end(&url, &["run", "--of", "2", "seats", "--", "true"]);
    assert_eq!(permits.code, Some(64), "{permits:?}");
}
