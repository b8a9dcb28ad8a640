//! C16: what is declared is done, and nothing else.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, Capabilities},
};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, soon, state, stranger},
};

/// The modes that are neither exclusive nor need a number.
const OTHER_MODES: [Mode; 3] = [Mode::Fair, Mode::Read, Mode::Write];

/// C16: an exclusive lock is declared; it is what this kit tests.
pub async fn exclusive_locks_are_declared_and_granted<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for client in [&scene.one, &scene.two] {
        assert!(client.capabilities().supports(Mode::Exclusive), "{:?}", client.capabilities());
    }
    scene.one(&hold).enters().await;
}

/// C16: a mode that is not declared is refused as unsupported, certainly without effect.
pub async fn an_undeclared_mode_is_refused_without_effect<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for mode in OTHER_MODES {
        if scene.one.capabilities().supports(mode) {
            continue;
        }
        let request = AcquireRequest::new(scene.name.clone(), hold.clone(), LASTING).mode(mode);
        let answer = soon(scene.one.acquire(&request)).await;
        let error = answer.expect_err("a mode that is not declared was granted or refused as held");
        assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{mode}: {error}");
        assert!(!error.is_outcome_unknown(), "{mode}: the error must say that there was no effect");
        assert!(!state(&scene.two, &scene.name).await.is_held(), "{mode}: the lock was taken");
    }
    scene.two(&hold).enters().await;
}

/// C16: a mode that is declared is granted on a free name.
pub async fn a_declared_mode_is_granted<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    for mode in [Mode::Exclusive].into_iter().chain(OTHER_MODES) {
        if !scene.one.capabilities().supports(mode) {
            continue;
        }
        let request = AcquireRequest::new(scene.name.clone(), hold.clone(), LASTING).mode(mode);
        let outcome = soon(scene.one.acquire(&request)).await.expect("a declared mode was refused");
        assert!(matches!(outcome, AcquireOutcome::Acquired { .. }), "{mode}: {outcome:?}");
        soon(scene.one.release(&request.undo())).await.expect("release failed");
    }
}

/// C16: all clients of a store can do the same.
pub async fn all_clients_declare_the_same<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let (one, two): (Capabilities, Capabilities) =
        (scene.one.capabilities(), scene.two.capabilities());
    assert_eq!(one, two);
}
