//! C18, C19 and C20: the queue of a fair lock.

use std::time::Duration;

use lockcore::Mode;
use tokio::time::Instant;

use crate::{
    Fixture,
    conformance::{
        scene::{
            LASTING, Rival, Scene, force, named, nothing_is_left, soon, state, stranger,
            unique_name,
        },
        wakeups::drain,
    },
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Shows that the waiters enter in this order, and none too early.
async fn enter_in_turn(waiters: &[Rival<'_>]) {
    for (turn, first) in waiters.iter().enumerate() {
        for other in waiters[turn + 1..].iter().rev() {
            other.is_refused().await;
        }
        first.enters().await;
        first.releases().await;
    }
}

/// C18: refused waiters enter in the order in which they came, whichever client they are at.
pub async fn those_who_were_refused_enter_in_the_order_in_which_they_came<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    let waiters =
        [scene.two(&holds[1]), scene.one(&holds[2]), scene.one(&holds[3]), scene.two(&holds[4])];
    for waiter in waiters {
        waiter.queues().await;
    }
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&waiters).await;
}

/// C18: the order is the same if the hold was not released but expired.
pub async fn the_order_outlives_the_end_of_a_lease<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters_for(fixture.short_lease()).await;
    let waiters = [scene.two(&holds[1]), scene.one(&holds[2])];
    for waiter in waiters {
        waiter.queues().await;
    }
    fixture.pass(fixture.short_lease() + MILLISECOND).await;
    enter_in_turn(&waiters).await;
}

/// C18: a free lock is reserved for the first waiter: neither a try nor a request for a place nor
/// the second waiter gets it first.
pub async fn nobody_overtakes_the_first_of_the_queue<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.two(&holds[2]).queues().await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[3]).is_refused().await;
    scene.one(&holds[3]).queues().await;
    scene.one(&holds[0]).is_refused().await;
    scene.two(&holds[2]).is_refused().await;
    assert!(!state(&scene.one, &scene.name).await.is_held(), "somebody has overtaken");
    enter_in_turn(&[scene.two(&holds[1]), scene.two(&holds[2]), scene.one(&holds[3])]).await;
}

/// C18: a refusal carries the remaining lease of a held lock, and the remaining time of the first
/// place of a free one.
pub async fn a_refusal_of_a_free_lock_tells_when_to_ask_again<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, kept) = ([stranger(), stranger(), stranger()], LASTING / 10);
    scene.one(&holds[0]).enters().await;
    let remaining = scene.two(&holds[1]).queues_for(kept).await;
    assert!(
        remaining > LASTING / 2 && remaining <= LASTING,
        "{remaining:?}, the lease is {LASTING:?}"
    );
    scene.one(&holds[0]).releases().await;
    for refused in [scene.one(&holds[2]).is_refused().await, scene.one(&holds[2]).queues().await] {
        assert!(
            refused > kept / 2 && refused <= kept,
            "{refused:?}, the place is kept for {kept:?}"
        );
    }
}

/// C18: a request that does not ask for a place gets none.
pub async fn a_try_takes_no_place<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).is_refused().await;
    scene.two(&holds[2]).queues().await;
    scene.two(&holds[1]).is_refused().await;
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&[scene.two(&holds[2])]).await;
    scene.one(&holds[0]).enters().await;
}

/// C18: a waiter that asks again keeps its place, whichever client it asks.
pub async fn asking_again_keeps_the_place<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let waiters = [scene.two(&holds[1]), scene.one(&holds[2])];
    scene.one(&holds[0]).enters().await;
    for waiter in waiters {
        waiter.queues().await;
    }
    waiters[0].queues().await;
    waiters[0].at(&scene.one).queues().await;
    scene.one(&holds[0]).releases().await;
    waiters[1].queues().await;
    enter_in_turn(&waiters).await;
}

/// C18: a waiter that has entered loses its place, and delays nobody after its release.
pub async fn who_has_entered_has_no_place_any_more<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).enters().await;
    scene.one(&holds[2]).queues().await;
    scene.two(&holds[1]).releases().await;
    scene.two(&holds[1]).is_refused().await;
    scene.one(&holds[2]).enters().await;
    scene.one(&holds[2]).releases().await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C18: every name has its own queue.
pub async fn every_name_has_a_queue_of_its_own<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, other) = ([stranger(), stranger(), stranger()], unique_name(":other"));
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[2]).under(&other).enters().await;
    scene.one(&holds[2]).under(&other).releases().await;
    scene.one(&holds[2]).is_refused().await;
}

