//! Redis servers that are lost while clients work with the default lease: nobody waits for long.

use lockcore::{Lock, Locks};
use lockcore_testkit::RedisServer;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use crate::{
    LEASE, SECOND,
    servers::{LONGEST, Work, quorum, servers},
    waiting::{LONG, soon, until},
    wakeups::{commands, subscribers},
};

async fn client(servers: &[RedisServer]) -> Locks {
    Locks::builder(quorum(servers, LEASE).await).retry_for(LONG).build().unwrap()
}

/// A waiter, which returns when it was granted the lock.
fn waits(lock: Lock) -> JoinHandle<Instant> {
    tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        let granted = Instant::now();
        guard.release().await.unwrap();
        granted
    })
}

/// The delay of the machine itself shows in the answers of a server that is well.
async fn delay(well: &RedisServer) -> std::time::Duration {
    let start = Instant::now();
    well.query::<String>(&["PING"]).await;
    start.elapsed()
}

/// Two of five servers are lost while there are a holder of a lock with a waiter, and continuous
/// work.
async fn two_of_five(lose: impl Fn(&mut RedisServer)) {
    let mut servers = servers::<5>();
    let [one, other] = [client(&servers).await, client(&servers).await];
    let clients = [quorum(&servers, LEASE).await, quorum(&servers, LEASE).await];
    let mut work = Work::of(clients, LEASE);
    let mut held = Vec::new();
    for number in 0..10 {
        let name = format!("held:{number}");
        let guard = one.lock(&name).acquire().await.unwrap();
        held.push((guard, waits(other.lock(&name))));
    }
    work.goes_on_for(SECOND / 2, &servers).await;
    let (lost, well) = servers.split_at_mut(2);
    lost.iter_mut().for_each(lose);
    for (number, (guard, waiter)) in held.into_iter().enumerate() {
        let (start, mut late) = (Instant::now(), delay(&well[0]).await);
        let fresh = other.lock(format!("fresh:{number}"));
        timeout(LONGEST + LONG, fresh.acquire()).await.unwrap().unwrap().release().await.unwrap();
        late += delay(&well[0]).await;
        assert!(start.elapsed() <= LONGEST + late, "a fresh lock took {:?}", start.elapsed());
        let start = Instant::now();
        guard.release().await.unwrap();
        let granted = soon("the next holder", waiter).await.unwrap();
        late += delay(&well[0]).await;
        assert!(granted - start <= LONGEST + late, "a held lock took {:?}", granted - start);
        work.goes_on_for(SECOND / 4, well).await;
    }
    work.goes_on_for(3 * SECOND, well).await;
    work.ends().await;
}

#[tokio::test]
async fn two_of_five_are_stopped_under_work() {
    two_of_five(|server| server.freeze()).await;
}

#[tokio::test]
async fn two_of_five_are_killed_under_work() {
    two_of_five(RedisServer::kill).await;
}

/// What was on its way to it is carried out when it goes on.
#[tokio::test]
async fn one_of_three_is_stopped_under_work_and_goes_on() {
    let servers = servers::<3>();
    let clients = [(); 3].map(|()| quorum(&servers, LEASE));
    let mut work = Work::of(futures_util::future::join_all(clients).await, LEASE);
    work.goes_on_for(SECOND / 2, &servers).await;
    for _ in 0..2 {
        servers[2].freeze();
        work.goes_on_for(3 * SECOND, &servers[..2]).await;
        servers[2].thaw();
        work.goes_on_for(2 * SECOND, &servers).await;
    }
    work.ends().await;
}

#[tokio::test]
async fn one_of_three_is_restarted_empty_under_work() {
    let mut servers = servers::<3>();
    let clients = [(); 3].map(|()| quorum(&servers, LEASE));
    let mut work = Work::of(futures_util::future::join_all(clients).await, LEASE);
    work.goes_on_for(SECOND / 2, &servers).await;
    servers[2].kill();
    work.goes_on_for(SECOND, &servers[..2]).await;
    servers[2].restart();
    work.goes_on_for(5 * SECOND, &servers).await;
    work.ends().await;
}

/// A thousand waiters of four clients, for ten seconds: what is tried at the stopped server costs
/// nothing at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_do_not_poll_while_a_server_is_stopped() {
    const CLIENTS: usize = 4;
    const WAITERS: usize = 250;
    // Each connection for wake-ups is checked every five seconds, and the holder renews.
    const KEEPING: u64 = 2 * (3 * CLIENTS as u64 + 2);
    let servers = servers::<3>();
    let holder = client(&servers).await;
    let guard = holder.lock("a").acquire().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&servers).await);
    }
    servers[2].freeze();
    let mut waiting = JoinSet::new();
    for locks in &clients {
        for _ in 0..WAITERS {
            waiting.spawn(waits(locks.lock("a")));
        }
    }
    let (well, all_wait) = (&servers[..2], async || {
        subscribers(&servers[..2]).await.iter().all(|count| *count == CLIENTS)
    });
    until("all clients to wait", &all_wait).await;
    // The initial requests are over.
    sleep(4 * SECOND).await;
    let before = commands(well).await;
    sleep(10 * SECOND).await;
    let spent = commands(well).await - before;
    assert!(spent <= 100 + KEEPING, "{spent} commands in 10 s");
    guard.release().await.unwrap();
    while let Some(waiter) = soon("everybody's turn", waiting.join_next()).await {
        waiter.unwrap().unwrap();
    }
    servers[2].thaw();
}
