//! Tokens that are checked in the transaction that writes the data.

use std::time::Duration;

use lockcore::{
    FencingToken, LockName, Locks, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, SubscribeRequest, Wakeup,
    },
};
use lockcore_postgres::{Fence, PostgresBackend, is_stale_token};
use lockcore_testkit::PostgresServer;
use tokio_postgres::{Client, IsolationLevel};

use crate::support::{LEASE, WAITING, connect, enters, name, request, session, soon, until};

fn fence() -> (Fence, LockName) {
    (Fence::new("lockcore").unwrap(), name("account"))
}

/// Writes the data that the lock protects, with a token.
async fn writes(client: &mut Client, token: FencingToken) -> Result<(), tokio_postgres::Error> {
    let (fence, name) = fence();
    let transaction = client.transaction().await?;
    fence.check(&transaction, &name, token).await?;
    let value = i64::try_from(u64::from(token)).unwrap();
    transaction.execute("INSERT INTO written (token) VALUES ($1)", &[&value]).await?;
    transaction.commit().await
}

async fn server() -> PostgresServer {
    let server = PostgresServer::start();
    server.query("CREATE TABLE written (number serial, token bigint)").await;
    server
}

#[tokio::test]
async fn a_writer_that_stalled_is_turned_away_as_soon_as_somebody_else_holds_the_lock() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let mut stalled = request("account", "stalled");
    stalled.lease = Duration::from_secs(2);
    let old = enters(&backend, &stalled).await;
    writes(&mut client, old).await.unwrap();
    let other = request("account", "other");
    until("the end of the lease", || async {
        backend.acquire(&other).await.unwrap().token().is_some()
    })
    .await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM written").await, [["1"]]);

    let new = enters(&backend, &other).await;
    writes(&mut client, new).await.unwrap();
    backend.release(&other.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "the lock is free, and the data is newer: {error}");
}

#[tokio::test]
async fn a_writer_with_a_reader_beside_it_is_not_turned_away() {
    let server = server().await;
    let backend = connect(&server).await;
    let write = request("account", "writer").mode(Mode::Write);
    let token = enters(&backend, &write).await;
    let read = request("account", "reader").mode(Mode::Read).within(Some(write.hold.clone()));
    assert!(enters(&backend, &read).await > token);
    writes(&mut session(&server).await, token).await.unwrap();
}

/// A hold with several tokens, one for each of several tasks of one client.
async fn tokens(server: &PostgresServer) -> [FencingToken; 2] {
    let backend = connect(server).await;
    let first = enters(&backend, &request("account", "holder").tokens(2)).await;
    [first, FencingToken::from(u64::from(first) + 1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_the_same_time_the_second_waits_for_the_first() {
    let server = server().await;
    let [old, new] = tokens(&server).await;
    let (fence, name) = fence();
    let (mut first, mut second) = (session(&server).await, session(&server).await);
    let newer = first.transaction().await.unwrap();
    fence.check(&newer, &name, new).await.unwrap();
    let older = tokio::spawn(async move { writes(&mut second, old).await });
    until("the wait", || async { !server.query(WAITING).await.is_empty() }).await;
    newer.commit().await.unwrap();
    let error = soon("the older one", older).await.unwrap().unwrap_err();
    assert!(is_stale_token(&error), "{error}");
}

#[tokio::test]
async fn a_check_that_was_rolled_back_turns_nobody_away() {
    let server = server().await;
    let [old, new] = tokens(&server).await;
    let (fence, name) = fence();
    let mut client = session(&server).await;
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, new).await.unwrap();
    transaction.rollback().await.unwrap();
    writes(&mut client, old).await.unwrap();
}

/// Acquires and releases, and checks nothing.
async fn comes_and_goes(backend: &PostgresBackend, request: &AcquireRequest) {
    enters(backend, request).await;
    backend.release(&request.release()).await.unwrap();
}

#[tokio::test]
async fn a_later_holder_is_remembered_although_it_checked_nothing() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write, Mode::Read] {
        let writer = match mode {
            Mode::Read => Mode::Write,
            mode => mode,
        };
        let stalled = request("account", "stalled").mode(writer);
        let old = enters(&backend, &stalled).await;
        writes(&mut client, old).await.unwrap();
        backend.release(&stalled.release()).await.unwrap();
        writes(&mut client, old).await.unwrap();
        comes_and_goes(&backend, &request("account", "other").mode(mode)).await;
        let error = writes(&mut client, old).await.unwrap_err();
        assert!(is_stale_token(&error), "{mode}: {error}");
    }
}

