//! Servers that restart, connections that are lost, and requests that arrive late.

use std::time::{Duration, Instant};

use lockcore::{
    BackendErrorKind, LockError, Locks,
    backend::{AcquireOutcome, AcquireRequest, Backend, ConditionId, Departure, ReleaseOutcome},
};
use lockcore_postgres::PostgresBackend;
use lockcore_testkit::PostgresServer;
use tokio_postgres::Client;

use crate::{
    proxy::PostgresProxy,
    support::{
        connect, connections, enters, is_held, name, request, session, sessions, soon, until,
    },
};

const KILL_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE 'lockcore %'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlast_a_restart_of_the_server_and_waiters_go_on() {
    let mut server = PostgresServer::start();
    let backend = connect(&server).await;
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("order").acquire().await.unwrap();
    let (token, other) = (guard.token(), Locks::new(connect(&server).await));
    let waiting = tokio::spawn(async move { other.lock("order").acquire().await });
    let start = Instant::now();
    server.restart();
    let back = Instant::now();
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
    let intact_for = backend.intact_for().unwrap();
    assert!(intact_for <= start.elapsed(), "its files could be others: {intact_for:?}");
}

/// The server does not notice that, and would keep them for minutes or hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_is_left_of_connections_that_break() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let backend = PostgresBackend::connect(proxy.url()).await.unwrap();
    // Four for requests, and one for wake-ups.
    let all = async |old: &[_], what: &str| {
        let are_new =
            |new: &[_]| new.len() == 5 && new.iter().all(|process| !old.contains(process));
        until(what, async || are_new(&sessions(&server).await)).await;
    };
    // The server may have the session of the migration as well: the proxy does not tell it of ends.
    let old = sessions(&server).await;
    server.query(KILL_ALL).await;
    all(&old, "new sessions").await;
    for round in 0..5 {
        let old = sessions(&server).await;
        proxy.cut();
        // Once more, before the new ones are of any use.
        if round % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            proxy.cut();
        }
        all(&old, "the end of the old sessions").await;
        enters(&backend, &request(&format!("order:{round}"), "a")).await;
    }
}

/// The server may still be opening a session whose connection has broken when its client looks for
/// such sessions. So the client looks again, even if it always hears something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_opens_late_is_ended_while_messages_come() {
    let server = PostgresServer::start();
    let _backend = connect(&server).await;
    let listening = "SELECT pid, application_name, query FROM pg_stat_activity
        WHERE application_name LIKE 'lockcore %' AND query LIKE 'LISTEN %'";
    until("a session that listens", async || server.query(listening).await.len() == 1).await;
    let [process, lost, listen] =
        <[String; 3]>::try_from(server.query(listening).await.remove(0)).expect("three columns");
    server.query(&format!("SELECT pg_terminate_backend({process})")).await;
    let looked = "SELECT pid FROM pg_stat_activity
        WHERE application_name LIKE 'lockcore %' AND query LIKE '%end_sessions%' AND state = 'idle'";
    until("the first look", async || server.query(looked).await.len() == 1).await;
    let mut late: tokio_postgres::Config = server.url().parse().unwrap();
    late.application_name(&lost);
    let (_client, connection) = late.connect(tokio_postgres::NoTls).await.unwrap();
    let notify = listen.replace("LISTEN", "NOTIFY");
    let talking = async {
        let talker = session(&server).await;
        loop {
            talker.batch_execute(&notify).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        ended = soon("the end of the late session", connection) => assert!(ended.is_err()),
        () = talking => {}
    }
}

