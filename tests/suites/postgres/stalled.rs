//! A writer that has checked its token, and whose transaction stays open.

use std::time::{Duration, Instant};

use lockcore::{
    Locks, Mode,
    backend::{AcquireOutcome, Backend},
};
use lockcore_postgres::{Fence, PostgresBackend};
use lockcore_testkit::PostgresServer;
use tokio_postgres::Client;

use crate::support::{LEASE, connect, enters, name, request, session, soon};

/// The session of a writer that has checked the token of a hold of `lock`, and has released it.
async fn stalled(server: &PostgresServer, backend: &PostgresBackend, lock: &str) -> Client {
    let holder = request(lock, "stalled");
    let token = enters(backend, &holder).await;
    let client = session(server).await;
    client.batch_execute("BEGIN").await.unwrap();
    Fence::new("lockcore").unwrap().check(&client, &name(lock), token).await.unwrap();
    backend.release(&holder.release()).await.unwrap();
    client
}

/// A round that takes longer has waited for something.
const SLOW: Duration = Duration::from_millis(500);

/// Uses a lock again and again for `time`, and returns how long the slow rounds took. Each round
/// contains a pause, so that a machine that stands still delays the rounds of all clients alike.
async fn slow_rounds(locks: &Locks, lock: &str, time: Duration) -> Vec<Duration> {
    let (start, mut slow) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let asked = Instant::now();
        let guard = locks.lock(lock).acquire().await.unwrap();
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let took = asked.elapsed();
        if took >= SLOW {
            slow.push(took);
        }
    }
    slow
}

/// Those who wait for the lock go on waiting, and other names of the client are not kept up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_go_on_waiting_and_others_do_not_wait() {
    const STALL: Duration = Duration::from_secs(10);
    let server = PostgresServer::start();
    let backend = PostgresBackend::builder(server.url()).connections(1).connect().await.unwrap();
    let (account, turn) =
        (stalled(&server, &backend, "account").await, stalled(&server, &backend, "turn").await);
    let (locks, unconcerned) = (Locks::new(backend), Locks::new(connect(&server).await));
    let waiting = [locks.lock("account"), locks.fair_lock("turn")]
        .map(|lock| tokio::spawn(async move { lock.acquire().await }));
    let most = STALL.as_millis() / SLOW.as_millis() / 4;
    let mut attempts = 0..3;
    let (slow, usual) = loop {
        // The rounds of a client that does not wait show how busy the machine is.
        let (slow, usual) = tokio::join!(
            slow_rounds(&locks, "other", STALL),
            slow_rounds(&unconcerned, "unconcerned", STALL)
        );
        if (usual.len() as u128) < most {
            break (slow, usual);
        }
        assert!(attempts.next().is_some(), "the others wait as well: {usual:?}");
    };
    assert!(slow.len() < usual.len() + 2, "{slow:?}, and without a stalled writer {usual:?}");
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "{waiting:?}");
    for stalled in [account, turn] {
        stalled.batch_execute("ROLLBACK").await.unwrap();
    }
    let ended = Instant::now();
    for waiting in waiting {
        let guard = soon("the grant", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    assert!(ended.elapsed() < Duration::from_secs(2), "{:?}", ended.elapsed());
}

#[tokio::test]
async fn an_attempt_is_answered() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let stalled = stalled(&server, &backend, "account").await;
    let lock = Locks::new(backend).lock("account");
    let asked = Instant::now();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    stalled.batch_execute("COMMIT").await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// The time in which an attempt at the lock is refused.
async fn refusal(backend: PostgresBackend, number: usize) -> Duration {
    let asked = Instant::now();
    let outcome = backend.acquire(&request("account", &format!("other {number}"))).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
    asked.elapsed()
}

/// Several clients at once would otherwise wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_attempts_do_not_wait_for_each_other() {
    let server = PostgresServer::start_with(&["max_connections=200"]);
    let backend = connect(&server).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let builder = PostgresBackend::builder(server.url()).connections(1);
        clients.push(builder.connect().await.unwrap());
    }
    // From here on, its session may be idle for 30 s.
    let _stalled = stalled(&server, &backend, "account").await;
    let mut in_turn = Duration::ZERO;
    for (number, backend) in clients.iter().enumerate() {
        in_turn += refusal(backend.clone(), number).await;
    }
    // A busy machine may delay some of them, but not all of the rounds.
    let mut at_once = Duration::MAX;
    for _ in 0..3 {
        let asked = Instant::now();
        let attempts: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, backend)| tokio::spawn(refusal(backend.clone(), number)))
            .collect();
        for attempt in attempts {
            attempt.await.unwrap();
        }
        at_once = at_once.min(asked.elapsed());
    }
    assert!(at_once < in_turn / 2, "{at_once:?} at once, and {in_turn:?} one after the other");
}