#[tokio::test]
async fn a_direct_grant_is_remembered_too() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let fair = |hold| request("account", hold).mode(Mode::Fair).queue(Some(LEASE));
    let (stalled, waiter) = (fair("stalled"), fair("waiter").direct_grant(Some(1)));
    let old = enters(&backend, &stalled).await;
    writes(&mut client, old).await.unwrap();
    assert!(backend.acquire(&waiter).await.unwrap().token().is_none());
    backend.release(&stalled.release()).await.unwrap();
    backend.release(&waiter.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "{error}");
}

/// The later hold was not recorded, because nothing had been fenced yet.
#[tokio::test]
async fn the_first_check_of_a_name_needs_a_hold() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let stalled = request("account", "stalled");
    let old = enters(&backend, &stalled).await;
    backend.release(&stalled.release()).await.unwrap();
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "its hold has ended: {error}");
    comes_and_goes(&backend, &request("account", "other")).await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "somebody else has come and gone: {error}");
    let held = enters(&backend, &request("account", "third")).await;
    let error = writes(&mut client, old).await.unwrap_err();
    assert!(is_stale_token(&error), "somebody else holds it: {error}");
    writes(&mut client, held).await.unwrap();
}

/// The data that such a transaction reads may be too old for the check.
#[tokio::test]
async fn another_isolation_level_is_refused() {
    let server = server().await;
    let token = enters(&connect(&server).await, &request("account", "holder")).await;
    let (fence, name) = fence();
    let mut client = session(&server).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        let error = fence.check(&transaction, &name, token).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "LC002", "{error}");
        assert!(error.as_db_error().unwrap().message().contains("READ COMMITTED"), "{error}");
    }
}

/// Between the check and the commit the lock cannot be taken over, even if nobody else has ever
/// checked the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_waits_for_the_fenced_transaction() {
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write, Mode::Read] {
        let server = server().await;
        let backend = connect(&server).await;
        let writer = if mode == Mode::Read { Mode::Write } else { mode };
        let holder = request("account", "holder").mode(writer);
        let token = enters(&backend, &holder).await;
        let ((fence, name), mut client) = (fence(), session(&server).await);
        let transaction = client.transaction().await.unwrap();
        fence.check(&transaction, &name, token).await.unwrap();
        backend.release(&holder.release()).await.unwrap();

        let other = request("account", "other").mode(mode);
        let refused = backend.acquire(&other).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Held { .. }), "{mode}: {refused:?}");
        transaction.commit().await.unwrap();
        assert!(enters(&backend, &other).await > token);
        let error = writes(&mut client, token).await.unwrap_err();
        assert!(is_stale_token(&error), "{mode}: {error}");
    }
}

/// A transaction is short as a rule: whoever comes meanwhile gets in without asking again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_waits_for_a_moment_within_its_request() {
    let server = server().await;
    let backend = connect(&server).await;
    let holder = request("account", "holder");
    let token = enters(&backend, &holder).await;
    let ((fence, name), mut client) = (fence(), session(&server).await);
    let mut is_granted = false;
    // On a busy machine, the wait may be over before it is seen.
    for round in 0..20 {
        let transaction = client.transaction().await.unwrap();
        fence.check(&transaction, &name, token).await.unwrap();
        if round == 0 {
            backend.release(&holder.release()).await.unwrap();
        }
        let waiting = tokio::spawn({
            let (backend, other) = (backend.clone(), request("account", "other"));
            async move { backend.acquire(&other).await.unwrap() }
        });
        until("its wait, or its end", || async {
            let waits = "SELECT pid FROM pg_locks WHERE classid = 1819239277 AND NOT granted";
            waiting.is_finished() || !server.query(waits).await.is_empty()
        })
        .await;
        transaction.commit().await.unwrap();
        is_granted = soon("the answer", waiting).await.unwrap().token().is_some();
        if is_granted {
            break;
        }
    }
    assert!(is_granted);
}

