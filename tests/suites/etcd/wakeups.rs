//! Waiting costs the servers next to nothing.

use std::time::Duration;

use lockcore::Locks;
use lockcore_testkit::EtcdCluster;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::support::{connect, soon, until};

const CLIENTS: usize = 4;
const WAITERS: usize = 250;

/// How many requests the server has been sent, by its own account.
async fn requests(cluster: &EtcdCluster) -> u64 {
    let mut stream = TcpStream::connect(&cluster.addresses()[0]).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let counts = text.lines().filter(|line| line.starts_with("grpc_server_started_total"));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    let total = counts.map(count).sum();
    assert!(total > 0, "the server does not count");
    total
}

/// A thousand waiters of four clients, for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    // The holder renews, and each client asks once itself in ten seconds.
    const KEEPING: u64 = 2 * 2 + 2 * 4 * (CLIENTS as u64);
    let cluster = EtcdCluster::start(1);
    let holder = Locks::new(connect(&cluster).await);
    let guard = holder.lock("order").acquire().await.unwrap();
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        let backend = connect(&cluster).await;
        let locks = Locks::new(backend.clone());
        for _ in 0..WAITERS {
            let lock = locks.lock("order");
            waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        clients.push(backend);
    }
    until("all clients to wait", async || {
        clients.iter().all(|client| client.watches_in_use() == 1)
    })
    .await;
    // The requests of the beginning are over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = requests(&cluster).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let spent = requests(&cluster).await - before;
    assert!(spent <= KEEPING, "{spent} requests in 10 s");
    guard.release().await.unwrap();
    while let Some(waiter) = soon("everybody's turn", waiting.join_next()).await {
        waiter.unwrap();
    }
}
