//! The groups of servers that the kit starts: they come up, follow their orders, and leave nothing
//! behind.

use std::process::{Command, Stdio};

use lockcore_testkit::{RedisCluster, RedisSentinel, RedisServer};

use crate::support::until;

/// The middle of the first primary's slots.
const SLOT: u16 = 2_730;

/// A key of [`SLOT`]'s primary at the start.
const KEY: &str = "invoice";

async fn write(server: &RedisServer, value: &str) {
    let _: String = server.query(&["SET", KEY, value]).await;
}

/// Writes, and returns how many of `replicas` acknowledge the write within `milliseconds`.
async fn write_and_wait(server: &RedisServer, replicas: u32, milliseconds: u32) -> u32 {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut request = redis::pipe();
    request.cmd("SET").arg(KEY).arg("1").ignore().cmd("WAIT").arg(replicas).arg(milliseconds);
    let (acknowledged,): (u32,) = request.query_async(&mut connection).await.unwrap();
    acknowledged
}

async fn read(server: &RedisServer) -> Option<String> {
    server.query(&["GET", KEY]).await
}

/// Completes when all of the processes are gone.
async fn ended(pids: &[u32]) {
    until("the end of all processes", || async {
        pids.iter().all(|pid| {
            let mut ask = Command::new("kill");
            let asked = ask.args(["-0", &pid.to_string()]).stderr(Stdio::null()).status();
            !asked.unwrap().success()
        })
    })
    .await;
}

#[tokio::test]
async fn sentinels_promote_a_replica_by_hand_and_after_a_crash() {
    let mut group = RedisSentinel::start().await;
    assert_eq!((group.primary().await, group.replicas().await), (0, vec![1, 2]));
    // A failover loses writes that have not reached the new primary, even a manual one.
    assert_eq!(write_and_wait(group.server(0), 2, 5_000).await, 2);

    let second = group.failover().await;
    assert_ne!(second, 0);
    assert_eq!(read(group.server(second)).await.as_deref(), Some("1"));
    assert_eq!(group.replicas().await.len(), 2, "the old primary is a replica now");

    group.server_mut(second).kill();
    let third = group.primary().await;
    assert_ne!(third, second);
    assert_eq!(read(group.server(third)).await.as_deref(), Some("1"));
    group.server_mut(second).restart();
    assert!(group.replicas().await.contains(&second));
}

#[tokio::test]
async fn sentinels_replace_a_frozen_primary_even_if_one_of_them_is_gone() {
    let mut group = RedisSentinel::builder().replicas(1).start().await;
    group.sentinel_mut(0).stop();
    group.server(0).freeze();
    assert_eq!(group.primary().await, 1);
    group.server(0).thaw();
    assert_eq!(group.replicas().await, [0]);
}

#[tokio::test]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let builder = RedisSentinel::builder().replicas(1).password("servers");
    let group = builder.sentinel_password("Sentinels").start().await;
    for (server, password) in [(group.server(0), "servers"), (group.sentinel(0), "Sentinels")] {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let refused = redis::cmd("PING").query_async::<String>(&mut connection).await;
        assert_eq!(refused.unwrap_err().code(), Some("NOAUTH"));
        let _: String =
            redis::cmd("AUTH").arg(password).query_async(&mut connection).await.unwrap();
    }
    assert_eq!(group.failover().await, 1);
}

#[tokio::test]
async fn a_frozen_replica_lags_until_it_goes_on() {
    let group = RedisSentinel::builder().replicas(1).start().await;
    group.server(1).freeze();
    assert_eq!(write_and_wait(group.server(0), 1, 50).await, 0);
    group.server(1).thaw();
    until("the write on the replica", || async { read(group.server(1)).await.is_some() }).await;
}

