//! C35: who leaves a condition, and what becomes of its notification. A backend without conditions passes.

use lockcore::backend::Departure;

use std::time::Duration;

use crate::{
    Fixture,
    conformance::{
        condition::{Condition, waiters},
        scene::nothing_is_left,
    },
    poll_times,
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A call is not suspended more often than this; if it is, the rest goes untested.
const POLLS: usize = 64;

/// C35: who leaves is out, and nobody else; a second time there is nothing to leave.
pub async fn who_leaves_a_condition_is_out<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, c] = waiters();
    for name in [&a, &b, &c] {
        condition.one(name).joins().await;
    }
    assert!(condition.two(&b).asks_to_leave(Departure::TimedOut).await);
    assert!(!condition.two(&b).asks_to_leave(Departure::TimedOut).await);
    condition.one(&b).is_out().await;
    condition.notifies_first(condition.one(&a)).await;
    condition.notifies_first(condition.one(&c)).await;
    assert_eq!(condition.notify(1).await, 0);
}

/// C35: who leaves in time has nothing to pass on.
pub async fn who_leaves_in_time_passes_nothing_on<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, c] = waiters();
    for name in [&a, &b, &c] {
        condition.one(name).joins().await;
    }
    assert!(condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    for name in [&b, &c] {
        condition.two(name).is_in().await;
    }
    assert_eq!(condition.notify(u32::MAX).await, 2);
}

/// C35: who was notified and leaves passes its notification on to the next, and to no more.
pub async fn who_was_notified_can_pass_it_on<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, c] = waiters();
    for name in [&a, &b, &c] {
        condition.two(name).joins().await;
    }
    condition.notifies_first(condition.one(&a)).await;
    assert!(!condition.two(&a).asks_to_leave(Departure::Cancelled).await);
    condition.one(&c).is_in().await;
    condition.one(&b).is_out().await;
    assert!(!condition.one(&b).asks_to_leave(Departure::Cancelled).await);
    condition.one(&c).is_out().await;
}

/// C35: who was notified and does not want to pass that on leaves the others waiting.
pub async fn who_was_notified_can_keep_it<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    assert!(!condition.one(&a).asks_to_leave(Departure::TimedOut).await);
    condition.two(&b).is_in().await;
}

/// C35: a notification that is passed on to nobody is gone.
pub async fn what_is_passed_on_to_nobody_is_gone<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    assert!(!condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&b).joins().await;
    condition.two(&b).is_in().await;
    condition.notifies_first(condition.two(&b)).await;
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// C35: what is passed on goes past those who have lapsed.
pub async fn what_is_passed_on_goes_past_those_who_have_lapsed<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins().await;
    condition.one(&b).joins_for(time).await;
    condition.one(&c).joins().await;
    assert_eq!(condition.notify(1).await, 1);
    fixture.pass(time + MILLISECOND).await;
    assert!(!condition.two(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&c).is_out().await;
}

/// C35: who has left may join again, and comes last then.
pub async fn who_has_left_a_condition_comes_last<F: Fixture>(fixture: &F) {
    let Some(condition) = Condition::of(fixture).await else { return };
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    assert!(condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&a).joins().await;
    condition.notifies_first(condition.one(&b)).await;
    condition.notifies_first(condition.one(&a)).await;
}

/// C35 and C17: a join that was dropped is undone by leaving: it gets no place afterwards, and no notification.
pub async fn a_dropped_join_can_be_undone<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let Some(condition) = Condition::of(fixture).await else { return };
        let [a, b, _] = waiters();
        let ended = poll_times(polls, condition.one(&a).begins_to_join()).await;
        condition.one(&a).asks_to_leave(Departure::TimedOut).await;
        condition.two(&b).joins().await;
        fixture.pass(fixture.short_lease() / 10).await;
        condition.two(&a).is_out().await;
        condition.notifies_first(condition.two(&b)).await;
        nothing_is_left(fixture, &condition.scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}

/// C35 and C17: a request to leave that was dropped can be repeated.
pub async fn a_dropped_leave_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let Some(condition) = Condition::of(fixture).await else { return };
        let [a, b, _] = waiters();
        condition.one(&a).joins().await;
        condition.one(&b).joins().await;
        let ended =
            poll_times(polls, condition.one(&a).begins_to_leave(Departure::Cancelled)).await;
        condition.one(&a).asks_to_leave(Departure::TimedOut).await;
        condition.two(&a).is_out().await;
        condition.notifies_first(condition.two(&b)).await;
        nothing_is_left(fixture, &condition.scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}
