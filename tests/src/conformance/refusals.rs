//! C16: a backend refuses the parts that it does not declare. Each case is for backends without
//! that part.

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, LockError, Locks, Mode,
    backend::{AcquireRequest, Awaited, Backend, ResizeRequest, SubscribeRequest},
};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, nothing_is_left, soon, state, stranger, unique_name},
};

/// Shows that `answer` is an error that says that the request is unsupported and had no effect.
fn is_unsupported<T>(what: &str, answer: Result<T, BackendError>) {
    let Err(error) = answer else { panic!("{what}: what is not declared was granted or refused") };
    assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{what}: {error}");
    assert!(!error.is_outcome_unknown(), "{what}: the error must say that there was no effect");
}

/// Shows that both clients refuse the requests that `request` makes from an exclusive one, and that
/// nothing is left behind: neither a hold nor a place in a queue.
async fn are_refused<F: Fixture>(
    fixture: &F,
    what: &str,
    request: impl Fn(AcquireRequest) -> AcquireRequest,
) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let holder = scene.two(&holds[1]);
    let of_one = || request(scene.one(&holds[0]).acquire_request(LASTING));
    for queue in [None, Some(LASTING)] {
        for client in [&scene.one, &scene.two] {
            is_unsupported(what, soon(client.acquire(&of_one().queue(queue))).await);
            assert!(!state(&scene.two, &scene.name).await.is_held(), "{what}: the lock was taken");
        }
    }
    nothing_is_left(fixture, &scene.name).await;
    holder.enters().await;
    is_unsupported(what, soon(scene.one.acquire(&of_one().queue(Some(LASTING)))).await);
    assert_eq!(holder.holds().await.0, 1);
    holder.releases().await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C16: without `Capabilities::FAIR`, a request for a fair lock is refused, even one for a place.
pub async fn undeclared_fair_locks_are_refused<F: Fixture>(fixture: &F) {
    are_refused(fixture, "a fair lock", |request| request.mode(Mode::Fair)).await;
}

/// C16: without `Capabilities::READ_WRITE`, readers and writers are refused.
pub async fn undeclared_read_write_locks_are_refused<F: Fixture>(fixture: &F) {
    are_refused(fixture, "a reader", |request| request.mode(Mode::Read)).await;
    are_refused(fixture, "a writer", |request| request.mode(Mode::Write)).await;
}

/// C16: without `Capabilities::PERMITS`, permits of both kinds are refused, and so is setting their
/// number.
pub async fn undeclared_permits_are_refused<F: Fixture>(fixture: &F) {
    are_refused(fixture, "a permit", |request| request.mode(Mode::permits(1, 2))).await;
    are_refused(fixture, "a plain permit", |request| request.mode(Mode::plain_permits(1, 2))).await;
    let scene = Scene::of(fixture).await;
    let resize = ResizeRequest::new(scene.name.clone(), 2);
    for request in [resize.clone(), resize.only_if_unset(true)] {
        is_unsupported("a resizing", soon(scene.one.resize(&request)).await);
    }
    assert_eq!(state(&scene.two, &scene.name).await.limit(), None, "the permits were set");
    nothing_is_left(fixture, &scene.name).await;
}

/// C16: without `Capabilities::HAND_OVER`, a request for several tokens is refused.
pub async fn undeclared_grants_of_several_tokens_are_refused<F: Fixture>(fixture: &F) {
    are_refused(fixture, "several tokens", |request| request.tokens(2)).await;
}

/// C16: without `Capabilities::DEMAND`, a subscription to the demand for a lock is refused.
pub async fn undeclared_demand_is_refused<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for client in [&scene.one, &scene.two] {
        let request = SubscribeRequest::new(scene.name.clone(), hold.clone());
        let answer = soon(client.subscribe(&request.awaited(Awaited::Demand))).await;
        is_unsupported("a subscription to the demand", answer.map(drop));
    }
    nothing_is_left(fixture, &scene.name).await;
}

/// C16: without `Capabilities::PROPOSED_TOKENS`, no token can be proposed or raised.
pub async fn undeclared_proposals_of_tokens_are_refused<F: Fixture>(fixture: &F) {
    let token = FencingToken::from(1 << 51);
    are_refused(fixture, "a proposed token", |request| request.least_token(Some(token))).await;
    let scene = Scene::of(fixture).await;
    is_unsupported("a raised token", soon(scene.one.raise_token(&scene.name, token)).await);
    nothing_is_left(fixture, &scene.name).await;
}

/// C16: a backend without latches has none at any client, and [`Locks`] reports that to its users.
pub async fn undeclared_latches_are_refused<F: Fixture>(fixture: &F) {
    let name = unique_name("");
    for client in [fixture.client().await, fixture.client().await] {
        assert!(client.latches().is_none(), "`Backend::latches` returns latches");
        let latch = Locks::new(client).latch(name.as_str());
        let error = soon(latch.set_count(1)).await.expect_err("there are no latches");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error}");
    }
    nothing_is_left(fixture, &name).await;
}

/// C16: a backend without conditions has none at any client, and [`Locks`] reports that to its
/// users.
pub async fn undeclared_conditions_are_refused<F: Fixture>(fixture: &F) {
    let name = unique_name("");
    for client in [fixture.client().await, fixture.client().await] {
        assert!(client.conditions().is_none(), "`Backend::conditions` returns conditions");
        let lock = Locks::new(client).lock(name.as_str());
        let guard = soon(lock.acquire()).await.expect("acquire failed");
        let notified = soon(lock.condition("condition").notify_all(&guard)).await;
        let error = notified.expect_err("there are no conditions");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error}");
        soon(guard.release()).await.expect("release failed");
    }
    nothing_is_left(fixture, &name).await;
}

/// C16: a backend without a directory has none at any client.
pub async fn an_undeclared_directory_is_refused<F: Fixture>(fixture: &F) {
    for client in [fixture.client().await, fixture.client().await] {
        assert!(client.directory().is_none(), "`Backend::directory` returns a directory");
    }
}
