//! Locks that were released a moment ago are acquired together: many by one call of each node, and
//! a few by transactions. The answers do not reveal it.

use lockcore::{
    BackendErrorKind,
    backend::{AcquireOutcome, AcquireRequest, ReleaseOutcome},
};
use lockcore_redis::{Credentials, RedisBackend};
use lockcore_testkit::{Feature, Proxy, RedisCluster, RedisServer, server_lacks};
use redis::aio::MultiplexedConnection;

use super::{
    backend,
    batches::{assert_released, requests_at_one_node},
    name_at,
};
use crate::{
    batches::{batch, begin, end, exclusive, is_granted, outcome},
    errors::{LEAST_RIGHTS, set_user},
    steps::{enters, hash, pttl, releases},
    support::soon,
};

/// Enough locks for several batches.
const LOCKS: usize = 24;

/// So few locks that each has a transaction of its own.
const FEW: usize = 4;

const COMMANDS: [&str; 4] = ["restore", "exec", "spublish", "publish"];

/// A connection that is kept: the locks are known for 50 ms only.
async fn connection(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// The numbers of calls of the commands so far.
async fn calls<const N: usize>(
    connection: &mut MultiplexedConnection,
    commands: [&str; N],
) -> [u64; N] {
    let statistics = redis::cmd("INFO").arg("commandstats").take();
    let statistics: String = statistics.query_async(connection).await.unwrap();
    commands.map(|command| {
        let begin = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(&begin));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    })
}

async fn cluster() -> RedisCluster {
    RedisCluster::builder().replicas_each(0).start().await
}

async fn requests(cluster: &RedisCluster) -> Vec<AcquireRequest> {
    requests_at_one_node(cluster, LOCKS).await
}

fn token_key(request: &AcquireRequest) -> String {
    format!("redisson_lock_token:{{{}}}", request.name.as_str())
}

async fn last_token(server: &RedisServer, request: &AcquireRequest) -> u64 {
    server.query(&["GET", &token_key(request)]).await
}

/// The server's time in microseconds.
async fn time(server: &RedisServer) -> u64 {
    let [seconds, micros] = server.query::<Vec<u64>>(&["TIME"]).await.try_into().unwrap();
    seconds * 1_000_000 + micros
}

/// Acquires all locks after a release and a `change`, until most were acquired together without
/// their scripts. Returns the outcomes.
async fn acquired_together(
    server: &RedisServer,
    client: &RedisBackend,
    requests: &[AcquireRequest],
    mut change: impl AsyncFnMut(),
) -> Vec<AcquireOutcome> {
    soon("locks that are acquired together", async {
        loop {
            batch(client, requests).await;
            change().await;
            let before = server.calls_of("restore").await;
            let tasks: Vec<_> = requests.iter().map(|request| begin(client, request)).collect();
            let mut outcomes = Vec::new();
            for task in tasks {
                outcomes.push(outcome(task).await.unwrap());
            }
            if server.calls_of("restore").await - before > 2 * requests.len() as u64 / 3 {
                return outcomes;
            }
            let _: redis::Value = server.query(&["FLUSHALL"]).await;
        }
    })
    .await
}

/// Releases some locks together with the acquisition of others. The first request is a release.
async fn release_and_acquire(
    client: &RedisBackend,
    held: &[AcquireRequest],
    free: &[AcquireRequest],
) {
    let releasing: Vec<_> = held.iter().map(|request| end(client, request)).collect();
    let acquiring: Vec<_> = free.iter().map(|request| begin(client, request)).collect();
    for task in releasing {
        assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
    }
    for task in acquiring {
        assert!(is_granted(task).await);
    }
}