/// C1: a fair hold and an exclusive one of the same name exclude each other.
pub async fn a_fair_hold_and_an_exclusive_one_exclude_each_other<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger()];
    let (fair, exclusive) = (scene.one(&holds[0]), scene.two(&holds[1]).in_mode(Mode::Exclusive));
    let first = fair.enters().await;
    exclusive.is_refused().await;
    fair.releases().await;
    let second = exclusive.enters().await;
    fair.is_refused().await;
    exclusive.releases().await;
    let third = fair.enters().await;
    assert!(first < second && second < third, "{first}, {second}, {third}");
}

/// C6: a named owner takes over its own fair hold at once, past all waiters, and still excludes
/// them.
pub async fn a_named_owner_takes_over_its_fair_hold_past_the_queue<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [named("job-17"), named("job-17"), stranger()];
    let before = scene.one(&holds[0]).enters().await;
    scene.one(&holds[2]).queues().await;
    let after = scene.two(&holds[1]).enters().await;
    assert!(after > before, "the takeover has token {after}, the hold before it {before}");
    scene.one(&holds[0]).cannot_release().await;
    scene.one(&holds[2]).is_refused().await;
    scene.two(&holds[1]).releases().await;
    enter_in_turn(&[scene.one(&holds[2])]).await;
}

/// C7: a fair hold that is gone cannot grow, even if somebody waits and nobody holds the lock; it
/// takes no place either.
pub async fn a_fair_hold_that_is_gone_cannot_grow_past_the_queue<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[0]).cannot_grow().await;
    enter_in_turn(&[scene.two(&holds[1])]).await;
    scene.one(&holds[0]).cannot_grow().await;
}

/// C8 and C5: a fair hold is repeated, grown, renewed, lowered, reported and released like any
/// other, despite waiters.
pub async fn a_fair_hold_is_nested_and_renewed_like_any_other<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, lease) = ([stranger(), stranger()], LASTING / 10);
    let holder = scene.one(&holds[0]);
    let token = holder.enters_for(lease).await;
    scene.two(&holds[1]).queues().await;
    assert_eq!(holder.enters_for(lease).await, token, "it is still the same hold");
    assert_eq!(holder.grows_to(3, lease).await, token);
    assert!(holder.holds().await.1 <= lease, "nobody has asked for more");
    holder.renews(LASTING).await;
    let (count, remaining) = holder.at(&scene.two).holds().await;
    assert!(count == 3 && remaining > LASTING / 2, "{count}, {remaining:?}");
    holder.lowers_to(1).await;
    scene.two(&holds[1]).cannot_renew().await;
    scene.two(&holds[1]).is_refused().await;
    holder.releases().await;
    enter_in_turn(&[scene.two(&holds[1])]).await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C13: a forced release frees a fair hold, for the first waiter in the queue.
pub async fn a_forced_release_frees_a_fair_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.one(&holds[0]).grows_to(2, LASTING).await;
    scene.two(&holds[1]).queues().await;
    assert!(force(&scene.two, &scene.name).await, "the lock was held");
    assert!(!force(&scene.two, &scene.name).await, "a place is no hold");
    scene.one(&holds[0]).cannot_renew().await;
    enter_in_turn(&[scene.two(&holds[1]), scene.one(&holds[2])]).await;
}

/// C19: a place is forgotten after its time, and the next waiter is let in.
pub async fn a_place_is_forgotten_after_its_time<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues_for(time).await;
    scene.two(&holds[2]).queues().await;
    scene.one(&holds[0]).releases().await;
    fixture.pass(time + MILLISECOND).await;
    scene.two(&holds[1]).is_refused().await;
    enter_in_turn(&[scene.two(&holds[2]), scene.two(&holds[1])]).await;
}

/// C19: a place is not forgotten before its time.
pub async fn a_place_is_kept_for_its_time<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters().await;
    let sent = Instant::now();
    scene.two(&holds[1]).queues_for(time).await;
    scene.one(&holds[0]).releases().await;
    let stranger = scene.one(&holds[2]);
    while stranger.asks().await.token().is_none() {
        assert!(sent.elapsed() < time * 20, "the place is not forgotten");
        fixture.pass(time / 40).await;
    }
    let lasted = sent.elapsed();
    assert!(lasted + MILLISECOND >= time, "a place for {time:?} was forgotten after {lasted:?}");
}

/// C19: the time of a place starts again when its hold asks again.
pub async fn a_waiter_that_asks_again_in_time_is_not_forgotten<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease() * 2);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues_for(time).await;
    scene.one(&holds[2]).queues().await;
    for _ in 0..5 {
        fixture.pass(time / 4).await;
        scene.two(&holds[1]).queues_for(time).await;
    }
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&[scene.two(&holds[1]), scene.one(&holds[2])]).await;
}

