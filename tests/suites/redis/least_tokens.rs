//! Tokens that the caller demands at least, as a quorum does of its members.

use lockcore::{
    FencingToken,
    backend::{AcquireRequest, ReleaseOutcome},
};
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    batches::{begin, exclusive, outcome},
    steps::{enters, pttl, releases},
    support::connect,
    tokens::{DAY, PERIOD, TOKEN, last_token, lock, set_token, time},
};

fn least(token: u64) -> AcquireRequest {
    lock().least_token(Some(FencingToken::from(token)))
}

/// As the proposals of a quorum do.
#[tokio::test]
async fn a_proposal_shortly_after_the_last_token_needs_no_script() {
    if server_lacks(Feature::LastingRestore) {
        return;
    }
    let server = RedisServer::start();
    let [backend, other] = [connect(&server).await, connect(&server).await];
    let now = time(&server).await;
    let begin = now - now % PERIOD + PERIOD;
    let acquires = async |backend, proposed, by_script: bool| {
        let before = server.calls_of("evalsha").await;
        let token = u64::from(enters(backend, &least(proposed)).await);
        assert_eq!(last_token(&server).await, token);
        let calls = server.calls_of("evalsha").await - before;
        assert_eq!(calls, u64::from(by_script), "of {proposed}");
        assert!((1..=60_000).contains(&pttl(&server, "locks:a").await));
        assert_eq!(releases(backend, &lock()).await, ReleaseOutcome::Released);
        token
    };
    // Loads the script.
    enters(&backend, &least(begin)).await;
    releases(&backend, &lock()).await;
    assert_eq!(acquires(&backend, begin + 50_000, true).await, begin + 50_000);
    for proposed in [begin + 50_001, begin + 50_002, begin + 50_050] {
        assert_eq!(acquires(&backend, proposed, false).await, proposed);
    }
    // Another client has issued tokens meanwhile.
    assert_eq!(acquires(&other, begin + 60_000, true).await, begin + 60_000);
    let token = acquires(&backend, begin + 50_051, false).await;
    assert!((begin + 60_001..begin + 60_100).contains(&token), "{token}");
    // Too early, too late, and in another period.
    for (proposed, expected) in [(begin, token + 1), (begin + 70_000, begin + 70_000)] {
        assert_eq!(acquires(&backend, proposed, true).await, expected);
    }
    assert_eq!(acquires(&backend, begin + PERIOD - 1, true).await, begin + PERIOD - 1);
    assert_eq!(acquires(&backend, begin + PERIOD, true).await, begin + PERIOD);
    assert_eq!(acquires(&backend, begin + PERIOD + 1, false).await, begin + PERIOD + 1);
}

#[tokio::test]
async fn a_proposal_holds_although_the_last_token_is_lost() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut proposed = time(&server).await + 5_000_000;
    for stored in [None, Some(3), Some(proposed - 1_000)] {
        for _ in 0..2 {
            proposed += 1;
            assert_eq!(u64::from(enters(&backend, &least(proposed)).await), proposed);
            releases(&backend, &lock()).await;
        }
        match stored {
            None => drop(server.query::<i64>(&["DEL", TOKEN]).await),
            Some(token) => set_token(&server, token, &["PX", "60000"]).await,
        }
        proposed += 1;
        let token = u64::from(enters(&backend, &least(proposed)).await);
        assert!(token >= proposed, "{token} after {stored:?}, and {proposed} was proposed");
        assert_eq!(last_token(&server).await, token);
        assert!((1..=DAY + 10_000).contains(&pttl(&server, TOKEN).await), "{stored:?}");
        assert!((1..=60_000).contains(&pttl(&server, "locks:a").await));
        releases(&backend, &lock()).await;
        proposed = token;
    }
}

/// A batch that has one script for many requests issues tokens by the clock.
#[tokio::test]
async fn each_of_many_requests_at_once_gets_the_token_that_it_proposes() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let first = time(&server).await + 5_000_000;
    for round in 0..3 {
        let proposed = |at: usize| first + 10 * round + at as u64 % 2;
        let request = |at: usize| {
            let lock = exclusive(&format!("locks:{at}"), at);
            // Some have no least token.
            lock.least_token((at % 10 < 9).then(|| FencingToken::from(proposed(at))))
        };
        let requests: Vec<_> = (0..200).map(request).collect();
        let tasks: Vec<_> = requests.iter().map(|request| begin(&backend, request)).collect();
        for (at, task) in tasks.into_iter().enumerate() {
            let outcome = outcome(task).await.unwrap();
            let token = outcome.token().map(u64::from);
            match requests[at].least_token {
                Some(least) => assert_eq!(token, Some(u64::from(least)), "{round} {at}"),
                None => assert!(token.is_some(), "{round} {at}"),
            }
        }
        for request in &requests {
            assert_eq!(releases(&backend, request).await, ReleaseOutcome::Released);
        }
    }
}
