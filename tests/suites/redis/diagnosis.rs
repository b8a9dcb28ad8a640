//! What a service can diagnose about its servers at startup.

use std::time::Duration;

use lockcore::{BackendErrorKind, Diagnosis, Severity};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    cluster,
    errors::{LEAST_RIGHTS, connect_as, set_user},
    support::{assert_nothing_left, connect, soon},
};

fn ids(diagnosis: &Diagnosis) -> Vec<(&'static str, Severity)> {
    // A busy machine may be slow, and old versions are not under test.
    let findings = diagnosis.findings().iter();
    let findings = findings.filter(|finding| !matches!(finding.id(), "latency" | "version"));
    findings.map(|finding| (finding.id(), finding.severity())).collect()
}

#[tokio::test]
async fn a_connected_backend_finds_what_is_wrong_and_leaves_nothing() {
    let server = RedisServer::start_with(&["--requirepass", "c4n4ry"]);
    let url = format!("redis://:c4n4ry@127.0.0.1:{}", server.port());
    let backend = RedisBackend::builder().url(url).key_prefix("shop:").connect().await.unwrap();
    let diagnosis = backend.diagnose().await.unwrap();
    assert_eq!(ids(&diagnosis), [("persistence", Severity::Problem)]);
    assert!(!format!("{diagnosis:?}").contains("c4n4ry"));
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]).await, Vec::<String>::new());

    let _: String = server.query(&["CONFIG", "SET", "appendonly", "yes"]).await;
    assert_eq!(ids(&backend.diagnose().await.unwrap()), []);
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn the_documented_rights_are_no_problem() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start_with(&["--appendonly", "yes"]);
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let backend = connect_as(&server, "worker").await.unwrap();
    let found = ids(&backend.diagnose().await.unwrap());
    assert_eq!(found, [("config", Severity::Unknown), ("names", Severity::Unknown)]);

    // And one of them is.
    set_user(&server, "worker", &LEAST_RIGHTS.replace("+hset ", "-hset ")).await;
    let found = ids(&backend.diagnose().await.unwrap());
    assert_eq!(found[0], ("rights", Severity::Problem), "{found:?}");
    let left: Vec<String> = server.query(&["KEYS", "*"]).await;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_server_that_falls_silent_is_an_error_in_time() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder()
        .url(server.url())
        .response_timeout(Duration::from_millis(300))
        .connect_timeout(Duration::from_millis(300))
        .connect()
        .await
        .unwrap();
    server.freeze();
    let error = soon("the end of the diagnosis", backend.diagnose()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
}

#[tokio::test]
async fn a_diagnosis_that_is_dropped_leaves_no_connection() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let connections = || async {
        let list: String = server.query(&["CLIENT", "LIST"]).await;
        list.lines().count()
    };
    let before = connections().await;
    for _ in 0..20 {
        // At an arbitrary point.
        let _ = tokio::time::timeout(Duration::from_millis(3), backend.diagnose()).await;
    }
    let all_closed = async {
        while connections().await > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the end of the connections", all_closed).await;
    assert_nothing_left(&server).await;
}

#[tokio::test]
async fn the_nodes_of_a_cluster_are_examined() {
    let cluster = cluster::shared().await;
    let backend = RedisBackend::cluster(cluster.addresses()).connect().await.unwrap();
    let diagnosis = backend.diagnose().await.unwrap();
    let persistence = diagnosis.findings().iter().find(|f| f.id() == "persistence").unwrap();
    for address in cluster.addresses() {
        assert!(persistence.seen().contains(&address), "{persistence}");
    }
    assert!(diagnosis.findings().iter().all(|f| f.id() != "rights"), "{diagnosis:?}");
}
