//! C36: a waiter is woken by its notification.

use lockcore::backend::Departure;

use crate::{
    Fixture,
    conformance::{
        condition::{Condition, ConditionWaiter, waiters},
        scene::{LASTING, nothing_is_left, soon},
        wakeups::{drain, drops_a_wait},
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// Waits as the core does. The waiter has joined before.
async fn waits(waiter: ConditionWaiter<'_>) {
    let mut wakeups = waiter.subscribes().await;
    while waiter.asks_to_stay(LASTING).await {
        wakeups.woken().await;
    }
}

/// C36: a notification wakes its waiter, whether it subscribed before it joined or afterwards.
pub async fn a_notification_wakes_its_waiter<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    let mut before = condition.two(&a).subscribes().await;
    condition.two(&a).joins().await;
    condition.one(&b).joins().await;
    let mut afterwards = condition.one(&b).subscribes().await;
    drain(fixture, &mut before).await;
    assert_eq!(condition.notify(1).await, 1);
    soon(before.woken()).await;
    drain(fixture, &mut afterwards).await;
    assert_eq!(condition.notify(1).await, 1);
    soon(afterwards.woken()).await;
}

/// C36: when several waiters are notified at once, each is woken, however many there are and
/// whichever clients they are at.
pub async fn everybody_who_is_notified_is_woken<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let (names, others) = (waiters(), waiters());
    let at_one = names.iter().map(|name| condition.one(name));
    let mut subscriptions = Vec::new();
    for waiter in at_one.chain(others.iter().map(|name| condition.two(name))) {
        waiter.joins().await;
        subscriptions.push(waiter.subscribes().await);
    }
    for wakeups in &mut subscriptions[..2] {
        drain(fixture, wakeups).await;
    }
    assert_eq!(condition.notify(2).await, 2);
    for wakeups in &mut subscriptions[..2] {
        soon(wakeups.woken()).await;
    }
    for wakeups in &mut subscriptions[2..] {
        drain(fixture, wakeups).await;
    }
    assert_eq!(condition.notify(u32::MAX).await, 4);
    for wakeups in &mut subscriptions[2..] {
        soon(wakeups.woken()).await;
    }
}

/// C36: a waiter may subscribe at several clients, and is woken at each.
pub async fn every_subscription_of_a_waiter_is_woken<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, ..] = waiters();
    condition.one(&a).joins().await;
    let (here, there) = (condition.one(&a), condition.two(&a));
    let mut subscriptions =
        [here.subscribes().await, here.subscribes().await, there.subscribes().await];
    for wakeups in &mut subscriptions {
        drain(fixture, wakeups).await;
    }
    condition.notify(1).await;
    for wakeups in &mut subscriptions {
        soon(wakeups.woken()).await;
    }
}

/// C36: a notification that is passed on wakes its new waiter.
pub async fn a_notification_that_is_passed_on_wakes<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.one(&a).joins().await;
    condition.two(&b).joins().await;
    let mut wakeups = condition.two(&b).subscribes().await;
    assert_eq!(condition.notify(1).await, 1);
    drain(fixture, &mut wakeups).await;
    assert!(!condition.one(&a).asks_to_leave(Departure::Cancelled).await);
    soon(wakeups.woken()).await;
}

/// C36: a notification wakes a sleeping waiter.
pub async fn a_notification_wakes_one_that_sleeps<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, ..] = waiters();
    condition.two(&a).joins().await;
    let notified = async {
        fixture.pass(fixture.short_lease() / 4).await;
        condition.notify(1).await;
    };
    soon(async { tokio::join!(waits(condition.two(&a)), notified) }).await;
}

/// C36: a waiter that joins again is woken again.
pub async fn every_notification_wakes<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, ..] = waiters();
    let mut wakeups = condition.two(&a).subscribes().await;
    for _ in 0..3 {
        condition.two(&a).joins().await;
        drain(fixture, &mut wakeups).await;
        assert_eq!(condition.notify(1).await, 1);
        soon(wakeups.woken()).await;
    }
}