/// The writer went on as a reader. Whoever reads beside it has not superseded it, but has read what
/// it wrote.
#[tokio::test]
async fn a_writer_is_turned_away_once_its_hold_is_over_and_others_read() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let write = request("account", "writer").mode(Mode::Write);
    let token = enters(&backend, &write).await;
    let read = |hold: &str| request("account", hold).mode(Mode::Read);
    let downgraded = read("downgraded").within(Some(write.hold.clone()));
    let reading = enters(&backend, &downgraded).await;
    writes(&mut client, token).await.unwrap();
    backend.release(&write.release()).await.unwrap();
    writes(&mut client, token).await.unwrap();
    for other in ["other", "third"] {
        enters(&backend, &read(other)).await;
        let error = writes(&mut client, token).await.unwrap_err();
        assert!(is_stale_token(&error), "{other}: {error}");
        // It holds the lock all the time.
        writes(&mut client, reading).await.unwrap();
    }
}

/// It must not read before the writer's transaction has ended.
#[tokio::test]
async fn a_reader_beside_another_waits_for_the_fenced_transaction_of_the_writer_before() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let write = request("account", "writer").mode(Mode::Write);
    let token = enters(&backend, &write).await;
    let read = |hold: &str| request("account", hold).mode(Mode::Read);
    enters(&backend, &read("downgraded").within(Some(write.hold.clone()))).await;
    let (fence, name) = fence();
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, token).await.unwrap();
    backend.release(&write.release()).await.unwrap();
    let refused = backend.acquire(&read("other")).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    transaction.commit().await.unwrap();
    enters(&backend, &read("other")).await;
}

/// The reader came before the second writer, and stays after it.
#[tokio::test]
async fn a_writer_that_took_over_a_hold_with_a_reader_beside_it_is_fenced_like_the_first() {
    #[derive(Debug)]
    enum Forgotten {
        Never,
        Before,
        After,
    }
    use Forgotten::{After, Before, Never};
    for (was_checked, forgotten) in [(true, Never), (false, Never), (true, Before), (true, After)] {
        let server = server().await;
        let (backend, mut client) = (connect(&server).await, session(&server).await);
        let write = |id: &str| {
            let hold = HoldId::named("writer", id);
            AcquireRequest::new(name("account"), hold, LEASE).mode(Mode::Write)
        };
        let read = |hold: &str| request("account", hold).mode(Mode::Read);
        let first = enters(&backend, &write("first")).await;
        if was_checked {
            writes(&mut client, first).await.unwrap();
        }
        let beside = read("beside").within(Some(write("first").hold));
        enters(&backend, &beside).await;
        let second = enters(&backend, &write("second")).await;
        let ((fence, account), mut other) = (fence(), session(&server).await);
        let forget = async |client: &mut Client| {
            let transaction = client.transaction().await.unwrap();
            let is_forgotten = fence.forget(&transaction, &account).await.unwrap();
            transaction.commit().await.unwrap();
            is_forgotten
        };
        if !matches!(forgotten, Never) {
            writes(&mut client, second).await.unwrap();
            if matches!(forgotten, Before) {
                assert!(!forget(&mut other).await, "the reader beside the first writer is there");
            }
            backend.release(&write("second").release()).await.unwrap();
        } else if was_checked {
            let transaction = other.transaction().await.unwrap();
            fence.check(&transaction, &account, second).await.unwrap();
            backend.release(&write("second").release()).await.unwrap();
            let refused = backend.acquire(&read("other")).await.unwrap();
            assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
            transaction.commit().await.unwrap();
        } else {
            backend.release(&write("second").release()).await.unwrap();
        }
        let reading = enters(&backend, &read("other")).await;
        if matches!(forgotten, After) {
            forget(&mut other).await;
        }
        for old in [first, second] {
            let error = writes(&mut client, old).await.unwrap_err();
            assert!(is_stale_token(&error), "{was_checked}, {forgotten:?}: {error}");
        }
        writes(&mut client, reading).await.unwrap();
    }
}

