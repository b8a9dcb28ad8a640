//! Behaviour of the client library that this crate depends on. No lock is involved.

use lockcore_testkit::{Feature, RedisCluster, server_lacks};
use redis::{AsyncConnectionConfig, Cmd, Value, cmd};

use crate::support::{soon, until};

/// When a slot moves away, the server ends the subscriptions to its sharded channels with an
/// unsolicited push. `MultiplexedConnection` of redis 1.8.1 takes it for the reply to the oldest
/// request in flight. From then on every request gets the reply to the previous one, until none is
/// in flight for a moment: a refused acquire is told that it was granted, because another one was.
///
/// For us this means that messages and commands never share a connection, that a connection with
/// sharded subscriptions is dropped at the first such push, and that a reply which cannot be
/// decoded ends its connection. If this test fails after an update of the crate, the bug is fixed
/// there; the separation stays anyway, because older versions remain in use.
#[tokio::test]
async fn redis_crate_takes_an_unsolicited_sunsubscribe_for_a_reply() {
    if server_lacks(Feature::ShardedChannels) {
        return;
    }
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let slot = cluster.slot_of("channel").await;
    let from = cluster.primary_of(slot).await;
    let node = cluster.node(from);
    // Two slots at the same node: these keys stay there.
    let [queue, other] = keys_at(&cluster, from).await;
    let _: String = node.query(&["SET", &other, "the right answer"]).await;

    let (pushes, mut pushed) = tokio::sync::mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(pushes).set_response_timeout(None);
    let client = redis::Client::open(format!("{}/?protocol=resp3", node.url())).unwrap();
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let _: Value = cmd("SSUBSCRIBE").arg("channel").query_async(&mut connection).await.unwrap();
    soon("the confirmation", pushed.recv()).await.unwrap();

    // In flight until something is pushed to the list.
    let waiting = tokio::spawn(ask(&connection, cmd("BLPOP").arg(&queue).arg(0)));
    until("the blocked request", || async {
        let clients: String = node.query(&["CLIENT", "LIST"]).await;
        clients.lines().any(|client| client.contains("cmd=blpop"))
    })
    .await;
    cluster.migrate_slot(slot, (from + 1) % 3).await;

    let Value::Push { kind, .. } = soon("the wrong reply", waiting).await.unwrap() else {
        panic!("the request in flight was not answered with the push");
    };
    assert_eq!(kind, redis::PushKind::SUnsubscribe);
    // The first request still waits at the server; its reply is given to the second one, and so on.
    let second = tokio::spawn(ask(&connection, cmd("GET").arg(&other)));
    let third = tokio::spawn(ask(&connection, &cmd("PING")));
    let _: i64 = node.query(&["RPUSH", &queue, "of the queue"]).await;
    let popped = Value::Array(vec![bulk(&queue), bulk("of the queue")]);
    assert_eq!(soon("the second reply", second).await.unwrap(), popped);
    assert_eq!(soon("the third reply", third).await.unwrap(), bulk("the right answer"));
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Sends a request as one of many users of the connection.
fn ask(
    connection: &redis::aio::MultiplexedConnection,
    request: &Cmd,
) -> impl Future<Output = Value> + use<> {
    let (mut connection, request) = (connection.clone(), request.clone());
    async move { request.query_async(&mut connection).await.unwrap() }
}

/// Two keys whose slots are at the node.
async fn keys_at(cluster: &RedisCluster, node: usize) -> [String; 2] {
    let mut found = Vec::new();
    for number in 0.. {
        let key = format!("key:{number}");
        if cluster.primary_of(cluster.slot_of(&key).await).await == node {
            found.push(key);
        }
        if found.len() == 2 {
            break;
        }
    }
    found.try_into().unwrap()
}