/// A release need not survive a crash, but a hold that it grants must: its owner is told at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_a_release_has_granted_outlasts_a_crash() {
    // Only writes that are waited for reach the disk.
    let mut server = PostgresServer::start_with(&["wal_writer_delay=10s"]);
    let backend = connect(&server).await;
    let fair = |hold| {
        let request = request("order", hold).mode(lockcore::Mode::Fair);
        request.queue(Some(Duration::from_secs(60))).direct_grant(Some(1))
    };
    let (holder, heir) = (fair("holder"), fair("heir"));
    enters(&backend, &holder).await;
    let refused = backend.acquire(&heir).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    assert_eq!(backend.release(&holder.release()).await.unwrap(), ReleaseOutcome::Released);
    server.restart();
    until("an answer", || async { backend.inspect(&name("order")).await.is_ok() }).await;
    let state = backend.inspect(&name("order")).await.unwrap();
    let owners: Vec<_> = state.holders().iter().map(|holder| holder.owner().to_owned()).collect();
    assert_eq!(owners, ["heir"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_are_opened_again() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let locks = Locks::new(backend.clone());
    for round in 0..5 {
        let guard = soon("a lock", locks.lock("order").acquire()).await.unwrap();
        server.query(KILL_ALL).await;
        soon("a release", guard.release()).await.unwrap();
        until("the release", || async {
            !matches!(backend.inspect(&name("order")).await,
            Ok(state) if state.is_held())
        })
        .await;
        assert!(connections(&server).await <= 5, "round {round}: old ones are left");
    }
}

/// A request that waits at the server, and whose client loses its connection.
struct Late {
    server: PostgresServer,
    proxy: PostgresProxy,
    backend: PostgresBackend,
    busy: Client,
    request: AcquireRequest,
}

impl Late {
    /// `options` are those of the URL. With `is_pooled`, wake-ups have a URL of their own.
    async fn after_a_loss(server: PostgresServer, options: &str, is_pooled: bool) -> Self {
        let proxy = PostgresProxy::before(&server).await;
        let url = format!("{}{options}", proxy.url());
        let mut builder = PostgresBackend::builder(url).connections(1);
        if is_pooled {
            builder = builder.listen_url(server.url());
        }
        let backend = builder.connect().await.unwrap();
        let busy = session(&server).await;
        busy.batch_execute("BEGIN; SELECT lockcore.enter('order')").await.unwrap();
        let request = request("order", "late");
        let late = Self { server, proxy, backend, busy, request };
        let acquiring = tokio::spawn({
            let (backend, request) = (late.backend.clone(), late.request.clone());
            async move { backend.acquire(&request).await }
        });
        until("the request to wait", || late.waits()).await;
        late.proxy.cut();
        let error = acquiring.await.unwrap().unwrap_err();
        assert!(error.is_outcome_unknown() && error.is_retryable(), "{error}");
        // Anything answered now comes over another connection.
        let other = name("other");
        until("another connection", || async { late.backend.inspect(&other).await.is_ok() }).await;
        late
    }

    async fn waits(&self) -> bool {
        let sql = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'";
        !self.server.query(sql).await.is_empty()
    }
}

/// A request that the server carries out when its connection is lost must not come after later
/// requests of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_a_lost_connection_does_not_come_late() {
    let late = Late::after_a_loss(PostgresServer::start(), "", false).await;
    assert!(!late.waits().await, "the request still waits for its turn");
    late.busy.batch_execute("ROLLBACK").await.unwrap();
    let undone = late.backend.release(&late.request.undo()).await.unwrap();
    assert_eq!(undone, ReleaseOutcome::NotHeld);
    assert!(!is_held(&late.backend, "order").await);
}

/// The session is that of the role that connects, whatever role is set then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_it_if_a_role_is_set() {
    let server = PostgresServer::start();
    server.query("CREATE ROLE locks; GRANT ALL ON DATABASE postgres TO locks").await;
    let late = Late::after_a_loss(server, "&options=-c%20role%3Dlocks", false).await;
    let role = "SELECT tableowner FROM pg_tables WHERE tablename = 'hold'";
    assert_eq!(late.server.query(role).await, [["locks"]]);
    assert!(!late.waits().await, "the request still waits for its turn");
}