#[tokio::test]
async fn permits_have_no_fence() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let locks = Locks::new(backend);
    for was_lock in [false, true] {
        let mut old = None;
        if was_lock {
            let guard = locks.lock("account").acquire().await.unwrap();
            writes(&mut client, guard.token()).await.unwrap();
            old = Some(guard.token());
            guard.release().await.unwrap();
        }
        let semaphore = locks.semaphore("account", 2);
        let permits = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
        for token in permits.each_ref().map(|permit| permit.token()).into_iter().chain(old) {
            let error = writes(&mut client, token).await.unwrap_err();
            assert!(!is_stale_token(&error), "{error:?}");
            assert!(format!("{error:?}").contains("semaphore"), "{error:?}");
        }
        for permit in permits {
            permit.release().await.unwrap();
        }
    }
}

/// A renewal of it may be about to be committed.
#[tokio::test]
async fn a_forgetting_takes_no_older_reader_for_ended() {
    let server = server().await;
    let (backend, mut client) = (connect(&server).await, session(&server).await);
    let write = |id: &str| {
        let hold = HoldId::named("writer", id);
        AcquireRequest::new(name("account"), hold, LEASE).mode(Mode::Write)
    };
    enters(&backend, &write("first")).await;
    let beside = request("account", "beside").mode(Mode::Read).within(Some(write("first").hold));
    enters(&backend, &beside).await;
    let second = enters(&backend, &write("second")).await;
    writes(&mut client, second).await.unwrap();
    let (fence, account) = fence();
    for (is_released, rows) in [(false, 1), (true, 0)] {
        if is_released {
            backend.release(&beside.release()).await.unwrap();
        }
        let transaction = client.transaction().await.unwrap();
        let end = "UPDATE lockcore.hold SET until = clock_timestamp() - interval '1 s'
                   WHERE mode = 3";
        transaction.execute(end, &[]).await.unwrap();
        let is_forgotten = fence.forget(&transaction, &account).await.unwrap();
        assert_eq!(is_forgotten, is_released);
        let count = "SELECT count(*) FROM lockcore.fence";
        let count: i64 = transaction.query_one(count, &[]).await.unwrap().get(0);
        assert_eq!(count, rows);
        transaction.rollback().await.unwrap();
    }
}

/// Its row is not there yet for others to see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_first_check_and_a_forgetting_the_second_waits_for_the_first() {
    for checks_first in [true, false] {
        let server = server().await;
        let backend = connect(&server).await;
        let token = enters(&backend, &request("account", "holder")).await;
        let ((fence, name), mut client) = (fence(), session(&server).await);
        let transaction = client.transaction().await.unwrap();
        match checks_first {
            true => fence.check(&transaction, &name, token).await.unwrap(),
            false => assert!(fence.forget(&transaction, &name).await.unwrap()),
        }
        let second = tokio::spawn({
            let (fence, name, mut client) = (fence.clone(), name, session(&server).await);
            async move {
                if !checks_first {
                    return writes(&mut client, token).await.unwrap();
                }
                let transaction = client.transaction().await.unwrap();
                assert!(fence.forget(&transaction, &name).await.unwrap());
                transaction.commit().await.unwrap();
            }
        });
        until("its wait, or its end", || async {
            second.is_finished() || !server.query(WAITING).await.is_empty()
        })
        .await;
        assert!(!second.is_finished(), "{checks_first}: it did not wait");
        transaction.commit().await.unwrap();
        soon("the second one", second).await.unwrap();
        let rows = server.query("SELECT count(*) FROM lockcore.fence").await;
        assert_eq!(rows, [[if checks_first { "0" } else { "1" }]], "{checks_first}");
    }
}

/// It ends a session that stalls, also when it forgets.
#[tokio::test]
async fn a_forgetting_keeps_the_idle_limit() {
    let server = server().await;
    let token = enters(&connect(&server).await, &request("account", "holder")).await;
    let ((fence, name), mut client) = (fence(), session(&server).await);
    for (limit, shown) in [(Duration::from_secs(9), "9s"), (Duration::ZERO, "0")] {
        let fence = fence.clone().idle_limit(limit);
        for checks in [true, false] {
            let transaction = client.transaction().await.unwrap();
            if checks {
                fence.check(&transaction, &name, token).await.unwrap();
            }
            fence.forget(&transaction, &name).await.unwrap();
            let setting = "SELECT current_setting('idle_in_transaction_session_timeout')";
            let idle = transaction.query_one(setting, &[]).await.unwrap();
            assert_eq!(idle.get::<_, &str>(0), shown, "{checks}");
            transaction.rollback().await.unwrap();
        }
    }
}

