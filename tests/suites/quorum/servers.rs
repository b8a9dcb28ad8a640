//! Redis servers as members: killed, stopped, and restarted without their data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, FencingToken, LockError, LockGuard, Locks, backend::Backend};
use lockcore_memory::MemoryBackend;
use lockcore_postgres::PostgresBackend;
use lockcore_quorum::{Quorum, QuorumBuilder};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Conditions, Fault, Faulty, Op, PostgresServer, Proxy, RedisServer};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    SECOND,
    critical::Critical,
    waiting::{LONG, soon, until},
};

/// The longest allowed pause while a majority is up.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);

pub(crate) fn servers<const N: usize>() -> [RedisServer; N] {
    std::array::from_fn(|_| RedisServer::start())
}

pub(crate) async fn quorum(servers: &[RedisServer], rejoin_after: Duration) -> Quorum {
    quorum_at(servers.iter().map(RedisServer::url), rejoin_after).await
}

async fn quorum_at(addresses: impl IntoIterator<Item = String>, rejoin_after: Duration) -> Quorum {
    let members = addresses.into_iter().fold(Quorum::builder(), |members, url| {
        members.member_from(move || RedisBackend::connect(url.clone()))
    });
    members.rejoin_after(rejoin_after).connect().await.unwrap()
}

async fn client(servers: &[RedisServer]) -> Locks {
    client_of(quorum(servers, 30 * SECOND).await)
}

fn client_of(quorum: Quorum) -> Locks {
    Locks::builder(quorum).lease(3 * SECOND).build().unwrap()
}

/// Acquires within the longest pause.
async fn enters(locks: &Locks) -> LockGuard {
    timeout(LONGEST, locks.lock("a").acquire()).await.expect("the pause is too long").unwrap()
}

/// Alternates between two clients for a while, and returns the last token.
async fn take_turns(clients: [&Locks; 2], mut last: FencingToken) -> FencingToken {
    for turn in 0..10 {
        let guard = enters(clients[turn % 2]).await;
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        guard.release().await.unwrap();
    }
    last
}

/// Clients that alternate, whatever happens to a minority.
pub(crate) struct Work {
    critical: Arc<Critical>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Work {
    pub(crate) fn of(clients: impl IntoIterator<Item = Quorum>, lease: Duration) -> Self {
        let (critical, stop) = (Arc::new(Critical::default()), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for quorum in clients {
            let (critical, stop) = (critical.clone(), stop.clone());
            let locks = Locks::builder(quorum).lease(lease).retry_for(LONG).build().unwrap();
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = locks.lock("a").acquire().await.unwrap();
                    critical.visit(&guard).await;
                    guard.release().await.unwrap();
                }
            });
        }
        Self { critical, stop, tasks }
    }

    /// Watches the work for at least `time`: nothing fails, and no pause is too long, apart from
    /// delays of the machine itself. Those show in timers, and in the answers of the servers that
    /// are well.
    pub(crate) async fn goes_on_for(&mut self, time: Duration, well: &[RedisServer]) {
        const TICK: Duration = Duration::from_millis(10);
        let (start, mut before) = (Instant::now(), self.critical.entries());
        let (mut last, mut late) = (start, Duration::ZERO);
        loop {
            let tick = Instant::now();
            sleep(TICK).await;
            for server in well {
                server.query::<String>(&["PING"]).await;
            }
            late += tick.elapsed().saturating_sub(2 * TICK);
            let pause = last.elapsed();
            let at = start.elapsed();
            assert!(
                pause <= LONGEST + late,
                "a pause of {pause:?}, late by {late:?}, {at:?} into {time:?}"
            );
            if self.critical.entries() > before {
                if start.elapsed() >= time {
                    return;
                }
                (last, late, before) = (Instant::now(), Duration::ZERO, self.critical.entries());
            }
            if let Some(failed) = self.tasks.try_join_next() {
                panic!("somebody has stopped working: {failed:?}");
            }
        }
    }

    pub(crate) async fn ends(self) {
        self.stop.store(true, Ordering::SeqCst);
        soon("the last turns", self.tasks.join_all()).await;
    }
}

