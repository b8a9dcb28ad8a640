//! C40: several stores can agree on the token of a grant.

use lockcore::{
    FencingToken,
    backend::{Backend, Capabilities},
};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, named, nothing_is_left, soon, stranger},
    poll_times,
};

/// Larger than the microseconds of a test, for stores whose tokens follow a clock.
const AHEAD: u64 = 1_000_000_000;

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// A token that the store has not reached.
fn beyond(token: FencingToken) -> FencingToken {
    FencingToken::from(u64::from(token) + AHEAD)
}

impl<B: Backend> Scene<B> {
    /// The token of a hold that has ended.
    async fn last_token(&self) -> FencingToken {
        let hold = stranger();
        let token = self.two(&hold).enters().await;
        self.two(&hold).releases().await;
        token
    }

    /// The token of the next hold, which is released at once.
    async fn next_token(&self) -> FencingToken {
        let hold = stranger();
        let token = self.one(&hold).enters().await;
        self.one(&hold).releases().await;
        token
    }

    async fn raises(&self, token: FencingToken) {
        soon(self.one.raise_token(&self.name, token)).await.expect("raise_token failed");
    }
}

/// C40: a grant carries the proposed token if the store has not reached it, whichever client it is
/// at.
pub async fn a_grant_carries_the_token_that_was_proposed<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut last = scene.last_token().await;
    for round in 0..6 {
        let hold = stranger();
        let holder = if round % 2 == 0 { scene.one(&hold) } else { scene.two(&hold) };
        let proposed = beyond(last);
        last = holder.proposing(proposed).enters().await;
        assert_eq!(last, proposed);
        holder.releases().await;
    }
}

/// C40: a proposal that is not greater than every earlier token is exceeded.
pub async fn a_proposal_that_is_too_late_is_exceeded<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut last = beyond(scene.last_token().await);
    scene.raises(last).await;
    for late in [u64::from(last), u64::from(last) - 1, 1, 0] {
        let hold = stranger();
        let token = scene.one(&hold).proposing(FencingToken::from(late)).enters().await;
        assert!(token > last, "{token} was granted for {late}, after {last}");
        last = token;
        scene.one(&hold).releases().await;
    }
}

/// C40: if a grant has several tokens, the proposed one is the first of them.
pub async fn a_proposal_counts_for_the_first_of_several_tokens<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let several = scene.one.capabilities().contains(Capabilities::HAND_OVER);
    let tokens = if several { 1_000 } else { 1 };
    let (hold, proposed) = (stranger(), beyond(scene.last_token().await));
    let holder = scene.one(&hold).with_tokens(tokens).proposing(proposed);
    assert_eq!(holder.enters().await, proposed);
    holder.releases().await;
    let (next, last) = (scene.next_token().await, u64::from(proposed) + u64::from(tokens) - 1);
    assert!(u64::from(next) > last, "{next} was granted after {last} was reserved");
}

/// C40: a proposal, however great, is refused like any other request.
pub async fn a_refused_proposal_changes_nothing_for_the_holder<F: Fixture>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let token = scene.one(&hold).enters().await;
    scene.two(&other).proposing(beyond(token)).is_refused().await;
    assert_eq!(scene.one(&hold).holds().await.0, 1);
    scene.one(&hold).renews(LASTING).await;
    scene.one(&hold).releases().await;
    assert!(scene.next_token().await > token);
}

/// C40: a repeated request keeps its token, whatever it proposes.
pub async fn a_repetition_with_another_proposal_is_one_hold<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let proposed = beyond(scene.last_token().await);
    let token = scene.one(&hold).proposing(proposed).enters().await;
    assert_eq!(scene.one(&hold).proposing(beyond(token)).enters().await, token);
    assert_eq!(scene.two(&hold).proposing(beyond(token)).enters().await, token, "by another way");
    assert_eq!(scene.two(&hold).enters().await, token, "without a proposal");
    assert_eq!(scene.one(&hold).holds().await.0, 1);
}

/// C40: a named owner that takes over its own hold gets the proposed token.
pub async fn a_named_owner_takes_over_with_a_proposed_token<F: Fixture>(fixture: &F) {
    let (scene, earlier, later) = (Scene::of(fixture).await, named("job-17"), named("job-17"));
    let proposed = beyond(scene.one(&earlier).enters().await);
    assert_eq!(scene.two(&later).proposing(proposed).enters().await, proposed);
    scene.one(&earlier).cannot_release().await;
}

/// C40: grants after a granted proposal have greater tokens, as after any grant.
pub async fn grants_without_a_proposal_follow_one_with_it<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let proposed = beyond(scene.last_token().await);
    scene.two(&hold).proposing(proposed).enters().await;
    scene.two(&hold).releases().await;
    let mut last = proposed;
    for _ in 0..3 {
        let next = scene.next_token().await;
        assert!(next > last, "{next} was granted after {last}");
        last = next;
    }
}

/// C40: every grant after a raised token has a greater one, with a proposal or without.
pub async fn grants_follow_a_raised_token<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let raised = beyond(scene.last_token().await);
    // A connection may have a last token that no other connection knows of.
    scene.next_token().await;
    scene.raises(raised).await;
    let next = scene.next_token().await;
    assert!(next > raised, "{next} was granted after {raised}");
    let (hold, raised) = (stranger(), beyond(next));
    soon(scene.two.raise_token(&scene.name, raised)).await.expect("raise_token failed");
    let next = scene.one(&hold).proposing(raised).enters().await;
    assert!(next > raised, "{next} was granted after {raised}");
}

/// C40: raising the token to a smaller one changes nothing.
pub async fn a_token_is_never_lowered<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let token = scene.one(&hold).proposing(beyond(scene.last_token().await)).enters().await;
    scene.one(&hold).releases().await;
    scene.raises(FencingToken::from(1)).await;
    assert!(scene.next_token().await > token);
}

/// C40: raising the token does not affect a current hold.
pub async fn who_holds_the_lock_keeps_it_when_the_token_is_raised<F: Fixture>(fixture: &F) {
    let (scene, hold, other) = (Scene::of(fixture).await, stranger(), stranger());
    let token = scene.one(&hold).enters().await;
    let raised = beyond(token);
    scene.raises(raised).await;
    assert_eq!(scene.one(&hold).holds().await.0, 1);
    let repeated = scene.two(&hold).enters().await;
    assert!((token..=raised).contains(&repeated), "the hold with {token} has {repeated} now");
    scene.two(&other).is_refused().await;
    scene.one(&hold).renews(LASTING).await;
    scene.one(&hold).releases().await;
    assert!(scene.next_token().await > raised);
}

/// C40: a name whose token was raised is not kept forever.
pub async fn nothing_is_left_of_a_raised_token<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    scene.raises(beyond(FencingToken::from(1))).await;
    nothing_is_left(fixture, &scene.name).await;
    scene.raises(beyond(scene.last_token().await)).await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C17: a dropped request to raise the token can be repeated.
pub async fn a_dropped_raising_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let raised = beyond(scene.last_token().await);
        let answer = poll_times(polls, scene.one.raise_token(&scene.name, raised)).await;
        scene.raises(raised).await;
        assert!(scene.next_token().await > raised);
        if answer.is_some() {
            return;
        }
    }
}