/// Behind a pooler, the session may belong to another client by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_no_session_is_ended_and_the_late_request_is_undone() {
    let late = Late::after_a_loss(PostgresServer::start(), "", true).await;
    assert!(late.waits().await, "a session was ended");
    late.busy.batch_execute("ROLLBACK").await.unwrap();
    late.backend.release(&late.request.undo()).await.unwrap();
    until("the end of the request", || async { !late.waits().await }).await;
    assert!(!is_held(&late.backend, "order").await);
}

/// Process ids are reused, and a pooler in session mode gives a session to other clients.
#[tokio::test]
async fn only_the_session_that_was_lost_is_ended() {
    let server = PostgresServer::start();
    drop(connect(&server).await);
    let other = session(&server).await;
    let row = other.query_one("SELECT * FROM lockcore.session()", &[]).await.unwrap();
    let (process, began): (i32, i64) = (row.get(0), row.get(1));
    let name = row.get::<_, String>(2);
    for (process, began, name) in
        [(process, began + 1, name.as_str()), (process, began, "else"), (process + 1, began, &name)]
    {
        let end = format!("SELECT lockcore.end_session({process}, {began}, '{name}')");
        assert_eq!(server.query(&end).await, [["t"]]);
        other.batch_execute("SELECT 1").await.unwrap();
    }
    let end = format!("SELECT lockcore.end_session({process}, {began}, '{name}')");
    assert_eq!(server.query(&end).await, [["t"]]);
    assert!(other.batch_execute("SELECT 1").await.is_err());
}

/// As behind a pooler, where the session cannot be ended.
#[tokio::test]
async fn a_request_that_comes_after_its_undoing_has_no_effect() {
    let server = PostgresServer::shared();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let late = request("undone-before", "late");
    assert_eq!(one.release(&late.undo()).await.unwrap(), ReleaseOutcome::NotHeld);
    let error = two.acquire(&late).await.unwrap_err();
    assert!(!error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(!is_held(&one, "undone-before").await);
    let fair = late.clone().mode(lockcore::Mode::Fair).queue(Some(Duration::from_secs(5)));
    enters(&one, &request("undone-before", "other")).await;
    assert!(two.acquire(&fair).await.is_err(), "it gets no place either");
    assert!(one.inspect(&name("undone-before")).await.unwrap().waiters().is_empty());
}

#[tokio::test]
async fn a_waiter_that_joins_after_it_has_left_stays_out() {
    let server = PostgresServer::shared();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let (one, two) = (one.conditions().unwrap(), two.conditions().unwrap());
    let condition = ConditionId::new(name("left-before"), name("not-empty"));
    assert!(!one.leave(&condition, "late", Departure::TimedOut).await.unwrap());
    let error = two.join(&condition, "late", Duration::from_secs(20)).await.unwrap_err();
    assert!(!error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert_eq!(one.notify(&condition, 1).await.unwrap(), 0);
    two.join(&condition, "other", Duration::from_secs(20)).await.unwrap();
    assert_eq!(one.notify(&condition, 1).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wakeup_that_was_missed_is_made_up_for() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let builder = PostgresBackend::builder(server.url()).listen_url(proxy.url());
    let backend = builder.connect().await.unwrap();
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&backend, &holder).await;
    let subscribe = lockcore::backend::SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    until("the interruption", || async { backend.channels_in_use() == 0 }).await;
    backend.release(&holder.release()).await.unwrap();
    let asleep = tokio::time::timeout(Duration::from_millis(100), wakeups.woken()).await;
    assert!(asleep.is_err(), "nothing could have come");
    proxy.refuse(false);
    soon("the wake-up", wakeups.woken()).await;
    enters(&backend, &waiter).await;
    // It listens again, too.
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    backend.release(&waiter.release()).await.unwrap();
    soon("another wake-up", wakeups.woken()).await;
}

/// As on a server that was replaced: the connection exists, but nothing arrives on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_on_which_no_wakeups_come_is_noticed() {
    let server = PostgresServer::start();
    let proxy = PostgresProxy::before(&server).await;
    let builder = PostgresBackend::builder(server.url()).listen_url(proxy.url());
    let builder = builder.response_timeout(Duration::from_secs(2));
    let backend = builder.connect().await.unwrap();
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&backend, &holder).await;
    let subscribe = lockcore::backend::SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    proxy.swallow_notifications(true);
    backend.release(&holder.release()).await.unwrap();
    until("the interruption", || async { backend.channels_in_use() == 0 }).await;
    // The configuration was correct before, and may become so again.
    until("another attempt", || async {
        let error = backend.subscribe(&subscribe).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        error.kind() == BackendErrorKind::Unavailable
    })
    .await;
    proxy.swallow_notifications(false);
    soon("the wake-up", wakeups.woken()).await;
}

