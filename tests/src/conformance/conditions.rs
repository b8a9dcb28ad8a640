//! C33 and C34: the queue of a condition.

use std::time::Duration;

use lockcore::{
    LockName,
    backend::{Backend, ConditionId, Departure},
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::{
        condition::{Condition, new_waiter, waiters},
        latch::at_once,
        scene::{LASTING, force, nothing_is_left, stranger},
    },
    poll_times,
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// C33: waiters are notified in the order in which they joined, whichever client they are at.
pub async fn those_who_wait_are_notified_in_the_order_in_which_they_came<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let names = [(); 5].map(|()| new_waiter());
    let [a, b, c, d, e] = [
        condition.two(&names[0]),
        condition.one(&names[1]),
        condition.one(&names[2]),
        condition.two(&names[3]),
        condition.one(&names[4]),
    ];
    for waiter in [a, b, c, d, e] {
        waiter.joins().await;
    }
    for (first, others) in
        [(a, &[b, c, d, e][..]), (b, &[c, d, e]), (c, &[d, e]), (d, &[e]), (e, &[])]
    {
        condition.notifies_first(first).await;
        for other in others {
            other.is_in().await;
        }
    }
    assert_eq!(condition.notify(1).await, 0, "nobody is left");
}

/// C33: at most the requested number of waiters is notified, and the answer is how many were.
pub async fn several_can_be_notified_at_once<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let names = [(); 5].map(|()| new_waiter());
    for name in &names {
        condition.two(name).joins().await;
    }
    assert_eq!(condition.notify(2).await, 2);
    for name in &names[..2] {
        condition.two(name).is_out().await;
    }
    for name in &names[2..] {
        condition.two(name).is_in().await;
    }
    assert_eq!(condition.notify(7).await, 3);
    assert_eq!(condition.notify(7).await, 0);
    for name in &names {
        condition.two(name).is_out().await;
    }
}

/// C33: all waiters can be notified, with the greatest count.
pub async fn everybody_can_be_notified<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let names = waiters();
    for name in &names {
        condition.two(name).joins().await;
    }
    assert_eq!(condition.notify(u32::MAX).await, 3);
    for name in &names {
        condition.one(name).is_out().await;
    }
}

/// C33: a notification without waiters is answered with zero, and is not kept.
pub async fn a_notification_of_nobody_is_kept_for_nobody<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let names = waiters();
    for count in [1, 2, u32::MAX] {
        assert_eq!(condition.notify(count).await, 0);
    }
    for name in &names {
        condition.two(name).joins().await;
        condition.two(name).is_in().await;
    }
    assert_eq!(condition.notify(0).await, 0);
    assert_eq!(condition.notify(u32::MAX).await, 3);
}

/// C33: a waiter that joins again, or stays, keeps its place and gets no second one.
pub async fn joining_again_keeps_the_place_in_the_queue<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, c] = waiters();
    for waiter in [condition.one(&a), condition.two(&b), condition.two(&c)] {
        waiter.joins().await;
    }
    condition.one(&a).joins().await;
    condition.two(&a).joins().await;
    condition.two(&b).is_in().await;
    condition.notifies_first(condition.one(&a)).await;
    condition.one(&c).joins().await;
    condition.two(&c).is_in().await;
    condition.two(&b).is_in().await;
    condition.notifies_first(condition.two(&b)).await;
    assert_eq!(
        condition.notify(u32::MAX).await,
        1,
        "a place is one, however often it is asked for"
    );
}

/// C33: a notified waiter may join again, at the end of the queue.
pub async fn who_was_notified_can_join_again<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, c] = waiters();
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    condition.one(&c).joins().await;
    condition.two(&a).joins().await;
    for waiter in [condition.one(&b), condition.two(&c), condition.one(&a)] {
        condition.notifies_first(waiter).await;
    }
}

/// C33: simultaneous notifications go to different waiters.
pub async fn simultaneous_notifications_are_for_different_waiters<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let names = [(); 9].map(|()| new_waiter());
    for name in &names {
        condition.two(name).joins().await;
    }
    let answers = at_once(fixture, 8, |client| {
        let id = condition.id.clone();
        async move {
            let conditions = client.conditions().expect("the backend has conditions");
            conditions.notify(&id, 1).await.expect("notify failed")
        }
    })
    .await;
    assert_eq!(answers, [1; 8]);
    condition.two(&names[8]).is_in().await;
    assert_eq!(condition.notify(u32::MAX).await, 1);
}

