//! C1 and C2: one owner at a time, and the answer to everybody else.

use std::{sync::Arc, time::Duration};

use lockcore::backend::{AcquireOutcome, AcquireRequest, Backend};
use tokio::task::JoinSet;

use crate::{
    Fixture, History,
    conformance::scene::{LASTING, Scene, force, soon, stranger, unique_name},
};

/// C1: one of several simultaneous requests is granted.
pub async fn of_simultaneous_requests_one_is_granted<F: Fixture>(fixture: &F) {
    let clients = [Arc::new(fixture.client().await), Arc::new(fixture.client().await)];
    let name = unique_name("");
    let mut requests = JoinSet::new();
    for client in clients.iter().cycle().take(16) {
        let (client, request) =
            (client.clone(), AcquireRequest::new(name.clone(), stranger(), LASTING));
        requests.spawn(async move { client.acquire(&request).await.expect("acquire failed") });
    }
    let outcomes = soon(requests.join_all()).await;
    let granted = outcomes.iter().filter(|outcome| outcome.token().is_some());
    assert_eq!(granted.count(), 1, "{outcomes:?}");
}

/// C1: owners that acquire and release concurrently are never inside together, and their tokens
/// rise.
pub async fn owners_that_come_and_go_are_never_inside_together<F: Fixture>(fixture: &F) {
    let (name, history) = (unique_name(""), Arc::new(History::new()));
    let mut owners = JoinSet::new();
    for _ in 0..4 {
        let (client, name, history) = (fixture.client().await, name.clone(), history.clone());
        owners.spawn(async move {
            for _ in 0..25 {
                let request = AcquireRequest::new(name.clone(), stranger(), LASTING);
                let answer = client.acquire(&request).await.expect("acquire failed");
                if let Some(token) = answer.token() {
                    let inside = history.enter(name.as_str(), request.hold.owner(), token);
                    tokio::task::yield_now().await;
                    inside.leave();
                    client.release(&request.release()).await.expect("release failed");
                }
                tokio::task::yield_now().await;
            }
        });
    }
    owners.join_all().await;
    history.check().expect("exclusion");
    assert!(!history.beliefs().is_empty(), "nobody ever got the lock");
}

/// C1: a lock that one owner releases can be acquired by another.
pub async fn what_one_releases_another_gets<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let (first, second) = (scene.one(&holds[0]), scene.two(&holds[1]));
    first.enters().await;
    first.releases().await;
    second.enters().await;
    first.is_refused().await;
}

/// C2: a refusal carries the remaining lease of the current hold.
pub async fn a_stranger_is_refused_with_the_remaining_lease<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters_for(LASTING).await;
    for client in [scene.one(&holds[1]), scene.two(&holds[1])] {
        let remaining = client.is_refused().await;
        assert!(remaining <= LASTING, "{remaining:?} is more than the lease");
        assert!(remaining > LASTING / 2, "{remaining:?} is much less than what is left");
    }
}

/// C2: the lease in a refusal is the remaining one, not the original one.
pub async fn the_remaining_lease_in_a_refusal_shrinks<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    scene.one(&holds[0]).enters().await;
    let before = scene.two(&holds[1]).is_refused().await;
    fixture.pass(fixture.short_lease() / 5).await;
    let after = scene.two(&holds[1]).is_refused().await;
    let passed = before.saturating_sub(after);
    assert!(passed >= Duration::from_millis(95), "{before:?}, and 100 ms later {after:?}");
}

/// C2: a refusal changes nothing for the owner.
pub async fn a_refusal_changes_nothing<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let (holder, other) = (scene.one(&holds[0]), scene.two(&holds[1]));
    let token = holder.enters_for(LASTING / 10).await;
    for _ in 0..3 {
        other.is_refused().await;
    }
    let (count, remaining) = holder.holds().await;
    assert_eq!(count, 1, "a refusal was counted");
    assert!(remaining <= LASTING / 10, "a refusal extended the lease to {remaining:?}");
    assert_eq!(holder.enters_for(LASTING / 10).await, token, "a refusal changed the hold");
    holder.releases().await;
}

/// C2: waiters that state how long they expect their locks to be held are refused while the locks
/// are held, and get them as soon as they are free, also if they ask at the same time.
pub async fn who_expects_a_refusal_gets_a_free_lock<F: Fixture>(fixture: &F) {
    let (scene, names) = (Scene::of(fixture).await, ["a", "b", "c", "d"].map(unique_name));
    let [holders, others] = [(); 2].map(|()| [(); 4].map(|()| stranger()));
    let holder = |at: usize| scene.one(&holders[at]).under(&names[at]);
    let other = |at: usize| scene.two(&others[at]).under(&names[at]);
    let ask = async |at: usize| {
        let expecting = other(at).acquire_request(LASTING).held_for(Some(LASTING / 2));
        other(at).send(expecting).await
    };
    let assert_answered = |at: usize, outcome: &AcquireOutcome, is_free: bool| match outcome {
        AcquireOutcome::Held { remaining: Some(left) } if *left <= LASTING / 2 => {
            assert!(!is_free, "lock {at} is free, was answered {outcome:?}");
        }
        _ => assert!(is_free && outcome.token().is_some(), "lock {at} was answered {outcome:?}"),
    };
    for at in 0..names.len() {
        holder(at).enters_for(LASTING / 10).await;
        assert_answered(at, &ask(at).await, false);
    }
    // All are held; then one is free, which was not the first to be asked for; then the others.
    for is_free in [[false; 4], [false, false, true, false]] {
        if is_free[2] {
            holder(2).releases().await;
        }
        let (a, b, c, d) = tokio::join!(ask(0), ask(1), ask(2), ask(3));
        for (at, outcome) in [a, b, c, d].iter().enumerate() {
            assert_answered(at, outcome, is_free[at]);
        }
    }
    for at in [0, 1, 3] {
        holder(at).releases().await;
    }
    let (a, b, d) = tokio::join!(ask(0), ask(1), ask(3));
    for (at, outcome) in [(0, a), (1, b), (3, d)] {
        assert_answered(at, &outcome, true);
    }
    for at in 0..names.len() {
        other(at).releases().await;
    }
}

/// C2: a refused request leaves no hold that could be renewed or released, then or later.
pub async fn who_was_refused_has_nothing<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let (holder, other) = (scene.one(&holds[0]), scene.two(&holds[1]));
    holder.enters().await;
    other.is_refused().await;
    other.cannot_renew().await;
    other.cannot_release().await;
    holder.releases().await;
    assert!(
        !force(&scene.two, &scene.name).await,
        "the refused request was granted later, unasked"
    );
}
