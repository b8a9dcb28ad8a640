//! Names and channels that a user has no right to: no other user of the client is affected.

use std::time::{Duration, Instant};

use lockcore::{
    BackendErrorKind, Locks, Mode,
    backend::{Backend, RenewOutcome, RenewRequest, SubscribeRequest},
};
use lockcore_testkit::{Feature, RedisServer, server_lacks};

use crate::{
    errors::{LEAST_RIGHTS, RENEWED, connect_as, set_user},
    steps::{LEASE, enters, hold, name, pttl, releases, request},
    support::{connect, listened_to, locks, soon, until},
};

#[tokio::test]
async fn a_forbidden_name_fails_its_own_renewal_alone() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", &format!("{LEAST_RIGHTS} ~extra:*")).await;
    let backend = connect_as(&server, "worker").await.unwrap();
    let modes = [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, Mode::permits(3, 3)];
    let mut holds = Vec::new();
    for prefix in ["locks", "extra"] {
        for (number, mode) in modes.into_iter().enumerate() {
            let lock = format!("{prefix}:{number}");
            // Derived keys in braces are allowed for the first prefix only.
            let mode = if prefix == "extra" { Mode::Exclusive } else { mode };
            let held = request(&lock, &hold(&format!("a:{number}")), mode);
            enters(&backend, &held).await;
            holds.push(held);
        }
    }
    set_user(&server, "worker", &format!("reset on >pw {LEAST_RIGHTS}")).await;
    let backend = connect_as(&server, "worker").await.unwrap();
    let renewals: Vec<_> = holds
        .iter()
        .map(|held| {
            RenewRequest::new(held.name.clone(), held.hold.clone(), LEASE * 3).mode(held.mode)
        })
        .collect();
    let outcomes = backend.renew(&renewals).await.unwrap();
    for (held, outcome) in holds.iter().zip(outcomes) {
        let lock = held.name.as_str();
        match outcome {
            RenewOutcome::Renewed => {
                assert!(lock.starts_with("locks:"), "{lock}");
                assert!(pttl(&server, lock).await > 2 * LEASE.as_millis() as i64, "{lock}");
            }
            RenewOutcome::Failed(error) => {
                assert!(lock.starts_with("extra:"), "{lock}: {error}");
                assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
                assert!(!error.is_outcome_unknown(), "{error}");
            }
            outcome => panic!("{lock}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn holders_keep_their_locks_although_another_name_was_forbidden() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", &format!("{LEAST_RIGHTS} ~extra")).await;
    let locks = Locks::builder(connect_as(&server, "worker").await.unwrap())
        .lease(RENEWED)
        .build()
        .unwrap();
    let forbidden = locks.lock("extra").acquire().await.unwrap();
    let mut held = Vec::new();
    for number in 0..5 {
        held.push(locks.lock(format!("locks:{number}")).acquire().await.unwrap());
    }
    // Takes effect on connections that exist.
    let rights: Vec<&str> = LEAST_RIGHTS.split_whitespace().collect();
    let mut command = vec!["ACL", "SETUSER", "worker", "resetkeys"];
    command.extend(rights.iter().filter(|right| right.starts_with('~')));
    let _: String = server.query(&command).await;
    soon("the loss of the forbidden lock", forbidden.lost()).await;
    tokio::time::sleep(RENEWED).await;
    for guard in held {
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
}

/// A cluster node stands in for a proxy that spreads names over servers.
#[tokio::test]
async fn names_of_different_slots_are_renewed_one_by_one() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let _: String = node.query(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    until("the cluster", || async {
        node.query::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
    })
    .await;
    // A user without a right to `INFO` cannot see that it is a cluster.
    set_user(&node, "blind", "~* &* +@all -info").await;
    let backend = connect_as(&node, "blind").await.unwrap();
    let mut renewals = Vec::new();
    for lock in ["a", "b", "c"] {
        let held = request(lock, &hold("a:1"), Mode::Exclusive);
        enters(&backend, &held).await;
        renewals.push(RenewRequest::new(name(lock), held.hold.clone(), LEASE * 3));
    }
    let outcomes = backend.renew(&renewals).await.unwrap();
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, RenewOutcome::Renewed)),
        "{outcomes:?}"
    );
    // The same holds for locks that are acquired and released at the same time.
    let tasks: Vec<_> = (0..12)
        .map(|number| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let request = request(&format!("n:{number}"), &hold("a:1"), Mode::Exclusive);
                enters(&backend, &request).await;
                releases(&backend, &request).await
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(format!("{:?}", soon("each", task).await.unwrap()), "Released");
    }
}

const CHANNEL: &str = "&redisson_lock__channel:{locks:a}";

/// Revokes the user's right to the channel, or grants it.
async fn allow_channel(server: &RedisServer, is_allowed: bool) {
    let channel = if is_allowed { CHANNEL } else { "&redisson_lock__channel:{locks:b}" };
    // Redis closes connections with subscriptions that are no longer allowed.
    let _: String = server.query(&["ACL", "SETUSER", "worker", "resetchannels", channel]).await;
}

#[tokio::test]
async fn a_channel_that_was_refused_is_used_when_the_right_is_back() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let waiter = Locks::new(connect_as(&server, "worker").await.unwrap());
    let holder = locks(&server).await;
    let guard = holder.lock("locks:a").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.lock("locks:a");
        async move { lock.acquire().await }
    });
    listened_to(&server, "locks:a").await;
    allow_channel(&server, false).await;
    until("the refusal", || async {
        !server.query::<Vec<redis::Value>>(&["ACL", "LOG"]).await.is_empty()
    })
    .await;
    // It hears nothing now, and subscribes again when it may.
    allow_channel(&server, true).await;
    listened_to(&server, "locks:a").await;
    let released = Instant::now();
    guard.release().await.unwrap();
    soon("the waiter", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(1), "{:?}", released.elapsed());
}

#[tokio::test]
async fn all_listeners_of_a_refused_channel_are_told_and_hear_again_with_the_first() {
    if server_lacks(Feature::ChannelRights) {
        return;
    }
    let server = RedisServer::start();
    set_user(&server, "worker", LEAST_RIGHTS).await;
    let (backend, other) = (connect_as(&server, "worker").await.unwrap(), connect(&server).await);
    let listening = SubscribeRequest::new(name("locks:a"), hold("a:1"));
    let mut early = [
        backend.subscribe(&listening).await.unwrap(),
        backend.subscribe(&listening).await.unwrap(),
    ];
    allow_channel(&server, false).await;
    for wakeups in &mut early {
        soon("the interruption", wakeups.woken()).await;
    }
    let error = backend.subscribe(&listening).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Permission, "{error}");
    allow_channel(&server, true).await;
    let mut late = backend.subscribe(&listening).await.unwrap();
    listened_to(&server, "locks:a").await;
    for wakeups in &mut early {
        soon("the right to be back", wakeups.woken()).await;
    }
    let held = request("locks:a", &hold("b:1"), Mode::Exclusive);
    enters(&other, &held).await;
    releases(&other, &held).await;
    let [one, two] = &mut early;
    let start = Instant::now();
    soon("the release", async { tokio::join!(one.woken(), two.woken(), late.woken()) }).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