/// The rights that the README names for the role of the data.
#[tokio::test]
async fn a_role_that_only_writes_data_needs_few_rights() {
    let server = server().await;
    let backend = connect(&server).await;
    server.query("CREATE ROLE data LOGIN PASSWORD 'secret'").await;
    server
        .query(
            "GRANT USAGE ON SCHEMA lockcore TO data;
             GRANT SELECT ON lockcore.hold TO data;
             GRANT SELECT, INSERT, UPDATE, DELETE ON lockcore.fence TO data;
             GRANT INSERT ON written TO data;
             GRANT USAGE ON SEQUENCE written_number_seq TO data",
        )
        .await;
    let url = server.url_of("data", "secret");
    let (mut client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let token = enters(&backend, &request("account", "holder")).await;
    for _ in 0..2 {
        writes(&mut client, token).await.unwrap();
    }
}

/// Other requests wait behind a request on its connection, also those that renew.
#[tokio::test]
async fn all_waits_of_a_request_together_take_2_s() {
    let server = server().await;
    drop(connect(&server).await);
    let limit_after = async |passed: &str| {
        let mut client = session(&server).await;
        let transaction = client.transaction().await.unwrap();
        let limit = format!("SELECT pg_sleep({passed}), lockcore.limit_wait()");
        transaction.batch_execute(&limit).await.unwrap();
        let limit = "SELECT setting::integer FROM pg_settings WHERE name = 'lock_timeout'";
        transaction.query_one(limit, &[]).await.unwrap().get::<_, i32>(0)
    };
    assert!((1..=2_000).contains(&limit_after("0").await));
    assert!((1..=1_500).contains(&limit_after("0.5").await));
    assert_eq!(limit_after("2.1").await, 1, "0 would be no limit");
}

#[tokio::test]
async fn each_wait_of_a_request_is_limited() {
    let server = server().await;
    drop(connect(&server).await);
    let mut blocking = session(&server).await;
    // The note of a smaller one would be deleted.
    blocking.batch_execute("SELECT lockcore.note_token('order', 9000000000000000)").await.unwrap();
    let sequence = r#"SELECT pg_advisory_xact_lock(1819239276, hashtext('"lockcore".token'))"#;
    let row = "SELECT FROM lockcore.proposed WHERE name = 'order' FOR UPDATE";
    for (blocked, call) in [
        (sequence, "draw_tokens(1)"),
        (sequence, "raise_tokens(9000000000000000)"),
        (row, "tokens_of('order', NULL, 1)"),
        (row, "note_token('order', 2)"),
    ] {
        let transaction = blocking.transaction().await.unwrap();
        transaction.batch_execute(blocked).await.unwrap();
        // Without a limit of its own, this session would wait for ever.
        let call = format!("SELECT lockcore.{call}");
        let waiting = session(&server).await;
        let error = soon("the limit", waiting.batch_execute(&call)).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "55P03", "{call}: {error}");
        transaction.rollback().await.unwrap();
    }
}

/// The transaction may belong to the owner that releases.
#[tokio::test]
async fn a_release_does_not_wait_for_a_fenced_transaction() {
    let server = server().await;
    let backend = connect(&server).await;
    let fair = |hold| request("account", hold).mode(Mode::Fair).queue(Some(LEASE));
    let (holder, waiter) = (fair("holder"), fair("waiter").direct_grant(Some(1)));
    let token = enters(&backend, &holder).await;
    assert!(backend.acquire(&waiter).await.unwrap().token().is_none());
    let subscribe = SubscribeRequest::new(name("account"), waiter.hold.clone()).mode(Mode::Fair);
    let mut wakeups = backend.subscribe(&subscribe).await.unwrap();
    let ((fence, name), mut client) = (fence(), session(&server).await);
    let transaction = client.transaction().await.unwrap();
    fence.check(&transaction, &name, token).await.unwrap();
    let released = backend.release(&holder.release()).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    assert_eq!(soon("the wake-up", wakeups.woken()).await, Wakeup::Changed);
    transaction.commit().await.unwrap();
    assert!(enters(&backend, &waiter).await > token);
}
