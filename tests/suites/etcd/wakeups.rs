//! Wake-ups: what they cost the servers, and streams that fall silent or carry very many names.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lockcore::{
    Lock, LockGuard, Locks, Mode,
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
    support::{connect, enters, keys, name, proxy, request, soon, until},
    waiting::LONG,
};

const CLIENTS: usize = 4;

/// The number of waiters of each client.
const WAITERS: usize = 250;

/// The number of waiters of each client in a queue, who ask all the time.
const QUEUED: usize = 100;

/// The server's metric of the requests that it has received.
const STARTED: &str = "grpc_server_started_total";

/// The number of requests sent to the server, as the server counts them, other than keep-alives; and
/// that of keep-alives at the same moment.
async fn requests_and_keep_alives(cluster: &EtcdCluster) -> (u64, u64) {
    let metrics = metrics(cluster, 0).await;
    let kept = sum(&metrics, STARTED, "grpc_method=\"LeaseKeepAlive\"");
    (sum(&metrics, STARTED, "") - kept, kept)
}

/// The number of watch streams opened at the first server.
async fn watches(cluster: &EtcdCluster) -> u64 {
    watches_at(cluster, 0).await
}

async fn watches_at(cluster: &EtcdCluster, member: usize) -> u64 {
    started(cluster, member, "grpc_method=\"Watch\"").await
}

/// The number of watch streams that are open at the first server.
async fn open_watches(cluster: &EtcdCluster) -> u64 {
    sum(&metrics(cluster, 0).await, "etcd_debugging_mvcc_watch_stream_total", "")
}

/// The number of requests of one kind sent to a server.
async fn started(cluster: &EtcdCluster, member: usize, kind: &str) -> u64 {
    sum(&metrics(cluster, member).await, STARTED, kind)
}