/// C36: a notification that comes between two waits is kept for its waiter.
pub async fn a_notification_between_two_waits_is_kept<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, ..] = waiters();
    condition.two(&a).joins().await;
    let mut wakeups = condition.two(&a).subscribes().await;
    drain(fixture, &mut wakeups).await;
    condition.notify(1).await;
    fixture.pass(fixture.short_lease() / 10).await;
    soon(wakeups.woken()).await;
}

/// C36: a wait that is dropped before it completes does not consume a notification, however often
/// it was polled.
pub async fn a_dropped_wait_takes_no_notification_with_it<F: Fixture>(fixture: &F) {
    for polls in 0..4 {
        let condition = Condition::of(fixture).await;
        let [a, ..] = waiters();
        condition.two(&a).joins().await;
        let mut wakeups = condition.two(&a).subscribes().await;
        let notified = async {
            condition.notify(1).await;
        };
        if drops_a_wait(fixture, &mut wakeups, polls, notified).await {
            return;
        }
        soon(wakeups.woken()).await;
    }
}

/// C36: dropping a subscription takes no wake-up from another one, of the same waiter or of a
/// different one.
pub async fn those_who_stop_listening_do_not_silence_the_others<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    condition.two(&a).joins().await;
    let firsts = [condition.two(&a).subscribes().await, condition.two(&b).subscribes().await];
    let mut stays = condition.two(&a).subscribes().await;
    drop(firsts);
    drop(condition.two(&b).subscribes().await);
    drain(fixture, &mut stays).await;
    condition.notify(1).await;
    soon(stays.woken()).await;
}

/// C36: a waiter that unsubscribes and subscribes again is woken again.
pub async fn a_subscription_of_a_waiter_after_another_is_in_effect<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, ..] = waiters();
    for _ in 0..10 {
        drop(condition.two(&a).subscribes().await);
        condition.two(&a).joins().await;
        let mut wakeups = condition.two(&a).subscribes().await;
        condition.notify(1).await;
        soon(wakeups.woken()).await;
    }
}

/// C36: a waiter that subscribes and then asks whether it is still in the queue misses no
/// notification, whenever it comes.
pub async fn who_subscribes_and_then_asks_misses_no_notification<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    for round in 0..10 {
        let [a, b, _] = waiters();
        condition.two(&a).joins().await;
        condition.one(&b).joins().await;
        let notified = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            condition.notify(2).await;
        };
        soon(async { tokio::join!(waits(condition.two(&a)), waits(condition.one(&b)), notified) })
            .await;
    }
}

/// C36: nothing is left of a dropped subscription, whether its waiter was notified or not.
pub async fn nothing_is_left_of_a_dropped_subscription_of_a_waiter<F: Fixture>(fixture: &F) {
    let condition = Condition::of(fixture).await;
    let [a, b, _] = waiters();
    drop(condition.one(&a).subscribes().await);
    nothing_is_left(fixture, &condition.scene.name).await;
    condition.two(&a).joins().await;
    let mut woken = condition.two(&a).subscribes().await;
    let unheard = condition.two(&b).subscribes().await;
    condition.notify(1).await;
    soon(woken.woken()).await;
    drop((woken, unheard));
    nothing_is_left(fixture, &condition.scene.name).await;
}

/// C36 and C17: a subscription that is dropped before it takes effect leaves nothing behind and
/// does not disturb the next one.
pub async fn a_dropped_subscribe_leaves_no_subscription_of_a_waiter<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let condition = Condition::of(fixture).await;
        let [a, ..] = waiters();
        let ended = poll_times(polls, condition.two(&a).begins_to_subscribe()).await;
        nothing_is_left(fixture, &condition.scene.name).await;
        condition.two(&a).joins().await;
        let mut wakeups = condition.two(&a).subscribes().await;
        condition.notify(1).await;
        soon(wakeups.woken()).await;
        drop(wakeups);
        nothing_is_left(fixture, &condition.scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}