#[tokio::test]
async fn a_replica_takes_over_by_hand_and_after_a_crash() {
    let mut cluster = RedisCluster::start().await;
    assert_eq!(cluster.primary_of(SLOT).await, 0);
    let [replica] = cluster.replicas_of(0).await.try_into().unwrap();

    cluster.failover(replica).await;
    assert_eq!(cluster.primary_of(SLOT).await, replica);
    assert_eq!(cluster.replicas_of(replica).await, [0]);

    cluster.node_mut(replica).kill();
    assert_eq!(cluster.primary_of(SLOT).await, 0);
    cluster.settle().await;
    cluster.node_mut(replica).restart();
    assert_eq!(cluster.replicas_of(0).await, [replica]);
}

#[tokio::test]
async fn a_slot_moves_to_and_fro_with_its_keys() {
    let cluster = RedisCluster::builder().replicas_each(0).password("secret").start().await;
    let slot = cluster.slot_of(KEY).await;
    let from = cluster.primary_of(slot).await;
    let to = (from + 1) % 3;
    write(cluster.node(from), "1").await;

    cluster.migrate_slot(slot, to).await;
    assert_eq!(cluster.primary_of(slot).await, to);
    assert_eq!(read(cluster.node(to)).await.as_deref(), Some("1"));
    let moved = cluster.node(from).try_query::<String>(&["GET", KEY]).await.unwrap_err();
    assert_eq!(moved.redirect_node(), Some((cluster.addresses()[to].as_str(), slot)));

    cluster.migrate_slot(slot, from).await;
    assert_eq!(read(cluster.node(from)).await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_migration_stays_where_it_is_until_it_goes_on_or_is_cancelled() {
    let cluster = RedisCluster::builder().replicas_each(0).start().await;
    let slot = cluster.slot_of(KEY).await;
    let from = cluster.primary_of(slot).await;
    write(cluster.node(from), "1").await;

    let migration = cluster.begin_migration(slot, (from + 1) % 3).await;
    assert_eq!(read(cluster.node(from)).await.as_deref(), Some("1"), "still at the source");
    assert_eq!(cluster.move_keys(&migration).await, 1);
    let asked = cluster.node(from).try_query::<String>(&["GET", KEY]).await.unwrap_err();
    assert_eq!(asked.code(), Some("ASK"));

    cluster.cancel_migration(migration).await;
    assert_eq!(cluster.primary_of(slot).await, from);
    assert_eq!(read(cluster.node(from)).await.as_deref(), Some("1"), "moved back");
}

#[tokio::test]
async fn nodes_come_and_go() {
    let mut cluster = RedisCluster::builder().replicas_each(0).start().await;
    let added = cluster.add_node().await;
    cluster.migrate_slot(SLOT, added).await;
    assert_eq!(cluster.primary_of(SLOT).await, added);
    let replica = cluster.add_node().await;
    cluster.replicate(replica, added).await;
    assert_eq!(cluster.replicas_of(added).await, [replica]);

    cluster.migrate_slot(SLOT, 0).await;
    cluster.remove_node(replica).await;
    cluster.remove_node(added).await;
    let nodes: String = cluster.node(0).query(&["CLUSTER", "NODES"]).await;
    assert_eq!(nodes.lines().count(), 3);
}

#[tokio::test]
async fn a_test_that_panics_leaves_no_process() {
    let (send, receive) = tokio::sync::oneshot::channel();
    let test = tokio::spawn(async move {
        let group = RedisSentinel::builder().replicas(1).start().await;
        let cluster = RedisCluster::builder().replicas_each(0).start().await;
        group.server(1).freeze();
        let servers = (0..2).map(|index| group.server(index));
        let sentinels = (0..3).map(|index| group.sentinel(index));
        let nodes = (0..3).map(|index| cluster.node(index));
        let processes = servers.chain(sentinels).chain(nodes);
        send.send(processes.map(RedisServer::pid).collect::<Vec<u32>>()).unwrap();
        panic!("as a test that fails");
    });
    assert!(test.await.unwrap_err().is_panic());
    let pids = receive.await.unwrap();
    assert_eq!(pids.len(), 8);
    ended(&pids).await;
}
