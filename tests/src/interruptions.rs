//! Cases with broken connections: [`interruption_tests!`](crate::interruption_tests).

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the cases are tests: a panic is how they say that the backend breaks a clause"
)]

use std::future::Future;

use lockcore::backend::{Backend, RenewOutcome};
use tokio::time::timeout;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, nothing_is_left, soon, stranger},
        wakeups::drain,
    },
    poll_times,
    retrying::at_last,
};

/// A [`Fixture`] that can break connections. A [`Proxy`](crate::Proxy) between the clients and the
/// store can do so, [whatever protocol](crate::Proxy::start_opaque) they use.
pub trait Interrupts: Fixture {
    /// Breaks every connection of this fixture's clients, together with the requests on it. New
    /// connections can be made at once.
    fn interrupt(&self) -> impl Future<Output = ()> + Send;
}

/// A [`Fixture`] that can break connections whose requests arrive nevertheless.
pub trait Withholds: Interrupts {
    /// Withholds from the store whatever the clients send from now on over existing connections.
    /// [`Proxy::freeze`](crate::Proxy::freeze) does so.
    fn withhold(&self) -> impl Future<Output = ()> + Send;

    /// Breaks the connections affected by [`withhold`](Self::withhold), as seen by the clients. For
    /// the store they stay open, and the withheld requests are still to come. New connections can
    /// be made at once. [`Proxy::abandon`](crate::Proxy::abandon) does so.
    fn abandon(&self) -> impl Future<Output = ()> + Send;

    /// Delivers the withheld requests, unless the store has closed their connection, and completes
    /// when the store has received them. [`Proxy::deliver`](crate::Proxy::deliver) does so.
    fn deliver(&self) -> impl Future<Output = ()> + Send;
}

/// Generates tests of a backend whose connections break: one `#[test]` for each case. The argument
/// is a fixture that [`Interrupts`]. With `late` after it, the fixture [`Withholds`], and requests
/// that arrive after their undo was answered are tested as well.
///
/// These tests are separate from [`conformance_tests!`](crate::conformance_tests), since not every
/// store has connections. Only the clients of one case are affected, so the store may be shared.
#[macro_export]
macro_rules! interruption_tests {
    ($fixture:ty) => {
        $crate::for_each_interruption!([$crate::tests_with_faults], [interruptions $fixture, []]);
    };
    ($fixture:ty, late) => {
        $crate::interruption_tests!($fixture);
        $crate::for_each_late_request!([$crate::tests_with_faults], [interruptions $fixture, []]);
    };
}

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 32;

/// C8 and C10: a hold does not depend on connections. It is renewed and released over the next one.
pub async fn a_hold_outlives_an_interruption<F: Interrupts>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let token = scene.one(&hold).enters().await;
    fixture.interrupt().await;
    let renewal = [scene.one(&hold).renew_request(LASTING)];
    let renewed = at_last(async || match scene.one.renew(&renewal).await?.remove(0) {
        RenewOutcome::Failed(error) => Err(error),
        outcome => Ok(outcome),
    });
    let renewed = renewed.await;
    assert!(matches!(renewed, RenewOutcome::Renewed), "its connection took it along: {renewed:?}");
    scene.two(&other).is_refused_at_last().await;
    assert_eq!(scene.one(&hold).enters().await, token);
    scene.one(&hold).releases().await;
    scene.two(&other).enters().await;
    scene.two(&other).releases().await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C47: a request whose connection breaks ends soon, and if its error says that it was not applied,
/// that is true.
pub async fn a_request_fails_for_a_while_and_says_what_is_known<F: Interrupts>(fixture: &F) {
    for _ in 0..20 {
        let (scene, hold) = (Scene::of(fixture).await, stranger());
        let request = scene.one(&hold).acquire_request(LASTING);
        let (answer, ()) =
            soon(async { tokio::join!(scene.one.acquire(&request), fixture.interrupt()) }).await;
        match answer {
            Ok(outcome) => assert!(outcome.token().is_some(), "{outcome:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                if !error.is_outcome_unknown() {
                    let state = at_last(async || scene.two.inspect(&scene.name).await).await;
                    assert!(!state.is_held(), "it was applied: {error:?}");
                }
            }
        }
        scene.one(&hold).asks_to_release_at_last().await;
        nothing_is_left(fixture, &scene.name).await;
    }
}

/// C17: a dropped acquire has no effect after its undo was answered over another connection.
pub async fn an_undone_acquire_stays_undone<F: Interrupts>(fixture: &F) {
    for polls in 1..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let request = scene.one(&holds[0]).acquire_request(LASTING);
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        fixture.interrupt().await;
        scene.one(&holds[0]).undoes_at_last().await;
        fixture.pass(fixture.short_lease() / 10).await;
        let entered = scene.two(&holds[1]).asks_at_last().await;
        assert!(entered.token().is_some(), "after {polls} polls, it was in: {entered:?}");
        scene.two(&holds[1]).releases().await;
        scene.two(&holds[1]).enters().await;
        scene.two(&holds[1]).releases().await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: an acquire that arrives after its undo was answered over another connection has no effect.
pub async fn an_acquire_that_arrives_after_its_undo_has_no_effect<F: Withholds>(fixture: &F) {
    for _ in 0..3 {
        let (scene, holds) = (Scene::of(fixture).await, [(); 3].map(|()| stranger()));
        let request = scene.one(&holds[0]).acquire_request(LASTING);
        // Connections that are made on demand exist from then on.
        scene.one(&holds[1]).enters().await;
        scene.one(&holds[1]).releases().await;
        fixture.withhold().await;
        let answer = timeout(fixture.short_lease() / 5, scene.one.acquire(&request)).await;
        assert!(!matches!(answer, Ok(Ok(_))), "it was not withheld: {answer:?}");
        fixture.abandon().await;
        scene.one(&holds[0]).undoes_at_last().await;
        fixture.deliver().await;
        let entered = scene.two(&holds[2]).asks_at_last().await;
        assert!(entered.token().is_some(), "it was in: {entered:?}");
        scene.two(&holds[2]).asks_to_release_at_last().await;
        nothing_is_left(fixture, &scene.name).await;
    }
}

/// C12: an event that happens during an interruption wakes the subscriber afterwards.
pub async fn who_listens_hears_of_an_interruption<F: Interrupts>(fixture: &F) {
    for _ in 0..5 {
        let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
        scene.two(&hold).enters().await;
        let mut wakeups = scene.one(&other).subscribes().await;
        fixture.interrupt().await;
        scene.two(&hold).asks_to_release_at_last().await;
        soon(wakeups.woken()).await;
    }
}

/// C12: a subscription goes on over the next connection.
pub async fn who_listens_hears_what_comes_after<F: Interrupts>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let mut wakeups = scene.one(&other).subscribes().await;
    for _ in 0..3 {
        fixture.interrupt().await;
        soon(wakeups.woken()).await;
        scene.two(&hold).enters_at_last().await;
        drain(fixture, &mut wakeups).await;
        scene.two(&hold).asks_to_release_at_last().await;
        soon(wakeups.woken()).await;
    }
}
