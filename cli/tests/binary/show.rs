//! `lockctl show`: the data that a store has of a name.

use std::time::Duration;

use lockcore::{
    LockName, Locks,
    backend::{Backend, ConditionId},
};
use lockcore_postgres::PostgresBackend;
use lockcore_redis::RedisBackend;
use lockcore_testkit::{EtcdCluster, PostgresServer, RedisServer};
use serde_json::{Value, json};

use crate::program::{Running, end, is_free, shown};

/// A `lockctl run` of the name, and its fencing token.
fn holder(url: &str, name: &str) -> (Running, u64) {
    let script = "echo $LOCKCTL_TOKEN; cat > /dev/null";
    let mut holder = Running::script(url, &["--lease", "600", name], script);
    let token = holder.line().trim().parse().expect("a token");
    (holder, token)
}

/// The stored entries of `kind`.
fn stored<'a>(shown: &'a Value, kind: &str) -> Vec<&'a Value> {
    let entries = shown["storage"].as_array().expect("the store tells");
    entries.iter().filter(|entry| entry["kind"] == kind).collect()
}

fn has_lease(entry: &Value) -> bool {
    entry["left_seconds"].as_f64().is_some_and(|left| left > 500.0 && left <= 601.0)
}

/// Two waiters for a condition, until they are notified or a minute has passed.
async fn waiters(backend: &impl Backend, condition: &ConditionId) {
    for waiter in ["a", "b"] {
        let conditions = backend.conditions().unwrap();
        conditions.join(condition, waiter, Duration::from_secs(60)).await.unwrap();
    }
}

fn condition(lock: &str, name: &str) -> ConditionId {
    ConditionId::new(LockName::new(lock).unwrap(), LockName::new(name).unwrap())
}

#[tokio::test]
async fn show_tells_the_token_the_keys_and_the_conditions_on_redis() {
    let server = RedisServer::start();
    let url = server.url();
    let (_holder, token) = holder(&url, "a");
    let backend = RedisBackend::connect(&url).await.unwrap();
    waiters(&backend, &condition("a", "full\u{7}")).await;
    let report = shown(&url, "a");
    assert_eq!(report["last_token"], token);
    assert_eq!(report["conditions"], json!([]), "Redis cannot list them");
    let [hold] = stored(&report, "hold")[..] else { panic!("{report}") };
    assert!(hold["key"] == "a" && has_lease(hold), "{report}");
    let [last] = stored(&report, "last token")[..] else { panic!("{report}") };
    assert_eq!((&last["key"], &last["number"]), (&json!("redisson_lock_token:{a}"), &json!(token)));
    let asked = ["show", "a", "--condition", "full\u{7}", "--condition", "other", "--json"];
    let report: Value = serde_json::from_str(&end(&url, &asked).stdout).unwrap();
    assert_eq!(report["conditions"], json!([{ "name": "full\u{7}", "waiters": 2 }]));
    let text = end(&url, &asked[..4]).stdout;
    for part in ["condition   full\\u{7}: 2 wait", "STORED", "TIME TO LIVE", &token.to_string()] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains('\u{7}'));
}

#[tokio::test]
async fn show_tells_the_token_the_rows_and_the_conditions_on_postgresql() {
    let server = PostgresServer::shared();
    let url = server.url();
    let (_holder, token) = holder(&url, "show:a");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    waiters(&backend, &condition("show:a", "full")).await;
    let report = shown(&url, "show:a");
    assert_eq!(report["last_token"], token);
    assert_eq!(report["conditions"], json!([{ "name": "full", "waiters": 2 }]));
    let [hold] = stored(&report, "hold")[..] else { panic!("{report}") };
    assert!(hold["number"] == token && has_lease(hold), "{report}");
    let locks = Locks::new(backend);
    locks.latch("show:gate").set_count(3).await.unwrap();
    let report = shown(&url, "show:gate");
    let [latch] = stored(&report, "latch")[..] else { panic!("{report}") };
    assert_eq!((&latch["key"], &latch["number"]), (&json!("latch"), &json!(3)));
    assert_eq!(shown(&url, "show:unused")["storage"], json!([]));
}

#[test]
fn show_tells_the_token_and_the_keys_on_etcd() {
    let cluster = EtcdCluster::shared();
    let url = format!("etcd://{}/show", cluster.addresses().join(","));
    let (_holder, token) = holder(&url, "a/b");
    let report = shown(&url, "a/b");
    assert_eq!(report["last_token"], token);
    let [hold] = stored(&report, "hold")[..] else { panic!("{report}") };
    assert!(hold["number"] == token && has_lease(hold), "{report}");
    assert!(hold["key"].as_str().unwrap().starts_with("show/a%2Fb/lock/hold/"), "{report}");
    assert_eq!(shown(&url, "a")["storage"], json!([]));
}

#[tokio::test]
async fn a_user_without_the_right_to_the_keys_is_shown_the_rest() {
    let server = RedisServer::start();
    let url = server.url();
    // The token stays. Reading it needs a right that a free lock does not.
    assert!(is_free(&url, "a", &[]));
    let rules = ["ACL", "SETUSER", "me", "on", ">hunter2", "~*", "&*", "+@all", "-pttl"];
    let _: String = server.query(&rules).await;
    let secret = url.replace("redis://", "redis://me:hunter2@");
    let end = end(&secret, &["show", "a", "--json"]);
    assert_eq!((end.code, end.stderr.lines().count()), (Some(0), 1), "{end:?}");
    assert!(end.stderr.contains("what is stored is left out: "), "{end:?}");
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
    let report: Value = serde_json::from_str(&end.stdout).unwrap();
    assert!(report["storage"].is_null() && report["held"] == false, "{report}");
}
