//! Cases in which the store crashes: [`crash_tests!`](crate::crash_tests).

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the cases are tests: a panic is how they say that the backend breaks a clause"
)]

use std::future::Future;

use lockcore::{
    FencingToken, Mode,
    backend::{AcquireOutcome, Backend, Latches, ResizeRequest},
};

use crate::{
    Fixture,
    conformance::{
        capabilities::modes,
        latch::new_id,
        scene::{LASTING, Scene, nothing_is_left, soon, stranger, unique_name},
    },
    retrying::at_last,
};

/// A [`Fixture`] whose backend claims that its store survives a crash (C46). The store must be
/// private to the case.
pub trait Crashes: Fixture {
    /// Kills the store without warning, all of its processes at once, and starts it again with what
    /// it had written. Completes when the store serves clients again. Those of this fixture stay,
    /// and find their connections broken.
    fn crash(&self) -> impl Future<Output = ()> + Send;
}

/// Generates tests of a backend whose store crashes: one `#[test]` for each case. The argument is a
/// fixture that [`Crashes`]. The words `permits`, `direct_grant`, `proposed_tokens` and `latches`
/// after it name parts that the backend has, as in
/// [`conformance_tests!`](crate::conformance_tests), and add what these have to keep.
///
/// These tests are separate from [`conformance_tests!`](crate::conformance_tests), since not every
/// store claims to survive a crash.
#[macro_export]
macro_rules! crash_tests {
    ($fixture:ty $(, $part:ident)* $(,)?) => {
        $crate::for_each_crash!([$crate::tests_with_faults], [crashes $fixture, [$($part)*]]);
    };
}

/// A mode in which a hold of the other mode is refused, whatever it lets in otherwise.
fn against(mode: Mode) -> Mode {
    match mode {
        Mode::Read => Mode::Write,
        Mode::Permit { limit, plain: true, .. } => Mode::plain_permits(limit, limit),
        Mode::Permit { limit, .. } => Mode::permits(limit, limit),
        other => other,
    }
}

fn latches(client: &impl Backend) -> &dyn Latches {
    client.latches().expect("the backend has latches")
}

/// C46: a hold of any declared mode outlasts a crash: a repetition has the same token, and others
/// are refused.
pub async fn holds_of_every_mode_outlast_a_crash<F: Crashes>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let mut held = Vec::new();
    for mode in modes().into_iter().filter(|mode| scene.one.capabilities().supports(*mode)) {
        let name = unique_name("");
        let token = scene.one(&hold).under(&name).in_mode(mode).enters().await;
        held.push((name, mode, token));
    }
    fixture.crash().await;
    for (name, mode, token) in &held {
        let holder = scene.one(&hold).under(name).in_mode(*mode);
        assert_eq!(holder.enters_at_last().await, *token, "{mode}: this is another hold");
        scene.two(&other).under(name).in_mode(against(*mode)).is_refused_at_last().await;
    }
}

/// C46: a renewal outlasts a crash.
pub async fn a_renewal_outlasts_a_crash<F: Crashes>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    scene.one(&hold).enters_for(LASTING / 10).await;
    scene.one(&hold).renews(LASTING).await;
    fixture.crash().await;
    let remaining = scene.two(&other).is_refused_at_last().await;
    assert!(remaining > LASTING / 2, "{remaining:?} is left of a lease of {LASTING:?}");
}

/// C46: a nested acquire outlasts a crash, with its count and its lease.
pub async fn the_growth_of_a_hold_outlasts_a_crash<F: Crashes>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters_for(LASTING / 10).await;
    scene.one(&hold).grows_to(3, LASTING).await;
    fixture.crash().await;
    let state = at_last(async || scene.two.inspect(&scene.name).await).await;
    let [holder] = state.holders() else { panic!("there should be one holder: {state:?}") };
    assert_eq!(holder.owner(), hold.owner(), "{state:?}");
    assert_eq!(holder.hold_count(), 3, "the count was 3: {state:?}");
    assert!(state.remaining() > Some(LASTING / 2), "{:?} is left", state.remaining());
}

