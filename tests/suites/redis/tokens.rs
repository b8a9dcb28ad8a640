//! Tokens that clients propose to scripts, because they know the server's clock.

use std::time::Duration;

use lockcore::{
    BackendErrorKind, FencingToken,
    backend::{AcquireOutcome, AcquireRequest, Backend, ReleaseOutcome},
};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    batches::{begin, end, exclusive, is_granted, outcome},
    errors::{LEAST_RIGHTS, connect_as, set_user},
    steps::{enters, exists, fill, keys, name, pttl, releases},
    support::{connect, locks, server_for_scripts, soon},
};

pub(crate) const TOKEN: &str = "redisson_lock_token:{locks:a}";
pub(crate) const DAY: i64 = 86_400_000;

pub(crate) fn lock() -> AcquireRequest {
    exclusive("locks:a", 1)
}

pub(crate) async fn last_token(server: &RedisServer) -> u64 {
    server.query(&["GET", TOKEN]).await
}

pub(crate) async fn set_token(server: &RedisServer, token: u64, options: &[&str]) {
    let token = token.to_string();
    let _: String = server.query(&[&["SET", TOKEN, &token], options].concat()).await;
}

/// The server's time in microseconds.
pub(crate) async fn time(server: &RedisServer) -> u64 {
    let [seconds, micros]: [u64; 2] = server.query::<Vec<u64>>(&["TIME"]).await.try_into().unwrap();
    seconds * 1_000_000 + micros
}

/// Acquires the lock, and returns the token and whether it was proposed: then the server was not
/// asked for the time.
async fn enters_by_proposal(
    server: &RedisServer,
    backend: &RedisBackend,
    request: &AcquireRequest,
) -> (FencingToken, bool) {
    let before = server.calls_of("time").await;
    let token = enters(backend, request).await;
    (token, server.calls_of("time").await == before)
}

/// Acquires and releases until the client has proposed the token, and returns that. The client then
/// knows the server's clock for a second after it learned it.
async fn proposes(
    server: &RedisServer,
    backend: &RedisBackend,
    request: &AcquireRequest,
) -> FencingToken {
    soon("a proposal", async {
        loop {
            let (token, is_proposed) = enters_by_proposal(server, backend, request).await;
            assert_eq!(releases(backend, request).await, ReleaseOutcome::Released);
            if is_proposed {
                return token;
            }
        }
    })
    .await
}

/// Makes the client learn the server's clock through another lock.
async fn learn_clock(server: &RedisServer, backend: &RedisBackend) {
    proposes(server, backend, &exclusive("locks:other", 1)).await;
}

#[tokio::test]
async fn a_proposal_takes_five_commands() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    let calls = async || {
        let mut calls = Vec::new();
        for command in ["evalsha", "exists", "get", "set", "hset", "pexpire", "time", "pttl"] {
            calls.push(server.calls_of(command).await);
        }
        calls
    };
    soon("a proposal", async {
        loop {
            learn_clock(&server, &backend).await;
            let before = calls().await;
            enters(&backend, &lock()).await;
            let spent: Vec<_> =
                calls().await.into_iter().zip(before).map(|(now, before)| now - before).collect();
            releases(&backend, &lock()).await;
            if spent[6] == 0 {
                assert_eq!(spent, [1, 1, 1, 1, 1, 1, 0, 0]);
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn tokens_of_clients_that_take_turns_rise_and_are_not_ahead_of_the_clock() {
    let server = server_for_scripts();
    let clients = [connect(&server).await, connect(&server).await];
    let (mut last, mut proposed) = (0, 0);
    for round in 0..200 {
        let client = &clients[round % 2];
        let (token, is_proposed) = enters_by_proposal(&server, client, &lock()).await;
        let token = u64::from(token);
        proposed += u32::from(is_proposed);
        assert!(token > last, "round {round}: {token} after {last}");
        assert_eq!(last_token(&server).await, token);
        assert!((1..=60_000).contains(&pttl(&server, "locks:a").await));
        releases(client, &lock()).await;
        assert!(token < time(&server).await);
        last = token;
    }
    assert!(proposed > 0, "no token was proposed");
}

#[tokio::test]
async fn tokens_rise_although_the_last_one_is_lost() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    for command in [["DEL", TOKEN].as_slice(), &["FLUSHALL"]] {
        let last = proposes(&server, &backend, &lock()).await;
        let _: redis::Value = server.query(command).await;
        let token = enters(&backend, &lock()).await;
        assert!(token > last, "{token:?} after {last:?}");
        assert!((DAY - 60_000..=DAY).contains(&pttl(&server, TOKEN).await));
        releases(&backend, &lock()).await;
        assert!(proposes(&server, &backend, &lock()).await > token);
    }
}

#[tokio::test]
async fn a_token_that_is_ahead_of_the_clock_is_followed_by_the_next() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    learn_clock(&server, &backend).await;
    for ahead in [60_000_000, 7_000_000_000_000_000] {
        let last = time(&server).await + ahead;
        set_token(&server, last, &[]).await;
        for number in 1..=3 {
            assert_eq!(u64::from(enters(&backend, &lock()).await), last + number);
            releases(&backend, &lock()).await;
        }
    }
}

#[tokio::test]
async fn the_token_of_redissons_fenced_lock_keeps_having_no_expiry() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    learn_clock(&server, &backend).await;
    for stored in ["5", "0", "none"] {
        let _: String = server.query(&["SET", TOKEN, stored]).await;
        let first = enters(&backend, &lock()).await;
        assert!(u64::from(first) > 1_000_000_000_000_000);
        releases(&backend, &lock()).await;
        assert_eq!(pttl(&server, TOKEN).await, -1);
        let second = proposes(&server, &backend, &lock()).await;
        assert!(second > first);
        assert_eq!(pttl(&server, TOKEN).await, -1);
    }
}

#[tokio::test]
async fn the_expiry_of_a_token_is_renewed_within_hours() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    learn_clock(&server, &backend).await;
    // The maximum lead of a proposal over the last token.
    let last = time(&server).await - 10_000_000_000;
    set_token(&server, last, &["PX", "1000000"]).await;
    enters(&backend, &lock()).await;
    assert!((DAY - 60_000..=DAY).contains(&pttl(&server, TOKEN).await));
}

