//! C35: leaving a condition, and what happens to the notification of a waiter that leaves.

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

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// C35: leaving removes this waiter and no other; leaving again has no effect.
pub async fn who_leaves_a_condition_is_out<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
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

/// C35: a waiter that leaves before it is notified passes nothing on.
pub async fn who_leaves_in_time_passes_nothing_on<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
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

/// C35: a notified waiter that leaves can pass its notification on to the next waiter, and only to
/// that one.
pub async fn who_was_notified_can_pass_it_on<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
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

/// C35: if a notified waiter leaves without passing its notification on, the others go on waiting.
pub async fn who_was_notified_can_keep_it<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    assert!(!condition.one(&a).asks_to_leave(Departure::TimedOut).await);
    condition.two(&b).is_in().await;
}

/// C35: a notification that is passed on while nobody waits is lost.
pub async fn what_is_passed_on_to_nobody_is_gone<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    assert!(!condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&b).joins().await;
    condition.two(&b).is_in().await;
    condition.notifies_first(condition.two(&b)).await;
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// C35: a notification that is passed on skips lapsed waiters.
pub async fn what_is_passed_on_goes_past_those_who_have_lapsed<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins().await;
    condition.one(&b).joins_for(time).await;
    condition.one(&c).joins().await;
    assert_eq!(condition.notify(1).await, 1);
    fixture.pass(time + MILLISECOND).await;
    assert!(!condition.two(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&c).is_out().await;
}

/// C35: a waiter that has left may join again, at the end of the queue.
pub async fn who_has_left_a_condition_comes_last<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    assert!(condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    condition.two(&a).joins().await;
    condition.notifies_first(condition.one(&b)).await;
    condition.notifies_first(condition.one(&a)).await;
}

/// C35 and C17: leaving undoes a dropped join: it gets no place afterwards, and no notification.
pub async fn a_dropped_join_can_be_undone<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let condition = Condition::of(fixture).await;
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

/// C35 and C17: a dropped request to leave can be repeated.
pub async fn a_dropped_leave_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let condition = Condition::of(fixture).await;
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
