//! A user who lacks one of the documented rights: every call works or names what is missing, in
//! time, and no lock is left forever.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, LockError, Locks, Mode,
    backend::{Backend, ConditionId},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use tokio::task::JoinSet;

use crate::{
    errors::{LEAST_RIGHTS, connect_as, set_user},
    everything::{assert_no_panic, call_everything, with_sources},
    steps::{LEASE, Messages, enters, hold, keys, name, request},
    support::{connect, soon},
};

/// The server's errors about a missing right. For a command inside a script, it does not say which.
const REFUSALS: [&str; 6] = [
    "can't run this command",
    "no permissions",
    "can't access",
    "NOPERM",
    "No permissions",
    "not permitted",
];

/// Connects as a user with all rights but `missing`.
async fn connect_without(
    server: &RedisServer,
    missing: &str,
) -> Result<RedisBackend, BackendError> {
    let rights: Vec<&str> =
        LEAST_RIGHTS.split_whitespace().filter(|right| *right != missing).collect();
    set_user(server, "poor", &rights.join(" ")).await;
    connect_as(server, "poor").await
}

/// Calls everything with all rights but `missing`, and returns the number of refused calls.
async fn without(missing: &str) -> usize {
    let server = RedisServer::start();
    let backend = match connect_without(&server, missing).await {
        Ok(backend) => backend,
        Err(error) => {
            let text = with_sources(&error);
            assert_eq!(error.kind(), BackendErrorKind::Permission, "{missing}: {text}");
            assert!(!error.is_retryable() && !error.is_outcome_unknown(), "{missing}: {text}");
            return 1;
        }
    };
    let builder = Locks::builder(backend).namespace("locks:").lease(Duration::from_millis(300));
    let locks = builder.queue_timeout(Duration::from_millis(60)).build().unwrap();
    let errors = soon(missing, call_everything(&locks)).await;
    let mut refused = 0;
    for error in &errors {
        let text = with_sources(error);
        match error {
            // The lease is short, and the machine may be busy.
            LockError::Backend(error) if error.to_string().contains("use a longer lease") => {}
            LockError::Backend(error) => {
                refused += 1;
                assert_eq!(error.kind(), BackendErrorKind::Permission, "{missing}: {text}");
                assert!(!error.is_retryable(), "{missing}: {text}");
                assert!(text.contains("locks:"), "names the lock: {missing}: {text}");
                assert!(
                    error.to_string().contains("grant the user the rights"),
                    "{missing}: {text}"
                );
                assert!(REFUSALS.iter().any(|refusal| text.contains(refusal)), "{missing}: {text}");
            }
            // Another task of the same load is inside, or has forced the lock; and readers have no
            // conditions.
            LockError::Timeout { .. }
            | LockError::LatchTimeout { .. }
            | LockError::Lost { .. }
            | LockError::InvalidOption { .. } => {}
            error => panic!("{missing}: {error}"),
        }
    }
    let mut endless = server.keys_without_expiry().await;
    // The size of a semaphore must be remembered, and the count of a latch has no lease.
    endless.retain(|key| !key.contains("locks:s") && key != "locks:l");
    assert_eq!(endless, Vec::<String>::new(), "without {missing}");
    refused
}

#[tokio::test]
async fn with_all_rights_nothing_is_refused() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    assert_eq!(without("nothing").await, 0);
}

#[tokio::test]
async fn each_right_that_is_missing_is_a_clear_error_and_leaves_no_lock_for_ever() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    assert_no_panic();
    let rights = LEAST_RIGHTS.split_whitespace().filter(|right| right.starts_with(['+', '~', '&']));
    let rights: Vec<&'static str> = rights.collect();
    let mut needless: Vec<&str> = Vec::new();
    for some in rights.chunks(4) {
        let meetings = some
            .iter()
            .copied()
            .map(|right: &'static str| async move { (right, without(right).await) });
        let mut refused = meetings.collect::<JoinSet<_>>().join_all().await;
        refused.retain(|(_, refused)| *refused == 0);
        needless.extend(refused.into_iter().map(|(right, _)| right));
        assert_no_panic();
    }
    // The rights in the first line are optional improvements, or are used before anybody has logged
    // in. The others are for crashed waiters, for writers that read, and for entering while others
    // wait.
    needless.retain(|right| {
        !["+hello", "+client", "+info", "+ping", "+unsubscribe", "+publish"].contains(right)
    });
    needless.retain(|right| !["+lpop", "+lrange", "+hexists", "+zincrby"].contains(right));
    assert_eq!(needless, Vec::<&str>::new(), "nothing needs them");
}

