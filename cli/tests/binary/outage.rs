//! A store that is down, or silent, before the command runs.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use lockcore_testkit::RedisServer;

use crate::program::{LONG, Running, end};

#[tokio::test(flavor = "multi_thread")]
async fn waiting_goes_on_after_an_outage() {
    let mut server = RedisServer::start();
    let url = server.url();
    let holder = Running::inside(&url, &["--on-lost", "warn", "a"]);
    let mut waiter = Running::script(&url, &["--lease", "60", "a"], "echo entered");
    let began = Instant::now();
    while server.channels().await.is_empty() {
        assert!(began.elapsed() < LONG && !waiter.is_over(), "it does not wait");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.kill();
    // Longer than a waiting service tolerates by default.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!waiter.is_over(), "it waits on");
    server.restart();
    assert_eq!(waiter.line(), "entered", "the server has forgotten the first hold");
    assert_eq!(waiter.end().code, Some(0));
    drop(holder);
}

#[test]
fn the_time_to_wait_is_that_for_connecting_as_well() {
    // The system accepts the connection, but nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    let began = Instant::now();
    let refused = end(&url, &["run", "-w", "0.2", "a", "--", "true"]);
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.stderr.contains("did not answer within 1s"), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