#[tokio::test]
async fn the_token_of_a_long_lease_is_kept_for_longer() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    for (hours, kept) in [(12, DAY), (13, 26 * 3_600_000)] {
        let mut request = lock();
        request.lease = Duration::from_secs(hours * 3600);
        learn_clock(&server, &backend).await;
        let first = enters(&backend, &request).await;
        let ms = i64::try_from(hours * 3_600_000).unwrap();
        assert!((ms - 60_000..=ms).contains(&pttl(&server, "locks:a").await));
        assert!((kept - 60_000..=kept).contains(&pttl(&server, TOKEN).await));
        releases(&backend, &request).await;
        let second = enters(&backend, &request).await;
        assert!(second > first);
        assert!((kept - 60_000..=kept).contains(&pttl(&server, TOKEN).await));
        releases(&backend, &request).await;
    }
}

#[tokio::test]
async fn a_repeated_request_finds_the_first_of_its_tokens() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    let mut request = lock();
    request.tokens = 7;
    soon("a proposal", async {
        loop {
            learn_clock(&server, &backend).await;
            let (first, is_proposed) = enters_by_proposal(&server, &backend, &request).await;
            assert_eq!(last_token(&server).await, u64::from(first) + 6);
            assert_eq!(enters(&backend, &request).await, first);
            // Once more, in a batch.
            let tasks = [exclusive("locks:b", 1), request.clone(), exclusive("locks:c", 1)]
                .map(|request| begin(&backend, &request));
            let [_, repeated, _] = tasks;
            let repeated = outcome(repeated).await.unwrap();
            assert_eq!(repeated, AcquireOutcome::Acquired { token: first });
            releases(&backend, &request).await;
            if is_proposed {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn full_memory_leaves_the_token_of_a_refused_proposal_as_it_was() {
    let server = server_for_scripts();
    let backend = connect(&server).await;
    enters(&backend, &lock()).await;
    releases(&backend, &lock()).await;
    learn_clock(&server, &backend).await;
    let last = last_token(&server).await;
    fill(&server).await;
    let error = backend.acquire(&lock()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::OutOfMemory, "{error}");
    assert!(!error.is_outcome_unknown());
    assert_eq!(last_token(&server).await, last);
    assert!(!exists(&server, "locks:a").await);
}

#[tokio::test]
async fn a_right_that_is_withdrawn_leaves_no_lock_behind_a_proposal() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = server_for_scripts();
    for missing in ["pexpire", "hset", "set", "get", "exists"] {
        set_user(&server, "worker", &format!("reset on >pw {LEAST_RIGHTS}")).await;
        let worker = connect_as(&server, "worker").await.unwrap();
        enters(&worker, &lock()).await;
        releases(&worker, &lock()).await;
        learn_clock(&server, &worker).await;
        set_user(&server, "worker", &format!("-{missing}")).await;
        let error = worker.acquire(&lock()).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Permission, "{missing}: {error}");
        assert!(!error.is_outcome_unknown(), "{missing}: {error}");
        assert_eq!(keys(&server).await, Vec::<String>::new(), "without {missing}");
    }
}

#[tokio::test]
async fn a_small_batch_releases_once_although_the_scripts_are_gone() {
    let server = server_for_scripts();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let [first, ended, free, taken, last] =
        ["first", "ended", "free", "taken", "last"].map(|name| exclusive(name, 1));
    enters(&other, &exclusive("taken", 2)).await;
    for request in [&first, &ended, &free, &last] {
        enters(&backend, request).await;
        releases(&backend, request).await;
    }
    for _ in 0..10 {
        enters(&backend, &first).await;
        enters(&backend, &ended).await;
        let _: String = server.query(&["SCRIPT", "FLUSH"]).await;
        let calls = async |command| server.calls_of(command).await;
        let before = [calls("publish").await, calls("hdel").await, calls("eval").await];
        // The release needs no script. The others are sent before it has ended.
        let releasing = end(&backend, &first);
        let others = [&taken, &free, &last].map(|request| begin(&backend, request));
        let ending = end(&backend, &ended);
        assert_eq!(outcome(releasing).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(outcome(ending).await.unwrap(), ReleaseOutcome::Released);
        let [taken, free_task, last_task] = others;
        let refused = outcome(taken).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
        assert!(is_granted(free_task).await && is_granted(last_task).await);
        let after = [calls("publish").await, calls("hdel").await, calls("eval").await];
        // Two releases and the refusal are published.
        assert_eq!([0, 1, 2].map(|index| after[index] - before[index]), [3, 2, 3]);
        for request in [&free, &last] {
            assert_eq!(releases(&backend, request).await, ReleaseOutcome::Released);
        }
    }
}

/// Tokens of the same period share an expiry: see `token.lua`.
pub(crate) const PERIOD: u64 = 10_000_000_000;

/// A token ahead of the server's clock.
fn ahead(time: u64) -> FencingToken {
    FencingToken::from(time + 3_600_000_000)
}

#[tokio::test]
async fn a_raised_token_is_kept_until_the_clock_has_come_to_it() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (name, raised) = (lock().name, ahead(time(&server).await));
    backend.raise_token(&name, raised).await.unwrap();
    assert_eq!(last_token(&server).await, u64::from(raised));
    let kept = pttl(&server, TOKEN).await;
    assert!((DAY + 3_590_000..=DAY + 3_601_000).contains(&kept), "{kept}");
    // Neither a smaller one nor the same changes anything.
    let _: i64 = server.query(&["PEXPIRE", TOKEN, "5000"]).await;
    for token in [1, u64::from(raised) - 1, u64::from(raised)] {
        backend.raise_token(&name, FencingToken::from(token)).await.unwrap();
    }
    assert_eq!(last_token(&server).await, u64::from(raised));
    assert!(pttl(&server, TOKEN).await <= 5_000);
    // A proposal of another period is kept for as long.
    let proposed = FencingToken::from(u64::from(raised) + PERIOD);
    assert_eq!(enters(&backend, &lock().least_token(Some(proposed))).await, proposed);
    let kept = pttl(&server, TOKEN).await;
    assert!((DAY + 13_590_000..=DAY + 13_601_000).contains(&kept), "{kept}");
}

/// Without the key, tokens would begin again at the clock.
#[tokio::test]
async fn the_last_token_is_kept_for_longer_than_proposals_of_its_period_are_ahead() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let now = time(&server).await;
    let begin = now - now % PERIOD + PERIOD;
    for (proposed, expected) in [(begin, begin), (begin + PERIOD - 1, begin + PERIOD - 1), (1, 0)] {
        let proposed = FencingToken::from(proposed);
        let token = enters(&backend, &lock().least_token(Some(proposed))).await;
        let last = last_token(&server).await;
        assert_eq!(u64::from(token), if expected == 0 { begin + PERIOD } else { expected });
        assert_eq!(last, u64::from(token));
        assert_eq!(releases(&backend, &lock()).await, ReleaseOutcome::Released);
        let kept = u64::try_from(pttl(&server, TOKEN).await).unwrap();
        let ahead = last.saturating_sub(time(&server).await) / 1_000;
        assert!(kept > ahead + 20 * 3_600_000, "{kept} {ahead}");
    }
}

#[tokio::test]
async fn a_raised_token_of_redissons_fenced_lock_keeps_having_no_expiry() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    set_token(&server, 7, &[]).await;
    let raised = ahead(time(&server).await);
    backend.raise_token(&lock().name, raised).await.unwrap();
    assert_eq!(last_token(&server).await, u64::from(raised));
    assert_eq!(pttl(&server, TOKEN).await, -1);
    let proposed = FencingToken::from(u64::from(raised) + 10);
    assert_eq!(enters(&backend, &lock().least_token(Some(proposed))).await, proposed);
    assert_eq!(pttl(&server, TOKEN).await, -1);
}