/// Takes a place in each kind of queue, as `waiter`. Returns the results.
async fn queue_up(backend: &RedisBackend, waiter: &str) -> Vec<Result<(), BackendError>> {
    let mut results = Vec::new();
    for (lock, mode) in [("locks:f", Mode::Fair), ("locks:r", Mode::Write)] {
        let request = request(lock, &hold(&format!("{waiter}:{mode}:1")), mode).queue(Some(LEASE));
        results.push(backend.acquire(&request).await.map(drop));
    }
    let full = ConditionId::new(name("locks:box"), name("full"));
    let waiter = format!("{waiter}:condition");
    results.push(backend.conditions().unwrap().join(&full, &waiter, LEASE).await);
    results
        .push(backend.conditions().unwrap().stay(&full, "there:condition", LEASE).await.map(drop));
    results
}

/// The waiters with a place in any queue.
async fn queued(server: &RedisServer) -> Vec<String> {
    let mut queued = Vec::new();
    for key in keys(server).await {
        let members: Vec<String> = match &*server.query::<String>(&["TYPE", &key]).await {
            "list" => server.query(&["LRANGE", &key, "0", "-1"]).await,
            "zset" => server.query(&["ZRANGE", &key, "0", "-1"]).await,
            _ => Vec::new(),
        };
        queued.extend(members);
    }
    queued
}

#[tokio::test]
async fn a_place_in_a_queue_is_taken_as_a_whole_or_not_at_all() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let rich = connect(&server).await;
    for missing in commands() {
        let Ok(poor) = connect_without(&server, missing).await else { continue };
        for is_crowded in [false, true] {
            let _: String = server.query(&["FLUSHALL"]).await;
            enters(&rich, &request("locks:f", &hold("holder:1"), Mode::Fair)).await;
            enters(&rich, &request("locks:r", &hold("holder:1"), Mode::Read)).await;
            if is_crowded {
                queue_up(&rich, "there").await.into_iter().collect::<Result<(), _>>().unwrap();
            }
            let before = queued(&server).await;
            let refusals = queue_up(&poor, "poor").await;
            let after = queued(&server).await;
            for (result, kind) in refusals.iter().zip(["poor:fair", "poor:write", "poor:condition"])
            {
                let is_in = after.iter().any(|waiter| waiter.contains(kind));
                assert_eq!(is_in, result.is_ok(), "without {missing}: {kind}: {result:?}");
            }
            for error in refusals.into_iter().filter_map(Result::err) {
                assert_eq!(
                    error.kind(),
                    BackendErrorKind::Permission,
                    "without {missing}: {error}"
                );
            }
            assert!(
                before.iter().all(|there| after.contains(there)),
                "without {missing}: {before:?} {after:?}"
            );
            assert_eq!(
                server.keys_without_expiry().await,
                Vec::<String>::new(),
                "without {missing}"
            );
        }
    }
}

/// The commands of the documented rights.
fn commands() -> impl Iterator<Item = &'static str> {
    LEAST_RIGHTS.split_whitespace().filter(|right| right.starts_with('+'))
}