/// C33: waiters that join at the same time each get a place.
pub async fn simultaneous_waiters_all_get_a_place<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    at_once(fixture, 8, |client| {
        let id = condition.id.clone();
        async move {
            let conditions = client.conditions().expect("the backend has conditions");
            conditions.join(&id, &new_waiter(), LASTING).await.expect("join failed");
        }
    })
    .await;
    assert_eq!(condition.notify(u32::MAX).await, 8);
}

/// C33: a condition and its lock do not affect each other, and waiters outlive every hold.
pub async fn a_condition_and_its_lock_do_not_touch_each_other<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let (holds, [a, b, c]) = ([stranger(), stranger()], waiters());
    let (holder, next) = (condition.scene.one(&holds[0]), condition.scene.two(&holds[1]));
    holder.enters().await;
    for name in [&a, &b, &c] {
        condition.one(name).joins().await;
    }
    holder.releases().await;
    next.enters().await;
    condition.notifies_first(condition.one(&a)).await;
    assert_eq!(next.holds().await.0, 1);
    assert!(force(&condition.scene.one, &condition.scene.name).await);
    condition.two(&b).is_in().await;
    assert!(condition.two(&b).asks_to_leave(Departure::Cancelled).await);
    assert_eq!(condition.notify(u32::MAX).await, 1);
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// Distinct conditions that a careless backend confuses.
fn look_alikes() -> Vec<ConditionId> {
    let stem = Uuid::new_v4().to_string();
    let names = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a", "b"),
        ("b", "a"),
        ("a", "a"),
        ("a", "A"),
        ("a b", "c"),
        ("a", "b c"),
        ("a", "*"),
        ("ab", "c"),
        ("a", "bc"),
        ("{a}", "b"),
        ("a", "{b}"),
    ];
    let name = |name: &str| LockName::new(name.to_owned()).expect("a valid name");
    names.map(|(lock, end)| ConditionId::new(name(&format!("{stem}{lock}")), name(end))).to_vec()
}

/// C33: every condition of every lock has its own queue, however similar the names are, even for
/// the same waiter.
pub async fn every_condition_has_a_queue_of_its_own<F: Fixture>(fixture: &F) {
    let (condition, ids) = (Condition::of(fixture).await, look_alikes());
    let [a, b, _] = waiters();
    for id in &ids {
        condition.one(&a).of(id).joins().await;
        condition.one(&b).of(id).joins().await;
    }
    for id in &ids {
        let [a, b] = [condition.two(&a).of(id), condition.two(&b).of(id)];
        b.is_in().await;
        assert!(a.asks_to_leave(Departure::Cancelled).await);
        assert_eq!(b.notifies(u32::MAX).await, 1, "{id:?}");
        b.is_out().await;
    }
    for id in &ids {
        nothing_is_left(fixture, &id.lock).await;
    }
}

/// C33 and C17: a dropped notification went to one waiter or to none, and does not disturb the next
/// one.
pub async fn a_dropped_notification_is_one_or_none<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let condition = Condition::of(fixture).await;
        let [a, b, c] = waiters();
        for name in [&a, &b, &c] {
            condition.two(name).joins().await;
        }
        let ended = poll_times(polls, condition.one(&a).begins_to_notify()).await;
        condition.one(&c).is_in().await;
        condition.two(&b).is_in().await;
        let left = condition.notify(u32::MAX).await;
        assert!(left == 2 || (left == 3 && ended.is_none()), "{left} are left");
        if ended.is_some() {
            return;
        }
    }
}

/// C34: a place is forgotten after its time, and asking does not bring it back.
pub async fn a_waiter_is_forgotten_after_its_time<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, _], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins_for(time).await;
    condition.one(&b).joins_for(time).await;
    fixture.pass(time + MILLISECOND).await;
    condition.two(&a).is_out().await;
    assert_eq!(condition.notify(u32::MAX).await, 0);
    condition.two(&b).is_out().await;
    assert_eq!(condition.notify(1).await, 0);
}

/// C34: a place is kept for its time.
pub async fn a_waiter_is_kept_for_its_time<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let time = fixture.short_lease() / 2;
    // Each check takes one waiter out of the queue.
    let mut joined = Vec::new();
    for _ in 0..32 {
        joined.push((new_waiter(), Instant::now()));
        condition.two(&joined[joined.len() - 1].0).joins_for(time).await;
    }
    for (name, sent) in &joined {
        fixture.pass(time / 25).await;
        let is_in = condition.one(name).asks_to_leave(Departure::TimedOut).await;
        let lasted = sent.elapsed();
        assert!(
            is_in || lasted + MILLISECOND >= time,
            "a place for {time:?} was forgotten after {lasted:?}"
        );
        if !is_in {
            return;
        }
    }
    panic!("the places are not forgotten");
}