/// `INCRBY` of a lost key leaves a small number. Tokens of the past were as great as the clock.
#[tokio::test]
async fn tokens_begin_at_the_clock_if_the_last_one_is_smaller_than_any_of_ours() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let small = FencingToken::from(40);
    for raises in [true, false] {
        set_token(&server, 3, &[]).await;
        let now = time(&server).await;
        match raises {
            true => backend.raise_token(&lock().name, small).await.unwrap(),
            false => {
                let token = enters(&backend, &lock().least_token(Some(small))).await;
                assert!(u64::from(token) >= now, "{token}");
            }
        }
        let last = last_token(&server).await;
        assert!(last >= now, "raises: {raises}, {last}");
    }
}

/// A client that remembers the last token of a lock, and acquires it without a script, follows the
/// raised one.
#[tokio::test]
async fn a_token_that_another_client_has_raised_is_followed_by_who_remembers_an_older_one() {
    let server = RedisServer::start();
    let [backend, other] = [connect(&server).await, connect(&server).await];
    for near in [10_000, 3_600_000_000] {
        for _ in 0..5 {
            enters(&backend, &lock()).await;
            releases(&backend, &lock()).await;
        }
        let raised = FencingToken::from(time(&server).await.max(last_token(&server).await) + near);
        other.raise_token(&lock().name, raised).await.unwrap();
        let token = enters(&backend, &lock()).await;
        assert!(token > raised, "{token} was granted after {raised}");
        releases(&backend, &lock()).await;
    }
}