/// The tokens of members follow their own clocks, which are behind the proposal nevertheless.
#[tokio::test]
async fn names_that_nobody_had_need_one_exchange() {
    let (redis, postgres) = (servers::<2>(), PostgresServer::start());
    let [one, two] = [0, 1].map(|at: usize| RedisBackend::connect(redis[at].url()));
    let (one, two) = (Faulty::new(one.await.unwrap()), Faulty::new(two.await.unwrap()));
    crate::follow_clock(&postgres).await;
    let three = Faulty::new(PostgresBackend::connect(postgres.url()).await.unwrap());
    let faults = [one.faults(), two.faults(), three.faults()];
    let quorum = Quorum::builder().member(one).member(two).member(three).build().unwrap();
    let locks = Locks::new(quorum);
    for number in 0..20 {
        let guard = locks.lock(format!("fresh:{number}")).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(faults.map(|faults| faults.calls(Op::RaiseToken)), [0, 0, 0]);
}

#[tokio::test]
async fn one_of_three_is_killed() {
    let mut servers = servers::<3>();
    let [one, other] = [client(&servers).await, client(&servers).await];
    let guard = enters(&one).await;
    servers[0].kill();
    sleep(4 * SECOND).await;
    assert!(guard.is_held(), "it was not renewed at the others");
    let token = guard.token();
    guard.release().await.unwrap();
    take_turns([&one, &other], token).await;
    // A client that connects only now.
    let third = client(&servers).await;
    enters(&third).await.release().await.unwrap();
}

/// Nobody is told that it is gone: requests and connection attempts stay on their way.
#[tokio::test]
async fn one_of_three_is_cut_off() {
    let servers = servers::<3>();
    let proxy = Proxy::start_opaque(servers[2].port()).await.unwrap();
    let client = async || {
        let addresses = [servers[0].url(), servers[1].url(), proxy.url()];
        quorum_at(addresses, 30 * SECOND).await
    };
    let mut work = Work::of([client().await, client().await], 30 * SECOND);
    let holder = Locks::builder(client().await).lease(15 * SECOND).build().unwrap();
    let held = holder.lock("b").acquire().await.unwrap();
    work.goes_on_for(SECOND / 2, &servers).await;
    proxy.set(Conditions { cut_to_server: true, cut_to_client: true, ..Conditions::default() });
    work.goes_on_for(7 * SECOND, &servers[..2]).await;
    for server in &servers[..2] {
        // Without a renewal, less than 8 s would be left.
        until("the renewal", async || server.query::<i64>(&["PTTL", "b"]).await > 9_000).await;
    }
    let token = held.token();
    held.release().await.unwrap();
    // A client that connects only now.
    let third = Locks::new(client().await);
    let guard = soon("the released lock", third.lock("b").acquire()).await.unwrap();
    assert!(guard.token() > token, "{} after {token}", guard.token());
    // Everything that was sent to it arrives.
    proxy.heal();
    work.goes_on_for(2 * SECOND, &servers).await;
    work.ends().await;
    guard.release().await.unwrap();
}

/// Its grants count again after a while, and its earlier hold is still there.
#[tokio::test]
async fn one_of_three_comes_back_with_its_data() {
    let options = ["--appendonly", "yes", "--appendfsync", "no"];
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start_with(&options));
    let client = async || quorum(&servers, 2 * SECOND).await;
    // Holds from the time of the kill stay at the member for a lease.
    let mut work = Work::of([client().await, client().await], 5 * SECOND);
    let [one, other] = [Locks::new(client().await), Locks::new(client().await)];
    let held = one.lock("b").acquire().await.unwrap();
    work.goes_on_for(SECOND / 2, &servers).await;
    until("the hold at the third", async || servers[2].query(&["EXISTS", "b"]).await).await;
    servers[2].kill();
    work.goes_on_for(2 * SECOND, &servers[..2]).await;
    servers[2].restart();
    assert!(servers[2].query::<bool>(&["EXISTS", "b"]).await, "it has lost its data");
    work.goes_on_for(5 * SECOND, &servers).await;
    // From now on, the restarted member is needed.
    servers[0].kill();
    work.goes_on_for(3 * SECOND, &servers[1..]).await;
    let refused = other.lock("b").acquire_timeout(SECOND).await;
    assert!(matches!(refused, Err(LockError::Timeout { .. })), "two have the hold: {refused:?}");
    let token = held.token();
    held.release().await.unwrap();
    let next = soon("the released lock", other.lock("b").acquire()).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
    work.ends().await;
}

#[tokio::test]
async fn two_of_five_are_stopped() {
    let servers = servers::<5>();
    let [one, other] = [client(&servers).await, client(&servers).await];
    let guard = enters(&one).await;
    servers[1].freeze();
    servers[3].freeze();
    sleep(4 * SECOND).await;
    assert!(guard.is_held(), "it was not renewed at the others");
    let token = guard.token();
    guard.release().await.unwrap();
    let token = take_turns([&one, &other], token).await;
    servers[1].thaw();
    servers[3].thaw();
    take_turns([&other, &one], token).await;
}

#[tokio::test]
async fn a_waiter_is_woken_while_a_member_is_stopped() {
    let servers = servers::<3>();
    let [one, other] = [client(&servers).await, client(&servers).await];
    servers[2].freeze();
    let guard = enters(&one).await;
    let lock = other.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(SECOND).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(start.elapsed() < SECOND, "it was found after {:?}", start.elapsed());
    guard.release().await.unwrap();
    servers[2].thaw();
}

#[tokio::test]
async fn tokens_rise_when_members_come_back_empty() {
    let mut servers = servers::<3>();
    let [one, other] =
        [quorum(&servers, Duration::ZERO).await, quorum(&servers, Duration::ZERO).await]
            .map(Locks::new);
    let guard = enters(&one).await;
    let mut last = guard.token();
    guard.release().await.unwrap();
    for server in &mut servers {
        server.kill();
        last = take_turns([&one, &other], last).await;
        server.restart();
        let size: i64 = server.query(&["DBSIZE"]).await;
        assert_eq!(size, 0, "it has kept its data");
        last = take_turns([&other, &one], last).await;
    }
}