/// C19: a waiter that asks again after its place was forgotten gets one at the end of the queue.
pub async fn who_asks_again_too_late_comes_last<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues_for(time).await;
    scene.one(&holds[2]).queues().await;
    fixture.pass(time + MILLISECOND).await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&[scene.one(&holds[2]), scene.two(&holds[1])]).await;
}

/// C19: a waiter behind others that has stopped asking is skipped when its turn comes.
pub async fn who_has_stopped_asking_is_passed_over<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) =
        ([stranger(), stranger(), stranger(), stranger()], fixture.short_lease() * 2);
    scene.one(&holds[0]).enters().await;
    let [first, stopped, third] =
        [scene.two(&holds[1]), scene.one(&holds[2]), scene.one(&holds[3])];
    for waiter in [first, stopped, third] {
        waiter.queues_for(time).await;
    }
    fixture.pass(time / 2).await;
    first.queues_for(time).await;
    third.queues_for(time).await;
    fixture.pass(time / 2 + MILLISECOND).await;
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&[first, third, stopped]).await;
}

/// C19 and C15: nothing is left of lapsed places.
pub async fn nothing_is_left_of_places_that_lapsed<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease() / 5);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues_for(time).await;
    scene.one(&holds[2]).queues_for(time).await;
    scene.one(&holds[0]).releases().await;
    fixture.pass(time * 2).await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C20: a waiter that gives up is told that it holds nothing, and delays nobody, whether it was
/// first or not.
pub async fn who_gives_up_is_out_of_the_queue<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger(), stranger()];
    let waiters =
        [scene.two(&holds[1]), scene.two(&holds[2]), scene.one(&holds[3]), scene.one(&holds[4])];
    scene.one(&holds[0]).enters().await;
    for waiter in waiters {
        waiter.queues().await;
    }
    waiters[0].cannot_release().await;
    waiters[2].at(&scene.two).cannot_release().await;
    scene.one(&holds[0]).releases().await;
    waiters[0].is_refused().await;
    enter_in_turn(&[waiters[1], waiters[3]]).await;
    waiters[2].enters().await;
}

/// C20: a waiter that gave up and asks again gets a place at the end of the queue.
pub async fn who_gave_up_comes_last<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[2]).queues().await;
    scene.two(&holds[1]).cannot_release().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[0]).releases().await;
    enter_in_turn(&[scene.one(&holds[2]), scene.two(&holds[1])]).await;
}

/// C20 and C10: giving up a place does not affect the current hold.
pub async fn giving_up_a_place_leaves_the_hold_of_another<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger()];
    let token = scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.two(&holds[1]).cannot_release().await;
    scene.two(&holds[1]).cannot_release().await;
    assert_eq!(scene.one(&holds[0]).holds().await.0, 1);
    scene.two(&holds[1]).is_refused().await;
    assert_eq!(scene.one(&holds[0]).enters().await, token);
    scene.one(&holds[0]).releases().await;
}

/// C20: when the first waiter gives up, the next one is woken, because the lock is free for it.
pub async fn giving_up_the_first_place_wakes_the_next<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.two(&holds[2]).queues().await;
    let mut wakeups = scene.two(&holds[2]).subscribes().await;
    scene.one(&holds[0]).releases().await;
    drain(fixture, &mut wakeups).await;
    scene.two(&holds[1]).cannot_release().await;
    soon(wakeups.woken()).await;
    scene.two(&holds[2]).enters().await;
}

/// C20: the end of a nested hold wakes the first waiter, whether it subscribed or queued first.
pub async fn the_end_of_a_hold_wakes_the_first_of_the_queue<F: Fixture>(fixture: &F) {
    for subscribes_first in [true, false] {
        let scene = Scene::fair(fixture).await;
        let holds = [stranger(), stranger()];
        let (holder, waiter) = (scene.one(&holds[0]), scene.two(&holds[1]));
        holder.enters().await;
        holder.grows_to(2, LASTING).await;
        let early = if subscribes_first { Some(waiter.subscribes().await) } else { None };
        waiter.queues().await;
        let mut wakeups = match early {
            Some(wakeups) => wakeups,
            None => waiter.subscribes().await,
        };
        drain(fixture, &mut wakeups).await;
        holder.releases().await;
        soon(wakeups.woken()).await;
        waiter.enters().await;
    }
}