/// Each of two servers takes writes, and the requests go to the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeups_are_listened_for_where_the_requests_go() {
    let (other, server) = (PostgresServer::start(), PostgresServer::start());
    let hosts = format!("{},{}", other.address(), server.address());
    let builder = PostgresBackend::builder(server.url())
        .listen_url(format!("postgresql://postgres@{hosts}/postgres"))
        .response_timeout(Duration::from_secs(2));
    let backend = soon("a connection", builder.connect()).await.unwrap();
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&backend, &holder).await;
    let subscribe = lockcore::backend::SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    backend.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_from_which_no_wakeups_come_any_more_is_left_for_the_next_one() {
    let server = PostgresServer::start();
    let first = PostgresProxy::before(&server).await;
    let second = PostgresProxy::before(&server).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let builder = PostgresBackend::builder(server.url())
        .listen_url(format!("postgresql://postgres@{hosts}/postgres?sslmode=disable"))
        .response_timeout(Duration::from_secs(2));
    let backend = builder.connect().await.unwrap();
    let (holder, waiter) = (request("order", "holder"), request("order", "waiter"));
    enters(&backend, &holder).await;
    let subscribe = lockcore::backend::SubscribeRequest::new(name("order"), waiter.hold.clone());
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    first.swallow_notifications(true);
    backend.release(&holder.release()).await.unwrap();
    soon("the wake-up", wakeups.woken()).await;
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_on_in_time() {
    let server = PostgresServer::start();
    let builder = PostgresBackend::builder(server.url()).response_timeout(Duration::from_secs(1));
    let backend = builder.connect().await.unwrap();
    server.freeze();
    let asked = Instant::now();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
    assert!(error.is_outcome_unknown(), "it was sent: {error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    server.thaw();
    backend_serves_again(&backend).await;
    let release = backend.release(&request("order", "a").undo()).await.unwrap();
    assert!(matches!(release, ReleaseOutcome::NotHeld | ReleaseOutcome::Released));
    assert!(!is_held(&backend, "order").await);
}

async fn backend_serves_again(backend: &PostgresBackend) {
    until("an answer", || async { backend.inspect(&name("other")).await.is_ok() }).await;
}

#[tokio::test]
async fn while_the_server_is_down_requests_fail_soon_and_are_not_applied() {
    let mut server = PostgresServer::start();
    let backend = connect(&server).await;
    server.stop();
    until("the loss", || async { backend.inspect(&name("order")).await.is_err() }).await;
    let asked = Instant::now();
    let error = backend.acquire(&request("order", "a")).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let lock = Locks::builder(backend.clone())
        .retry_for(Duration::from_millis(300))
        .build()
        .unwrap()
        .lock("order");
    let error = soon("the end of its patience", lock.acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::Backend(_)), "{error}");
    server.restart();
    backend_serves_again(&backend).await;
    let outcome = backend.acquire(&request("order", "b")).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Acquired { .. }), "{outcome:?}");
}

#[tokio::test]
async fn dropped_clients_leave_no_connection() {
    let server = PostgresServer::start();
    let backend = connect(&server).await;
    let guard = Locks::new(backend.clone()).lock("order").acquire().await.unwrap();
    assert_eq!(connections(&server).await, 5);
    guard.release().await.unwrap();
    drop(backend);
    until("the end of the connections", || async { connections(&server).await == 0 }).await;
}