/// C34: a waiter that asks to stay is kept for the requested time from then on.
pub async fn staying_lengthens_the_time<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease());
    for name in [&a, &b, &c] {
        condition.one(name).joins_for(time).await;
    }
    assert!(condition.two(&a).asks_to_stay(LASTING).await);
    condition.two(&b).joins_for(LASTING).await;
    fixture.pass(time + MILLISECOND).await;
    assert_eq!(condition.notify(u32::MAX).await, 2);
}

/// C34: the last requested time counts, even if it is shorter.
pub async fn a_shorter_time_replaces_a_longer_one<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    for name in [&a, &b, &c] {
        condition.one(name).joins().await;
    }
    assert!(condition.two(&a).asks_to_stay(time).await);
    condition.two(&b).joins_for(time).await;
    fixture.pass(time + MILLISECOND).await;
    condition.one(&a).is_out().await;
    condition.one(&b).is_out().await;
    assert_eq!(condition.notify(u32::MAX).await, 1);
}

/// C34: each waiter has its own time.
pub async fn every_waiter_has_a_time_of_its_own<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins_for(time).await;
    condition.one(&b).joins().await;
    condition.two(&c).joins_for(time).await;
    fixture.pass(time + MILLISECOND).await;
    condition.one(&a).is_out().await;
    condition.one(&c).is_out().await;
    condition.two(&b).is_in().await;
}

/// C34: lapsed waiters are skipped and not counted.
pub async fn those_who_have_lapsed_are_passed_over<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    condition.two(&a).joins_for(time).await;
    condition.two(&b).joins().await;
    condition.two(&c).joins().await;
    fixture.pass(time + MILLISECOND).await;
    condition.notifies_first(condition.two(&b)).await;
    condition.two(&c).is_in().await;
    assert_eq!(condition.notify(2).await, 1);
}

/// C34: a waiter that joins again after its time goes to the end of the queue.
pub async fn who_joins_again_too_late_comes_last<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, _], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins_for(time).await;
    condition.one(&b).joins().await;
    fixture.pass(time + MILLISECOND).await;
    condition.one(&a).joins().await;
    condition.notifies_first(condition.one(&b)).await;
    condition.notifies_first(condition.one(&a)).await;
}

/// C34: a notified waiter cannot stay, and asking does not give it a place.
pub async fn who_was_notified_cannot_stay<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.notifies_first(condition.two(&a)).await;
    condition.one(&a).is_out().await;
    condition.one(&b).is_out().await;
    assert_eq!(condition.notify(u32::MAX).await, 0);
}

/// C34: nothing is left of lapsed waiters, whatever they asked for before.
pub async fn nothing_is_left_of_waiters_that_lapsed<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let ([a, b, c], time) = (waiters(), fixture.short_lease() / 5);
    condition.one(&a).joins_for(time).await;
    condition.one(&b).joins_for(time * 2).await;
    condition.two(&c).joins_for(LASTING).await;
    assert!(condition.two(&c).asks_to_stay(time).await);
    fixture.pass(time * 2 + MILLISECOND).await;
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// C34: nothing is left of a condition once all its waiters were notified or have left, nor of
/// requests without effect.
pub async fn nothing_is_left_of_a_condition_without_waiters<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, c] = waiters();
    condition.two(&c).is_out().await;
    condition.two(&c).asks_to_leave(Departure::Cancelled).await;
    condition.notify(1).await;
    nothing_is_left(fixture, &condition.scene.name).await;
    condition.one(&a).joins().await;
    condition.one(&b).joins().await;
    condition.notifies_first(condition.one(&a)).await;
    assert!(condition.two(&b).asks_to_leave(Departure::Cancelled).await);
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// C34 and C17: a dropped request to stay does not affect the place.
pub async fn a_dropped_request_to_stay_leaves_the_place<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let condition = Condition::of(fixture).await;
        let [a, b, _] = waiters();
        condition.one(&a).joins().await;
        condition.one(&b).joins().await;
        let ended = poll_times(polls, condition.one(&a).begins_to_stay()).await;
        condition.one(&a).is_in().await;
        condition.notifies_first(condition.one(&a)).await;
        condition.two(&b).is_in().await;
        if ended.is_some() {
            return;
        }
    }
}