/// C20: the end of a hold that did not queue wakes the first of the queue, also if the hold was nested or its owner has a name.
pub async fn the_end_of_an_exclusive_hold_wakes_the_first_of_the_queue<F: Fixture>(fixture: &F) {
    for (hold, count) in [(stranger(), 1), (stranger(), 2), (named("job-17"), 1)] {
        let (scene, waiting) = (Scene::fair(fixture).await, [stranger(), stranger()]);
        let holder = scene.one(&hold).in_mode(Mode::Exclusive);
        let (first, second) = (scene.two(&waiting[0]), scene.one(&waiting[1]));
        holder.enters().await;
        if count > 1 {
            holder.grows_to(count, LASTING).await;
        }
        first.queues().await;
        second.queues().await;
        let mut wakeups = first.subscribes().await;
        drain(fixture, &mut wakeups).await;
        holder.releases().await;
        soon(wakeups.woken()).await;
        second.is_refused().await;
        first.enters().await;
    }
}

/// C20 and C13: a forced release of a hold that did not queue wakes the first of the queue.
pub async fn a_forced_release_of_an_exclusive_hold_wakes_the_first_of_the_queue<F: Fixture>(
    fixture: &F,
) {
    is_forced(fixture, Mode::Exclusive).await;
}

/// C20 and C13: a forced release wakes the first waiter.
pub async fn a_forced_release_wakes_the_first_of_the_queue<F: Fixture>(fixture: &F) {
    is_forced(fixture, Mode::Fair).await;
}

async fn is_forced<F: Fixture>(fixture: &F, mode: Mode) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger()];
    scene.one(&holds[0]).in_mode(mode).enters().await;
    scene.two(&holds[1]).queues().await;
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    drain(fixture, &mut wakeups).await;
    assert!(force(&scene.one, &scene.name).await);
    soon(wakeups.woken()).await;
    scene.two(&holds[1]).enters().await;
}

/// C20: every release wakes the current first waiter, not only the first release.
pub async fn every_release_wakes_whoever_is_first_then<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let mut holder = scene.one(&holds[0]);
    holder.enters().await;
    let mut waiting = Vec::new();
    for waiter in [scene.two(&holds[1]), scene.one(&holds[2]), scene.two(&holds[3])] {
        waiter.queues().await;
        waiting.push((waiter, waiter.subscribes().await));
    }
    for (waiter, mut wakeups) in waiting {
        drain(fixture, &mut wakeups).await;
        holder.releases().await;
        soon(wakeups.woken()).await;
        waiter.enters().await;
        holder = waiter;
    }
}

/// C20 and C15: nothing is left of places that were given up.
pub async fn nothing_is_left_of_places_that_were_given_up<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    scene.one(&holds[2]).queues().await;
    let wakeups = scene.one(&holds[2]).subscribes().await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[2]).cannot_release().await;
    scene.two(&holds[1]).cannot_release().await;
    drop(wakeups);
    nothing_is_left(fixture, &scene.name).await;
}

/// C20 and C12: a takeover that ends before the hold that it replaces wakes the first waiter.
pub async fn a_takeover_that_ends_earlier_wakes_the_first_of_the_queue<F: Fixture>(fixture: &F) {
    takes_over_for_less(fixture, Mode::Fair).await;
}

/// C20 and C12: so does a takeover of a hold that did not queue.
pub async fn an_exclusive_takeover_that_ends_earlier_wakes_the_first_of_the_queue<F: Fixture>(
    fixture: &F,
) {
    takes_over_for_less(fixture, Mode::Exclusive).await;
}

async fn takes_over_for_less<F: Fixture>(fixture: &F, mode: Mode) {
    let scene = Scene::fair(fixture).await;
    let holds = [named("job-17"), named("job-17"), stranger()];
    scene.one(&holds[0]).in_mode(mode).enters().await;
    let waiter = scene.two(&holds[2]);
    waiter.queues().await;
    let mut wakeups = waiter.subscribes().await;
    drain(fixture, &mut wakeups).await;
    scene.one(&holds[1]).in_mode(mode).enters_for(LASTING / 10).await;
    soon(wakeups.woken()).await;
    let remaining = waiter.is_refused().await;
    assert!(remaining <= LASTING / 10, "{remaining:?}, one tenth of {LASTING:?}");
}

/// C20 and C12: a hold that ends before its place would have wakes the next waiter, which was told
/// the time of the place.
pub async fn a_hold_that_ends_before_its_place_wakes_the_next<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (first, next) = (scene.one(&holds[1]), scene.two(&holds[2]));
    scene.one(&holds[0]).enters().await;
    first.queues().await;
    next.queues().await;
    let mut wakeups = next.subscribes().await;
    scene.one(&holds[0]).releases().await;
    let before = next.is_refused().await;
    drain(fixture, &mut wakeups).await;
    first.enters_for(LASTING / 10).await;
    soon(wakeups.woken()).await;
    let after = next.is_refused().await;
    assert!(after < before / 2, "the next was told {before:?} before and {after:?} now");
}