/// The last token was that of another client, and is lost. A raised token that is between the two
/// must not take its place.
#[tokio::test]
async fn a_raised_token_in_place_of_a_lost_one_is_not_behind_the_clock() {
    let server = RedisServer::start();
    let [backend, other] = [connect(&server).await, connect(&server).await];
    for proposes in [false, true] {
        enters(&backend, &lock()).await;
        releases(&backend, &lock()).await;
        let own = u64::from(enters(&backend, &lock()).await);
        releases(&backend, &lock()).await;
        let last = u64::from(enters(&other, &lock()).await);
        releases(&other, &lock()).await;
        assert!(last > own);
        let _: i64 = server.query(&["DEL", TOKEN]).await;
        let raised = FencingToken::from(own + (last - own) / 2);
        other.raise_token(&lock().name, raised).await.unwrap();
        let proposed = proposes.then(|| FencingToken::from(u64::from(raised) + 1));
        let token = u64::from(enters(&backend, &lock().least_token(proposed)).await);
        assert!(token > last, "{token} was granted after {last}");
        releases(&backend, &lock()).await;
    }
}

#[tokio::test]
async fn a_token_that_scripts_cannot_count_on_from_is_refused() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let great = FencingToken::from(1 << 53);
    let raised = backend.raise_token(&lock().name, great).await.unwrap_err();
    let proposed = backend.acquire(&lock().least_token(Some(great))).await.unwrap_err();
    for error in [raised, proposed] {
        assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error}");
        assert!(!error.is_outcome_unknown(), "{error}");
    }
    assert!(!exists(&server, TOKEN).await);
}

/// The last token of a name is forgotten only if the next one is greater anyway.
#[tokio::test]
async fn a_token_that_is_needed_is_not_forgotten() {
    const TOKEN: &str = "redisson_lock_token:{once}";
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (lock, once) = (locks(&server).await.lock("once"), name("once"));
    assert!(!backend.forget(&once).await.unwrap(), "there is none");
    let guard = lock.acquire().await.unwrap();
    assert!(!backend.forget(&once).await.unwrap(), "the lock is held");
    let first = guard.token();
    guard.release().await.unwrap();
    assert!(backend.forget(&once).await.unwrap());
    assert!(!server.query::<bool>(&["EXISTS", TOKEN]).await);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.token() > first);
    guard.release().await.unwrap();

    let _: i64 = server.query(&["PERSIST", TOKEN]).await;
    assert!(!backend.forget(&once).await.unwrap(), "Redisson counts on from it");
    let _: String = server.query(&["SET", TOKEN, "9000000000000000", "PX", "60000"]).await;
    assert!(!backend.forget(&once).await.unwrap(), "it is ahead of the clock");
    let _: String = server.query(&["SET", TOKEN, "5", "PX", "60000"]).await;
    let _: i64 = server.query(&["RPUSH", "redisson_lock_queue:{once}", "a:1"]).await;
    assert!(!backend.forget(&once).await.unwrap(), "somebody is in the queue");
}
