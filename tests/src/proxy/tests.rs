use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use super::*;
use crate::RedisServer;

const SOON: Duration = Duration::from_secs(5);

async fn connect(proxy: &Proxy) -> redis::RedisResult<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(Duration::from_millis(500)));
    redis::Client::open(proxy.url())?.get_multiplexed_async_connection_with_config(&config).await
}

async fn count(connection: &mut MultiplexedConnection) -> redis::RedisResult<u64> {
    redis::cmd("EVAL").arg("return redis.call('INCR', 'n')").arg(0).query_async(connection).await
}

#[tokio::test]
async fn what_passes_is_late_cut_into_bytes_and_whole() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    let latency = Duration::from_millis(30);
    proxy.set(Conditions { latency, jitter: latency, slices: true, ..Conditions::default() });
    let start = Instant::now();
    assert_eq!(count(&mut connection).await.unwrap(), 1);
    assert!(start.elapsed() >= 2 * latency, "{:?}", start.elapsed());
    proxy.heal();
    assert_eq!(count(&mut connection).await.unwrap(), 2);
    assert_eq!(proxy.answers(), 2);
}

#[tokio::test]
async fn an_answer_is_lost_after_the_request_was_carried_out() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.lose_answer(2);
    assert_eq!(count(&mut connection).await.unwrap(), 1);
    count(&mut connection).await.unwrap_err();
    assert!(proxy.has_lost_answer());
    assert_eq!(proxy.lost_answers(), 1);
    let mut again = connect(&proxy).await.unwrap();
    assert_eq!(count(&mut again).await.unwrap(), 3, "the second was carried out");
}

#[tokio::test]
async fn a_cut_keeps_what_was_sent_until_it_is_healed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.set(Conditions { cut_to_server: true, ..Conditions::default() });
    assert!(count(&mut connection).await.unwrap_err().is_timeout());
    assert_eq!(server.query::<Option<u64>>(&["GET", "n"]).await, None);
    proxy.heal();
    let arrived = tokio::time::timeout(SOON, async {
        while server.query::<Option<u64>>(&["GET", "n"]).await.is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    arrived.await.unwrap();
}

#[tokio::test]
async fn a_request_arrives_after_its_client_has_gone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.delay_next_request(Duration::from_millis(700));
    count(&mut connection).await.unwrap_err();
    drop(connection);
    assert_eq!(server.query::<Option<u64>>(&["GET", "n"]).await, None);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.query::<Option<u64>>(&["GET", "n"]).await, Some(1));
}

#[tokio::test]
async fn connections_are_reset_at_once_or_after_some_bytes_and_refused() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.reset();
    count(&mut connection).await.unwrap_err();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.reset_after(2);
    count(&mut connection).await.unwrap_err();
    let mut connection = connect(&proxy).await.unwrap();
    assert_eq!(count(&mut connection).await.unwrap(), 2, "the first never arrived");
    proxy.set(Conditions { refuse: true, ..Conditions::default() });
    connect(&proxy).await.unwrap_err();
    proxy.heal();
    connect(&proxy).await.unwrap();
}

#[tokio::test]
async fn a_frozen_connection_is_silent_and_a_new_one_is_not() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let mut connection = connect(&proxy).await.unwrap();
    proxy.freeze(On::Messages);
    assert_eq!(count(&mut connection).await.unwrap(), 1);
    proxy.freeze(On::Commands);
    assert!(count(&mut connection).await.unwrap_err().is_timeout());
    let mut another = connect(&proxy).await.unwrap();
    assert_eq!(count(&mut another).await.unwrap(), 2, "the request before never arrived");
}

#[tokio::test]
async fn what_was_sent_arrives_after_its_connection_was_abandoned() {
    let server = RedisServer::start();
    let proxy = Proxy::start_opaque(server.port()).await.unwrap();
    let (mut one, mut other) = (connect(&proxy).await.unwrap(), connect(&proxy).await.unwrap());
    proxy.freeze(On::All);
    for connection in [&mut one, &mut other] {
        assert!(count(connection).await.unwrap_err().is_timeout());
    }
    proxy.abandon();
    let gone = count(&mut one).await.unwrap_err();
    assert!(gone.is_connection_dropped(), "{gone}");
    let mut again = connect(&proxy).await.unwrap();
    assert_eq!(count(&mut again).await.unwrap(), 1, "nothing has arrived");
    proxy.deliver().await;
    assert_eq!(server.query::<u64>(&["GET", "n"]).await, 3);
    assert_eq!(count(&mut again).await.unwrap(), 4, "a new connection is as before");
}