/// Its grants do not count for a while, although no request noticed its absence.
#[tokio::test]
async fn a_member_that_is_another_server_now_is_kept_out() {
    let mut servers = servers::<3>();
    let locks = Locks::builder(quorum(&servers, 4 * SECOND).await).retry_for(SECOND);
    let locks = locks.build().unwrap();
    enters(&locks).await.release().await.unwrap();
    servers[0].kill();
    servers[0].restart();
    servers[1].kill();
    let error = timeout(3 * SECOND, locks.lock("a").acquire()).await.unwrap().unwrap_err();
    let text = error.to_string();
    for part in ["store 1: it may have come back without its data", "`rejoin_after`"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    sleep(4 * SECOND).await;
    enters(&locks).await.release().await.unwrap();
}

/// No request need be pending when the replica takes over.
#[tokio::test]
async fn a_member_whose_replica_has_taken_over_is_kept_out() {
    let mut primary = PostgresServer::start();
    let replica = primary.start_replica();
    let ports = [primary.port(), replica.port()];
    let [one, other] = ports.map(|port| format!("127.0.0.1:{port}"));
    let url = format!("postgresql://postgres@{one},{other}/postgres");
    let third = PostgresBackend::connect(&url).await.unwrap();
    let others = [MemoryBackend::new(), MemoryBackend::new()].map(Faulty::new);
    let faults = others[0].faults();
    let members = others.into_iter().fold(Quorum::builder(), QuorumBuilder::member);
    let members = members.member(third.clone()).rejoin_after(60 * SECOND);
    let locks = Locks::builder(members.build().unwrap()).retry_for(SECOND).build().unwrap();
    enters(&locks).await.release().await.unwrap();
    // Without it, the replica could not serve the backend.
    until("the schema", || async { replica.try_query("TABLE lockcore.hold").await.is_ok() }).await;
    primary.kill();
    replica.query("SELECT pg_promote()").await;
    until("the replica", || async { third.intact_for().unwrap() < Duration::MAX }).await;
    faults.every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    // It may still have the first lock. At first, it may also be too slow.
    let expected = "store 3: it may have come back without its data";
    until("the error", async || {
        let error = locks.lock("b").acquire().await.unwrap_err();
        error.to_string().contains(expected)
    })
    .await;
    faults.heal();
    enters(&locks).await.release().await.unwrap();
}

/// All connections break with requests on them, and the servers are the same afterwards.
#[tokio::test]
async fn a_moment_without_a_network_keeps_no_member_out() {
    let servers = servers::<3>();
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::start_opaque(server.port()).await.unwrap());
    }
    let members = proxies.iter().map(Proxy::url).fold(Quorum::builder(), |members, url| {
        members.member_from(move || RedisBackend::connect(url.clone()))
    });
    let locks = Locks::new(members.connect().await.unwrap());
    let (steps, mut progress) = watch::channel(0);
    let working = tokio::spawn({
        let locks = locks.clone();
        async move {
            for _ in 0..200 {
                let guard = enters(&locks).await;
                steps.send_modify(|steps| *steps += 1);
                guard.release().await.unwrap();
                steps.send_modify(|steps| *steps += 1);
            }
        }
    });
    // In turns during a release and an acquisition. By steps and not by the clock, since a release
    // may meet a break in one of its attempts, but not in all three of them.
    for step in (1..400).step_by(41) {
        if progress.wait_for(|steps| *steps >= step).await.is_err() {
            break;
        }
        proxies.iter().for_each(Proxy::reset);
    }
    working.await.unwrap();
    enters(&locks).await.release().await.unwrap();
}

#[tokio::test]
async fn without_a_majority_there_is_a_clear_error_and_holds_end_with_their_lease() {
    let mut servers = servers::<3>();
    let locks = Locks::builder(quorum(&servers, Duration::ZERO).await)
        .lease(2 * SECOND)
        .retry_for(SECOND)
        .build()
        .unwrap();
    let guard = locks.lock("b").acquire().await.unwrap();
    servers[0].kill();
    servers[1].freeze();
    let start = Instant::now();
    let error = timeout(4 * SECOND, locks.lock("a").acquire()).await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error:?}");
    let text = error.to_string();
    for part in ["`a`", "2 of the 3 stores", "store 1: ", "store 2: "] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    timeout(4 * SECOND, guard.lost()).await.expect("the holder was not told");
    assert!(start.elapsed() < 4 * SECOND, "{:?}", start.elapsed());
    servers[1].thaw();
    let guard = timeout(4 * SECOND, locks.lock("b").acquire()).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn no_error_shows_a_password() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let port = server.port();
    let wrong = move || RedisBackend::connect(format!("redis://:hunter3@127.0.0.1:{port}"));
    let members = Quorum::builder().member_from(wrong).member_from(wrong);
    let error = members.connect().await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("127.0.0.1"), "{text}");
    assert!(!text.contains("hunter"), "{text}");
}