#[tokio::test]
async fn the_first_in_the_queue_keeps_its_place() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let _stalled = stalled(&server, &backend, "account").await;
    let first = request("account", "first").mode(Mode::Fair).queue(Some(LEASE));
    let outcome = backend.acquire(&first).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
    assert_eq!(backend.inspect(&name("account")).await.unwrap().waiters().len(), 1);
}

#[tokio::test]
async fn the_session_is_ended_unless_it_has_a_shorter_limit() {
    const SHOW: &str = "SHOW idle_in_transaction_session_timeout";
    let server = PostgresServer::start();
    let token = enters(&connect(&server).await, &request("account", "holder")).await;
    let (fence, mut client) = (Fence::new("lockcore").unwrap(), session(&server).await);
    for (set, limit) in [("0", "30s"), ("1min", "30s"), ("1500ms", "1500ms")] {
        let set = format!("SET idle_in_transaction_session_timeout = '{set}'");
        client.batch_execute(&set).await.unwrap();
        let before: String = client.query_one(SHOW, &[]).await.unwrap().get(0);
        let transaction = client.transaction().await.unwrap();
        fence.check(&transaction, &name("account"), token).await.unwrap();
        assert_eq!(transaction.query_one(SHOW, &[]).await.unwrap().get::<_, String>(0), limit);
        transaction.commit().await.unwrap();
        assert_eq!(client.query_one(SHOW, &[]).await.unwrap().get::<_, String>(0), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_enters_when_the_limit_has_ended_it() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let holder = request("account", "stalled");
    let token = enters(&backend, &holder).await;
    let client = session(&server).await;
    client.batch_execute("BEGIN; CREATE TABLE written ()").await.unwrap();
    let fence = Fence::new("lockcore").unwrap().idle_limit(Duration::from_millis(700));
    fence.check(&client, &name("account"), token).await.unwrap();
    backend.release(&holder.release()).await.unwrap();
    let acquiring = Locks::new(backend).lock("account");
    let guard = soon("the grant", acquiring.acquire()).await.unwrap();
    assert!(guard.token() > token);
    let error = client.batch_execute("COMMIT").await.unwrap_err();
    let is_ended = error.is_closed() || error.code().is_some_and(|code| code.code() == "25P03");
    assert!(is_ended, "{error}");
    assert!(server.query("SELECT FROM pg_class WHERE relname = 'written'").await.is_empty());
}

#[tokio::test]
async fn a_fence_that_is_forgotten_is_closed_until_the_end() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let (fence, account) = (Fence::new("lockcore").unwrap(), name("account"));
    let holder = request("account", "holder");
    let token = enters(&backend, &holder).await;
    let mut client = session(&server).await;
    fence.check(&client, &account, token).await.unwrap();
    backend.release(&holder.release()).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    fence.forget(&transaction, &account).await.unwrap();
    let outcome = backend.acquire(&request("account", "other")).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
    transaction.commit().await.unwrap();
    assert!(server.query("SELECT FROM lockcore.fence").await.is_empty());
    let other = enters(&backend, &request("account", "other")).await;
    fence.check(&client, &account, other).await.unwrap();
}

#[tokio::test]
async fn a_doctor_finds_it() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let stalled = stalled(&server, &backend, "account").await;
    // A transaction that has just paused is not meant.
    server.query("SELECT pg_sleep(5.1)").await;
    let found = async || {
        let diagnosis = backend.diagnose().await.unwrap();
        let of_fences = |finding: &&lockcore::Finding| finding.id() == "fences";
        diagnosis.findings().iter().filter(of_fences).count()
    };
    assert_eq!(found().await, 1);
    stalled.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(found().await, 0);
}

/// It has no session that could be ended, and outlasts the server.
#[tokio::test]
async fn a_doctor_finds_one_that_was_prepared() {
    let mut server = PostgresServer::start_with(&["max_prepared_transactions=2"]);
    let backend = connect(&server).await;
    let stalled = stalled(&server, &backend, "account").await;
    stalled.batch_execute("PREPARE TRANSACTION 'forgotten'").await.unwrap();
    server.restart();
    let backend = connect(&server).await;
    let outcome = backend.acquire(&request("account", "other")).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held { .. }), "{outcome:?}");
    server.query("SELECT pg_sleep(5.1)").await;
    let found = async || {
        let diagnosis = backend.diagnose().await.unwrap();
        let of_fences = |finding: &&lockcore::Finding| finding.id() == "fences";
        diagnosis.findings().iter().filter(of_fences).map(ToString::to_string).collect::<Vec<_>>()
    };
    let findings = found().await;
    assert!(findings.len() == 1 && findings[0].contains("'forgotten'"), "{findings:?}");
    server.query("ROLLBACK PREPARED 'forgotten'").await;
    assert!(found().await.is_empty());
    enters(&backend, &request("account", "other")).await;
}
