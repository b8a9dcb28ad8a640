//! Wake-ups: what they cost the servers, and streams that fall silent or carry very many names.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lockcore::{
    Locks,
    backend::{Backend, SubscribeRequest, Wakeups},
};
use lockcore_etcd::EtcdBackend;
use lockcore_testkit::EtcdCluster;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    support::{connect, enters, name, proxy, request, soon, until},
    waiting::LONG,
};

const CLIENTS: usize = 4;
const WAITERS: usize = 250;

/// The number of requests sent to the server, as the server counts them.
async fn requests(cluster: &EtcdCluster) -> u64 {
    started(cluster, "").await
}

/// The number of watch streams opened at the server.
async fn watches(cluster: &EtcdCluster) -> u64 {
    started(cluster, "grpc_method=\"Watch\"").await
}

/// The number of requests of one kind sent to the server.
async fn started(cluster: &EtcdCluster, kind: &str) -> u64 {
    let mut stream = TcpStream::connect(&cluster.addresses()[0]).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("grpc_server_started_total") && line.contains(kind));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    let total = counts.map(count).sum();
    assert!(total > 0, "the server does not count");
    total
}

/// A thousand waiters of four clients, for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    // The holder renews, and each client asks once by itself in ten seconds.
    const KEEPING: u64 = 2 * 2 + 2 * 4 * (CLIENTS as u64);
    // Without records: the requests are counted.
    let without = |backend| Locks::builder(backend).description(None).build().unwrap();
    let cluster = EtcdCluster::start(1);
    let holder = without(connect(&cluster).await);
    let guard = holder.lock("order").acquire().await.unwrap();
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        let backend = connect(&cluster).await;
        let locks = without(backend.clone());
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
    // The initial requests are over.
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

/// Waits for the ends of a lock's holds.
async fn waits(backend: &EtcdBackend, lock: &str) -> Box<dyn Wakeups> {
    let wait = SubscribeRequest::new(name(lock), request(lock, "waiter").hold);
    backend.subscribe(&wait).await.unwrap()
}

/// A stopped member closes no connection. Others start and stop waiting all the time, so that there
/// is always something to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_is_noticed_while_watches_come_and_go() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let [first, rest @ ..] = &cluster.addresses()[..] else { panic!("three members") };
    let direct = EtcdBackend::connect(rest.to_vec()).await.unwrap();
    let builder = EtcdBackend::builder([first.clone(), rest[0].clone(), rest[1].clone()]);
    let backend = builder.response_timeout(Duration::from_millis(1_500)).connect().await.unwrap();
    let holder = request("order", "holder");
    enters(&direct, &holder).await;
    let mut wakeups = waits(&backend, "order").await;
    let churning = tokio::spawn(async move {
        for number in 0.. {
            let lock = format!("other {number}");
            let wait = SubscribeRequest::new(name(&lock), request(&lock, "waiter").hold);
            let _ =
                tokio::time::timeout(Duration::from_millis(500), backend.subscribe(&wait)).await;
        }
    });
    cluster.freeze(0);
    let silent = Instant::now();
    direct.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
    // It takes less than 6 s. The connection itself ends after 9 s.
    assert!(silent.elapsed() < Duration::from_millis(8_500), "{:?}", silent.elapsed());
    churning.abort();
}

/// The answers to its pings are there when it resumes, and are read before it decides.
#[tokio::test]
async fn a_process_that_stood_still_keeps_its_stream() {
    let cluster = EtcdCluster::start(1);
    let proxy = proxy(&cluster).await;
    let builder = EtcdBackend::builder([format!("127.0.0.1:{}", proxy.port())]);
    let backend = builder.response_timeout(Duration::from_secs(1)).connect().await.unwrap();
    let _wakeups = waits(&backend, "order").await;
    let before = watches(&cluster).await;
    for _ in 0..4 {
        // The process has one thread, so nothing in it runs.
        std::thread::sleep(Duration::from_millis(3_500));
        // A lost stream is opened again within half a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    assert_eq!(watches(&cluster).await, before, "the stream was opened again");
}

/// Waits for all, in order. It may take any time, as long as one after the other completes.
async fn all<F: Future>(what: &str, futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let numbered = futures.enumerate();
    let mut left: FuturesUnordered<_> =
        numbered.map(|(number, future)| async move { (number, future.await) }).collect();
    let mut outputs = Vec::new();
    while let Some(output) = soon(what, left.next()).await {
        outputs.push(output);
    }
    outputs.sort_by_key(|(number, _)| *number);
    outputs.into_iter().map(|(_, output)| output).collect()
}

/// The server answers each watch, and stops reading while its answers are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_names_are_watched_again_after_a_stream_was_lost() {
    // The answers to fewer watches fit into the buffers in between.
    const NAMES: usize = 16_000;
    let cluster = EtcdCluster::start(1);
    let (proxy, direct) = (proxy(&cluster).await, connect(&cluster).await);
    let builder = EtcdBackend::builder([format!("127.0.0.1:{}", proxy.port())]);
    let backend = builder.response_timeout(3 * LONG).connect().await.unwrap();
    let locks: Vec<_> = (0..NAMES).map(|number| format!("order {number}")).collect();
    let subscribing = locks.iter().map(|lock| waits(&backend, lock));
    let mut wakeups = all("all subscriptions", subscribing).await;
    proxy.reset();
    all("a wake-up for each", wakeups.iter_mut().map(|wakeups| wakeups.woken())).await;
    // The watches are registered again, which wakes them.
    let last = request(&locks[NAMES - 1], "holder");
    enters(&direct, &last).await;
    direct.release(&last.release()).await.unwrap();
    soon("the wake-up", wakeups[NAMES - 1].woken()).await;
    drop(wakeups);
    assert_eq!(backend.watches_in_use(), 0);
    let mut again = waits(&backend, &locks[0]).await;
    let first = request(&locks[0], "holder");
    enters(&direct, &first).await;
    direct.release(&first.release()).await.unwrap();
    soon("the wake-up after all were ended", again.woken()).await;
}