/// C46: tokens go on rising after a crash (C4), whether the holds before it were released or not.
pub async fn tokens_rise_across_a_crash<F: Crashes>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [(); 3].map(|()| stranger()));
    let mut last = None;
    for round in 0..3 {
        for hold in &holds {
            let token = scene.one(hold).enters_at_last().await;
            assert!(Some(token) > last, "{token} was granted after {last:?}, round {round}");
            last = Some(token);
            if hold != &holds[2] || round == 0 {
                scene.one(hold).asks_to_release_at_last().await;
            }
        }
        fixture.crash().await;
        // The crash may have lost its release.
        scene.two(&holds[2]).asks_to_release_at_last().await;
    }
    assert!(Some(scene.two(&stranger()).enters_at_last().await) > last);
}

/// C46: leases go on ending after a crash (C3), also if it has lost the release of the hold.
pub async fn a_lease_ends_in_spite_of_a_crash<F: Crashes>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let released = unique_name("");
    scene.one(&hold).enters_for(fixture.short_lease()).await;
    scene.one(&hold).under(&released).enters_for(fixture.short_lease()).await;
    scene.one(&hold).under(&released).releases().await;
    fixture.crash().await;
    fixture.pass(fixture.short_lease() * 2).await;
    for name in [&scene.name, &released] {
        let next = scene.two(&other).under(name);
        next.enters_at_last().await;
        next.asks_to_release_at_last().await;
        nothing_is_left(fixture, name).await;
    }
}

/// C46: a grant by a release (C39) outlasts a crash: its owner was told at once.
pub async fn a_direct_grant_outlasts_a_crash<F: Crashes>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [(); 3].map(|()| stranger());
    let heir = scene.two(&holds[1]);
    scene.one(&holds[0]).enters().await;
    heir.with_number(7).queues().await;
    scene.one(&holds[0]).releases().await;
    heir.holds().await;
    fixture.crash().await;
    let state = at_last(async || scene.one.inspect(&scene.name).await).await;
    let [holder] = state.holders() else { panic!("there should be one holder: {state:?}") };
    assert_eq!(holder.owner(), holds[1].owner(), "{state:?}");
    scene.one(&holds[2]).is_refused_at_last().await;
}

/// C46: a raised token (C40) outlasts a crash.
pub async fn a_raised_token_outlasts_a_crash<F: Crashes>(fixture: &F) {
    /// Larger than the microseconds of a test, for stores whose tokens follow a clock.
    const AHEAD: u64 = 1_000_000_000;
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let token = scene.one(&hold).enters().await;
    scene.one(&hold).releases().await;
    let raised = FencingToken::from(u64::from(token) + AHEAD);
    soon(scene.one.raise_token(&scene.name, raised)).await.expect("raise_token failed");
    fixture.crash().await;
    scene.two(&hold).asks_to_release_at_last().await;
    let next = scene.two(&stranger()).enters_at_last().await;
    assert!(next > raised, "{next} was granted after {raised}");
}

/// C46: the number of permits that was set (C29) outlasts a crash.
pub async fn a_number_of_permits_outlasts_a_crash<F: Crashes>(fixture: &F) {
    let scene = Scene::semaphore(fixture, 9).await;
    let request = ResizeRequest::new(scene.name.clone(), 3);
    soon(scene.one.resize(&request)).await.expect("resize failed");
    fixture.crash().await;
    let answer = scene.two(&stranger()).taking(4).asks_at_last().await;
    assert_eq!(answer, AcquireOutcome::TooMany { limit: 3 }, "there were 3 permits");
}

/// C46: the count of a latch outlasts a crash, and so do the requests that it has counted (C31).
pub async fn the_count_of_a_latch_outlasts_a_crash<F: Crashes>(fixture: &F) {
    let (scene, counted) = (Scene::of(fixture).await, new_id());
    let name = &scene.name;
    let set = latches(&scene.one).set_count(name, 3, &new_id()).await;
    assert!(set.expect("set_count failed"));
    let left = latches(&scene.one).count_down(name, &counted).await;
    assert_eq!(left.expect("count_down failed"), 2);
    fixture.crash().await;
    let left = at_last(async || latches(&scene.two).count(name).await).await;
    assert_eq!(left, 2, "the count was 2");
    let repeated = at_last(async || latches(&scene.two).count_down(name, &counted).await).await;
    assert_eq!(repeated, 2, "a repetition was counted");
}