async fn metrics(cluster: &EtcdCluster, member: usize) -> String {
    let mut stream = TcpStream::connect(&cluster.addresses()[member]).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// The sum of the values of a metric whose labels contain `kind`.
fn sum(metrics: &str, metric: &str, kind: &str) -> u64 {
    let counts = metrics.lines().filter(|line| line.starts_with(metric));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    let mut counts = counts.filter(|line| line.contains(kind)).map(count).peekable();
    assert!(counts.peek().is_some(), "the server does not count");
    counts.sum()
}

/// Clients without records, since requests are counted.
fn without(backend: EtcdBackend) -> Locks {
    Locks::builder(backend).description(None).build().unwrap()
}

/// The waiters of several clients for the same lock.
struct Crowd {
    holder: LockGuard,
    waiting: JoinSet<()>,
    /// The number of requests in ten seconds, other than keep-alives.
    spent: u64,
    /// The number of keep-alives in ten seconds.
    kept: u64,
}

/// The waiters of four clients, for ten seconds.
async fn crowd(cluster: &EtcdCluster, waiters: usize, lock: fn(&Locks) -> Lock) -> Crowd {
    let holder = lock(&without(connect(cluster).await)).acquire().await.unwrap();
    let (mut waiting, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CLIENTS {
        clients.push(connect(cluster).await);
    }
    let locks: Vec<_> = clients.iter().cloned().map(without).collect();
    let client = cluster.client().await;
    let places = async || keys(&client).await.iter().filter(|key| key.contains("/wait/")).count();
    for number in 1..=waiters {
        for locks in &locks {
            let lock = lock(locks);
            waiting.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        // One after the other, because they write their places.
        let queued = async || [0, number * CLIENTS].contains(&places().await);
        until("all to have a place, or none", queued).await;
    }
    until("all clients to wait", async || {
        clients.iter().all(|client| client.watches_in_use() == 1)
    })
    .await;
    // The initial requests are over. A place is kept by a request every 1.7 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let before = requests_and_keep_alives(cluster).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = requests_and_keep_alives(cluster).await;
    let (spent, kept) = (after.0 - before.0, after.1 - before.1);
    assert!([0, waiters * CLIENTS].contains(&places().await), "places were lost");
    Crowd { holder, waiting, spent, kept }
}

/// The holder renews, and each client asks once by itself in ten seconds.
const KEEPING: u64 = 2 * 3 + 2 * 4 * (CLIENTS as u64);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll() {
    let cluster = EtcdCluster::start(1);
    let crowd = crowd(&cluster, WAITERS, |locks| locks.lock("order")).await;
    let Crowd { holder, mut waiting, spent, kept } = crowd;
    assert!(spent <= KEEPING && kept <= 2, "{spent} requests and {kept} keep-alives in 10 s");
    holder.release().await.unwrap();
    while let Some(waiter) = soon("everybody's turn", waiting.join_next()).await {
        waiter.unwrap();
    }
}

/// A place is kept by one keep-alive every 1.7 s. Only the first in the queue reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_in_a_queue_only_keep_their_places() {
    let cluster = EtcdCluster::start(1);
    let crowd = crowd(&cluster, QUEUED, |locks| locks.fair_lock("order")).await;
    let Crowd { holder, mut waiting, spent, kept } = crowd;
    let waiters = (CLIENTS * QUEUED) as u64;
    // On a busy machine, some are late with their second request.
    assert!(spent <= waiters / 2, "{spent} requests in 10 s");
    assert!(kept > 0 && kept <= 7 * waiters, "{kept} keep-alives in 10 s");
    holder.release().await.unwrap();
    for _ in 0..10 {
        soon("the next one's turn", waiting.join_next()).await.unwrap().unwrap();
    }
}

/// Each reader that leaves wakes the writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_does_not_look_up_every_reader() {
    const READERS: usize = 100;
    let cluster = EtcdCluster::start(1);
    let reading = connect(&cluster).await;
    let readers: Vec<_> = (0..READERS)
        .map(|number| request("order", &format!("reader {number}")).mode(Mode::Read))
        .collect();
    for reader in &readers {
        enters(&reading, reader).await;
    }
    let backend = connect(&cluster).await;
    let writer = without(backend.clone()).rw_lock("order").write();
    let writing = tokio::spawn(async move { writer.acquire().await });
    let client = cluster.client().await;
    until("the writer to wait", async || {
        let keys = keys(&client).await;
        backend.watches_in_use() == 1 && keys.iter().any(|key| key.contains("/wait/"))
    })
    .await;
    for reader in &readers {
        reading.release(&reader.release()).await.unwrap();
    }
    drop(soon("the writer", writing).await.unwrap().unwrap());
    let lookups = started(&cluster, 0, "grpc_method=\"LeaseTimeToLive\"").await;
    assert!(lookups <= READERS as u64 / 10, "{lookups} lookups");
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

/// A stopped member closes no connection, and nobody sends it a request. Returns how long after a
/// release behind it the waiter enters.
async fn behind_a_stopped_member() -> Duration {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let direct = EtcdBackend::connect(cluster.addresses()[1..].to_vec()).await.unwrap();
    let backend = connect(&cluster).await;
    let holder = request("order", "holder");
    enters(&direct, &holder).await;
    let locks = without(backend.clone());
    let waiting = tokio::spawn(async move { locks.lock("order").acquire().await });
    until("a waiter", async || watches(&cluster).await == 1).await;
    // The waiter asks once more when it is watched.
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.freeze(0);
    let silent = Instant::now();
    direct.release(&holder.release()).await.unwrap();
    let _guard = soon("the waiter", waiting).await.unwrap().unwrap();
    silent.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_behind_a_stopped_member_is_heard_of_within_two_seconds() {
    let mut times = Vec::new();
    // The machine may be busy with something else, but not each time.
    for _ in 0..3 {
        let time = behind_a_stopped_member().await;
        if time < Duration::from_secs(2) {
            return;
        }
        assert!(time < Duration::from_secs(4), "nothing was heard for {time:?}");
        times.push(time);
    }
    panic!("heard of after {times:?}");
}

/// A member that is cut off from the others answers pings, but hears of nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_member_that_requests_pass_over_is_replaced() {
    let mut cluster = EtcdCluster::start(3);
    // Without a leader, all requests would fail for a while.
    cluster.move_leader(2).await;
    let backend = connect(&cluster).await;
    let mut wakeups = waits(&backend, "order").await;
    let order = name("order");
    cluster.freeze(0);
    let given_up = tokio::time::timeout(Duration::from_millis(250), backend.inspect(&order)).await;
    cluster.thaw(0);
    assert!(given_up.is_err(), "{given_up:?}");
    soon("the wake-up", wakeups.woken()).await;
    assert!(watches_at(&cluster, 1).await > 0, "the stream was not opened at another member");
}

/// It is opened again for the next waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_needs_ends() {
    let cluster = EtcdCluster::start(1);
    let (backend, direct) = (connect(&cluster).await, connect(&cluster).await);
    drop(waits(&backend, "order").await);
    until("the end of the stream", async || open_watches(&cluster).await == 0).await;
    let holder = request("order", "holder");
    enters(&direct, &holder).await;
    let mut wakeups = waits(&backend, "order").await;
    direct.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
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