fn token(outcome: &AcquireOutcome) -> u64 {
    match outcome {
        AcquireOutcome::Acquired { token } => u64::from(*token),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_node_is_called_once_for_many_locks() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let all = requests(&cluster).await;
    let mut connection = connection(server).await;
    let mut last = Vec::new();
    let outcomes = acquired_together(server, &client, &all, async || {
        let mut tokens = redis::pipe();
        for request in &all {
            tokens.cmd("GET").arg(token_key(request));
        }
        last = tokens.query_async::<Vec<u64>>(&mut connection).await.unwrap();
    })
    .await;
    for ((request, outcome), last) in all.iter().zip(&outcomes).zip(last) {
        let key = request.name.as_str();
        assert!(token(outcome) > last, "{outcome:?} after {last}");
        assert_eq!(last_token(server, request).await, token(outcome));
        assert_eq!(hash(server, key).await, [(request.hold.owner().into(), "1".into())].into());
        assert!((50_000..=60_000).contains(&pttl(server, key).await));
        assert!((1..=86_400_000).contains(&pttl(server, &token_key(request)).await));
    }
    // Half of them are released together with the acquisition of others.
    let (one, other) = all.split_at(LOCKS / 2);
    assert_released(&client, other).await;
    soon("acquisitions together with releases", async {
        let (mut held, mut free) = (one, other);
        loop {
            let before = calls(&mut connection, COMMANDS).await;
            release_and_acquire(&client, held, free).await;
            let after = calls(&mut connection, COMMANDS).await;
            let [restored, transactions, sharded, plain] =
                std::array::from_fn(|index| after[index] - before[index]);
            assert_eq!(sharded + plain, held.len() as u64, "messages");
            assert!(transactions <= 1, "{transactions} transactions");
            (held, free) = (free, held);
            if restored > LOCKS as u64 / 3 {
                break;
            }
        }
        for request in free {
            assert!(hash(server, request.name.as_str()).await.is_empty());
        }
        for request in held {
            assert_eq!(hash(server, request.name.as_str()).await.len(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_held_again_is_refused() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let other = backend(&cluster).connect().await.unwrap();
    for count in [LOCKS, FEW] {
        let all = requests_at_one_node(&cluster, count).await;
        let theirs = exclusive(all[2].name.as_str(), 77);
        let mut last = 0;
        let outcomes = acquired_together(server, &client, &all, async || {
            last = u64::from(enters(&other, &theirs).await);
        })
        .await;
        for (number, outcome) in outcomes.iter().enumerate() {
            match outcome {
                AcquireOutcome::Held { remaining: Some(_) } => assert_eq!(number, 2),
                outcome => assert!(token(outcome) > 0 && number != 2, "{number}: {outcome:?}"),
            }
        }
        // A transaction issues a token all the same.
        let issued = last_token(server, &theirs).await - last;
        assert!(issued == 0 || count == FEW && issued < 1_000_000, "{issued} of {count}");
        assert_eq!(releases(&other, &theirs).await, ReleaseOutcome::Released);
        let [one, rest] = [&all[..2], &all[3..]];
        assert_released(&client, &[one, rest].concat()).await;
    }
}

#[tokio::test]
async fn few_locks_are_acquired_by_transactions() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let all = requests_at_one_node(&cluster, FEW).await;
    let mut connection = connection(server).await;
    let mut before = [0; 4];
    acquired_together(server, &client, &all, async || {
        before = calls(&mut connection, COMMANDS).await;
    })
    .await;
    let after = calls(&mut connection, COMMANDS).await;
    let [restored, transactions] = [0, 1].map(|index| after[index] - before[index]);
    assert_eq!(restored, transactions);
    for request in &all {
        let hold = [(request.hold.owner().into(), "1".into())];
        assert_eq!(hash(server, request.name.as_str()).await, hold.into());
    }
    assert_released(&client, &all).await;
}

#[tokio::test]
async fn a_last_token_behind_the_clock_is_raised() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let all = requests(&cluster).await;
    let [ahead, behind] = [3, 5].map(|index| token_key(&all[index]));
    let mut last = Vec::new();
    let mut begin = 0;
    let outcomes = acquired_together(server, &client, &all, async || {
        last.clear();
        for request in &all {
            last.push(last_token(server, request).await);
        }
        let others = [(&ahead, last[3] + 10_000_000), (&behind, last[5] - 10_000_000)];
        for (key, token) in others {
            let _: String = server.query(&["SET", key, &token.to_string(), "KEEPTTL"]).await;
        }
        last[3] += 10_000_000;
        begin = time(server).await;
        let until = last[0].max(begin) + 250_000;
        while begin < until {
            begin = time(server).await;
        }
    })
    .await;
    let end = time(server).await;
    for (index, (request, outcome)) in all.iter().zip(&outcomes).enumerate() {
        assert!(token(outcome) > last[index], "{index}: {outcome:?} after {}", last[index]);
        // A reading may have taken 100 ms.
        let by_the_clock = begin - 120_000..end;
        assert!(index == 3 || by_the_clock.contains(&token(outcome)), "{index}: {outcome:?}");
        assert_eq!(last_token(server, request).await, token(outcome));
        assert!((1..=86_400_000).contains(&pttl(server, &token_key(request)).await));
    }
    assert_released(&client, &all).await;
}

#[tokio::test]
async fn a_token_that_is_lost_or_of_another_type_concerns_one_lock() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let server = cluster.node(0);
    for count in [LOCKS, FEW] {
        // A new client knows no earlier tokens, which the next ones could follow.
        let client = backend(&cluster).connect().await.unwrap();
        let all = requests_at_one_node(&cluster, count).await;
        a_token_that_is_lost_concerns_one_lock(server, &client, &all).await;
        a_token_of_another_type_concerns_one_lock(server, &client, &all).await;
    }
}

async fn a_token_that_is_lost_concerns_one_lock(
    server: &RedisServer,
    client: &RedisBackend,
    all: &[AcquireRequest],
) {
    let lost = token_key(&all[2]);
    let before = time(server).await;
    let outcomes = acquired_together(server, client, all, async || {
        let _: i64 = server.query(&["DEL", &lost]).await;
    })
    .await;
    let all_are_by_the_clock = outcomes.iter().all(|outcome| token(outcome) > before);
    assert!(all_are_by_the_clock, "{outcomes:?} after {before}");
    assert!((1..=86_400_000).contains(&pttl(server, &lost).await));
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
    assert_released(client, all).await;
}

/// Scripts refuse such a lock.
async fn a_token_of_another_type_concerns_one_lock(
    server: &RedisServer,
    client: &RedisBackend,
    all: &[AcquireRequest],
) {
    let (strange, good) = (&all[2], [&all[..2], &all[3..]].concat());
    let token = token_key(strange);
    soon("locks that are acquired together", async {
        loop {
            batch(client, all).await;
            let _: i64 = server.query(&["DEL", &token]).await;
            let _: i64 = server.query(&["RPUSH", &token, "element"]).await;
            let before = server.calls_of("restore").await;
            let tasks: Vec<_> = good.iter().map(|request| begin(client, request)).collect();
            let refused = begin(client, strange);
            for task in tasks {
                assert!(is_granted(task).await);
            }
            outcome(refused).await.unwrap_err();
            assert!(hash(server, strange.name.as_str()).await.is_empty());
            let spent = server.calls_of("restore").await - before;
            assert_released(client, &good).await;
            let _: i64 = server.query(&["DEL", &token]).await;
            if spent > all.len() as u64 / 2 {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_script_that_the_server_has_forgotten_is_sent_again() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let all = requests(&cluster).await;
    for _ in 0..3 {
        acquired_together(server, &client, &all, async || ()).await;
        let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        assert_released(&client, &all).await;
        batch(&client, &all).await;
    }
}

#[tokio::test]
async fn a_slot_that_moves_does_not_end_it() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    for count in [LOCKS, FEW] {
        let all = requests_at_one_node(&cluster, count).await;
        let slot = cluster.slot_of(all[3].name.as_str()).await;
        for target in [1, 0, 1, 0] {
            for _ in 0..5 {
                batch(&client, &all).await;
            }
            let acquiring: Vec<_> = all.iter().map(|request| begin(&client, request)).collect();
            cluster.migrate_slot(slot, target).await;
            for task in acquiring {
                assert!(is_granted(task).await);
            }
            assert_released(&client, &all).await;
            batch(&client, &all).await;
        }
        acquired_together(server, &client, &all, async || ()).await;
        assert_released(&client, &all).await;
    }
}

#[tokio::test]
async fn a_user_without_the_right_is_served_by_other_scripts() {
    if server_lacks(Feature::LastingRestore) || server_lacks(Feature::ChannelRights) {
        return;
    }
    let cluster = cluster().await;
    let server = cluster.node(0);
    for (missing, count) in [("restore", LOCKS), ("incrby", LOCKS), ("restore", FEW), ("exec", FEW)]
    {
        let all = requests_at_one_node(&cluster, count).await;
        let more = "+restore +multi +exec +asking +cluster|slots +cluster|info +spublish";
        for node in 0..3 {
            let rights = format!("reset on >pw {LEAST_RIGHTS} {more} -{missing}");
            set_user(cluster.node(node), "worker", &rights).await;
        }
        let worker = backend(&cluster).credentials(Credentials::new("worker", "pw"));
        let worker = worker.connect().await.unwrap();
        soon("a lock without a token", async {
            // A command that the user has no right to is not called.
            let before = server.calls_of("restore").await;
            for _ in 0..10 {
                batch(&worker, &all).await;
            }
            while missing == "incrby" && server.calls_of("restore").await == before {
                batch(&worker, &all).await;
            }
        })
        .await;
        // The first refusal is enough.
        let restored = server.calls_of("restore").await;
        batch(&worker, &all).await;
        assert_eq!(server.calls_of("restore").await, restored, "without {missing}");
        assert_eq!(server.keys_without_expiry().await, Vec::<String>::new(), "{missing}");
        for request in &all {
            assert!(hash(server, request.name.as_str()).await.is_empty(), "{missing}");
        }
    }
}

/// Lets the tasks run that are ready.
async fn ticks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_reply_to_another_request_grants_nothing() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, all) = (cluster.node(0), requests(&cluster).await);
    let proxy = Proxy::start(server.port()).await.unwrap();
    let port = proxy.port().to_string();
    let _: String = server.query(&["CONFIG", "SET", "cluster-announce-port", &port]).await;
    let slots = async |node: usize| {
        let slots: redis::Value = cluster.node(node).query(&["CLUSTER", "SLOTS"]).await;
        format!("{slots:?}")
    };
    soon("the address of the proxy", async {
        while !(slots(1).await.contains(&port) && slots(2).await.contains(&port)) {}
    })
    .await;
    let client = backend(&cluster).connect().await.unwrap();
    for count in [2, 3, 6, 10, 11] {
        let is_one_script = count > 6;
        let (others, tested) = (&all[..8], &all[10..10 + count]);
        let held = tested.last().unwrap();
        let new = exclusive(&name_at(&cluster, 0, "locks:new").await, 1);
        soon("a batch behind another request", async {
            loop {
                for _ in 0..3 {
                    batch(&client, &all).await;
                }
                let _: i64 = server.query(&["HSET", held.name.as_str(), "other", "1"]).await;
                let token = time(server).await;
                let before = server.calls_of("restore").await;
                let connections = proxy.accepted();
                server.freeze();
                // The stray replies are before that to a script, which is the batch or the request
                // before it.
                let (first, stray) = if is_one_script {
                    let tokens = format!(":{token}\r\n").repeat(count);
                    (&others[0], format!("*{}\r\n:1\r\n{tokens}", 1 + count))
                } else {
                    let granted = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n";
                    let transactions = format!("{granted}:{token}\r\n").repeat(count);
                    (&new, format!("*2\r\n:1\r\n:{token}\r\n{transactions}"))
                };
                proxy.insert_reply(stray.as_bytes());
                let first = begin(&client, first);
                ticks().await;
                let tasks: Vec<_> = tested.iter().map(|request| begin(&client, request)).collect();
                ticks().await;
                server.thaw();
                let _ = outcome(first).await;
                let mut outcomes = Vec::new();
                for task in tasks {
                    outcomes.push(outcome(task).await);
                }
                let was_together = server.calls_of("restore").await >= before + count as u64;
                for outcome in was_together.then_some(&outcomes).into_iter().flatten() {
                    let error = outcome.as_ref().unwrap_err();
                    assert_eq!(error.kind(), BackendErrorKind::Protocol, "{count}: {outcomes:?}");
                    assert!(error.is_outcome_unknown(), "{count}: {outcomes:?}");
                }
                let _: String = server.query(&["FLUSHALL"]).await;
                if was_together {
                    batch(&client, &all).await;
                    assert!(proxy.accepted() > connections, "the connection is still used");
                    return;
                }
            }
        })
        .await;
    }
}

/// A reading of the clock is used for a second.
#[tokio::test]
async fn the_clock_is_read_again_although_the_connection_is_never_idle() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let cluster = cluster().await;
    let (server, client) = (cluster.node(0), backend(&cluster).connect().await.unwrap());
    let all = requests(&cluster).await;
    let (one, other) = all.split_at(LOCKS / 2);
    batch(&client, other).await;
    acquired_together(server, &client, one, async || ()).await;
    let until = time(server).await + 1_500_000;
    let (mut held, mut free) = (one, other);
    soon("an acquisition of many without their scripts", async {
        loop {
            let before = server.calls_of("restore").await;
            release_and_acquire(&client, held, free).await;
            (held, free) = (free, held);
            let is_without = server.calls_of("restore").await > before + LOCKS as u64 / 3;
            if is_without && time(server).await > until {
                return;
            }
        }
    })
    .await;
    assert_released(&client, held).await;
}

#[tokio::test]
async fn a_release_takes_effect_before_a_later_acquisition_on_a_new_connection() {
    let cluster = cluster().await;
    let (server, all) = (cluster.node(0), requests(&cluster).await);
    for _ in 0..5 {
        let client = backend(&cluster).connect().await.unwrap();
        let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        // Only the scripts for single requests are known then.
        for request in &all {
            enters(&client, request).await;
        }
        for request in &all[2..] {
            assert_eq!(releases(&client, request).await, ReleaseOutcome::Released);
        }
        server.freeze();
        // The first is sent alone. The next is sent with the acquisitions.
        let first = end(&client, &all[0]);
        ticks().await;
        let releasing = [first, end(&client, &all[1])];
        let acquiring: Vec<_> = all[2..].iter().map(|request| begin(&client, request)).collect();
        ticks().await;
        let later = begin(&client, &exclusive(all[1].name.as_str(), 1_001));
        ticks().await;
        server.thaw();
        for task in releasing {
            assert_eq!(outcome(task).await.unwrap(), ReleaseOutcome::Released);
        }
        for task in acquiring {
            assert!(is_granted(task).await);
        }
        assert!(is_granted(later).await);
        let _: String = server.query(&["FLUSHALL"]).await;
    }
}