#[tokio::test]
async fn a_latch_that_cannot_be_set_has_no_count_and_one_that_is_open_keeps_nobody() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let rich = connect(&server).await;
    let (set, open) = (name("locks:set"), name("locks:open"));
    let (mut cannot_set, mut cannot_open) = (0, 0);
    for missing in commands() {
        let Ok(poor) = connect_without(&server, missing).await else { continue };
        let _: String = server.query(&["FLUSHALL"]).await;
        if poor.latches().unwrap().set_count(&set, 2, "1").await.is_err() {
            cannot_set += 1;
            // With no right to delete, nothing can be taken back.
            let left = if missing == "+del" { vec!["locks:set".to_owned()] } else { Vec::new() };
            assert_eq!(keys(&server).await, left, "without {missing}");
        }
        assert!(rich.latches().unwrap().set_count(&open, 1, "1").await.unwrap());
        let mut wakeups = rich.latches().unwrap().subscribe(&open).await.unwrap();
        let counted = poor.latches().unwrap().count_down(&open, "2").await;
        cannot_open += usize::from(counted.is_err());
        // With no right to publish, those who wait are not told.
        if rich.latches().unwrap().count(&open).await.unwrap() == 0 && missing != "+publish" {
            soon(missing, wakeups.woken()).await;
        }
        if missing != "+del" {
            let count: Option<i64> = server.query(&["GET", "locks:open"]).await;
            assert_ne!(count, Some(0), "without {missing}");
        }
        // A count-down of a latch that does not exist leaves no key without an expiry.
        let _: String = server.query(&["FLUSHALL"]).await;
        let _ = poor.latches().unwrap().count_down(&open, "3").await;
        let endless = server.keys_without_expiry().await;
        assert_eq!(endless, Vec::<String>::new(), "without {missing}");
    }
    assert!(cannot_set > 3 && cannot_open > 3, "{cannot_set}, {cannot_open}");
}

/// Redisson's waiters would ask without a pause until the count is gone.
#[tokio::test]
async fn a_latch_that_cannot_be_opened_tells_nobody_that_it_is_open() {
    const CHANNEL: &str = "redisson_countdownlatch__channel__{locks:gate}";
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let (rich, gate) = (connect(&server).await, name("locks:gate"));
    let poor = connect_without(&server, "+del").await.unwrap();
    assert!(rich.latches().unwrap().set_count(&gate, 2, "1").await.unwrap());
    let mut messages = Messages::of(&server, CHANNEL).await;
    poor.latches().unwrap().open(&gate).await.unwrap_err();
    let _: i64 = server.query(&["PUBLISH", CHANNEL, "nothing before"]).await;
    assert_eq!(messages.next().await, "nothing before");
    assert_eq!(rich.latches().unwrap().open(&gate).await.unwrap(), 2);
    assert_eq!(messages.next().await, "0");
}

#[tokio::test]
async fn a_waiter_that_cannot_be_notified_is_notified_by_the_next_one() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let rich = connect(&server).await;
    let full = ConditionId::new(name("locks:box"), name("full"));
    let mut refused = 0;
    for missing in commands() {
        let Ok(poor) = connect_without(&server, missing).await else { continue };
        let _: String = server.query(&["FLUSHALL"]).await;
        let [here, other] = [&rich, &poor].map(|backend| backend.conditions().unwrap());
        here.join(&full, "waiter", LEASE).await.unwrap();
        if other.notify(&full, 1).await.is_err() {
            refused += 1;
            let is_told = here.notify(&full, 1).await.unwrap() == 1
                || !here.stay(&full, "waiter", LEASE).await.unwrap();
            assert!(is_told, "without {missing}");
        }
        assert!(!here.stay(&full, "waiter", LEASE).await.unwrap(), "without {missing}");
    }
    assert!(refused > 3, "{refused}");
}

#[tokio::test]
async fn a_client_that_has_no_right_to_a_record_leaves_none_behind() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    let put = async |backend: &RedisBackend| {
        backend.directory().unwrap().put_client("id", "record", LEASE).await
    };
    set_user(&server, "worker", LEAST_RIGHTS).await;
    put(&connect_as(&server, "worker").await.unwrap()).await.unwrap_err();
    assert_eq!(keys(&server).await, Vec::<String>::new());
    let rights = format!("{LEAST_RIGHTS} +zrangebylex").replace("+pexpire ", "");
    set_user(&server, "worker", &rights).await;
    put(&connect_as(&server, "worker").await.unwrap()).await.unwrap_err();
    assert_eq!(server.keys_without_expiry().await, Vec::<String>::new());
}
