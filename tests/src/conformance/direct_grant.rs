//! C39: the release of a fair lock grants it to the first waiter in the queue, and wakes it.

use std::time::Duration;

use lockcore::{
    FencingToken,
    backend::{Wakeup, Wakeups},
};
use tokio::time::Instant;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Rival, Scene, nothing_is_left, soon, state, stranger},
        wakeups::{drain, drops_a_wait},
    },
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A waiter in the queue that has subscribed.
struct Queued<'a> {
    rival: Rival<'a>,
    wakeups: Box<dyn Wakeups>,
}

impl<'a> Queued<'a> {
    /// Queues for `time`. The request can be granted later, by `number`.
    async fn queues_for(rival: Rival<'a>, number: u64, time: Duration) -> Self {
        let wakeups = rival.subscribes().await;
        rival.with_number(number).queues_for(time).await;
        Self { rival, wakeups }
    }

    async fn queues(rival: Rival<'a>, number: u64) -> Self {
        Self::queues_for(rival, number, LASTING).await
    }

    /// Returns the token of the grant, and the number of the request that was granted.
    async fn hears(&mut self) -> (FencingToken, u64) {
        loop {
            if let Wakeup::Granted { token, request } = soon(self.wakeups.woken()).await {
                return (token, request);
            }
        }
    }

    /// Shows that no grant arrives; other wake-ups may.
    async fn hears_of_no_grant<F: Fixture>(&mut self, fixture: &F) {
        loop {
            tokio::select! {
                biased;
                wakeup = self.wakeups.woken() => assert_eq!(wakeup, Wakeup::Changed),
                () = fixture.pass(fixture.short_lease() / 10) => return,
            }
        }
    }
}

/// C39: a release grants the lock to the first waiter in the queue and tells it its new token; a
/// request that follows is a repetition.
pub async fn a_release_grants_to_the_first_in_the_queue<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let before = scene.one(&holds[0]).enters().await;
    let mut waiter = Queued::queues(scene.two(&holds[1]), 7).await;
    drain(fixture, &mut waiter.wakeups).await;
    scene.one(&holds[0]).releases().await;
    let (token, request) = waiter.hears().await;
    assert!(token > before, "the grant has token {token}, the hold before it {before}");
    assert_eq!(request, 7);
    assert_eq!(waiter.rival.holds().await.0, 1);
    scene.one(&holds[2]).is_refused().await;
    assert_eq!(waiter.rival.enters().await, token, "it has the hold already");
    waiter.rival.releases().await;
    assert!(scene.one(&holds[2]).enters().await > token);
}

/// C39: the waiters are granted the lock in the order of the queue, and lose their places.
pub async fn one_after_the_other_is_granted_the_lock<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let mut last = scene.one(&holds[0]).enters().await;
    let mut waiters = Vec::new();
    for (number, rival) in
        [scene.two(&holds[1]), scene.one(&holds[2]), scene.two(&holds[3])].into_iter().enumerate()
    {
        waiters.push(Queued::queues(rival, number as u64).await);
    }
    scene.one(&holds[0]).releases().await;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let (token, request) = waiter.hears().await;
        assert!(token > last && request == number as u64, "{request}: {token} after {last}");
        assert_eq!(waiter.rival.holds().await.0, 1);
        waiter.rival.releases().await;
        last = token;
    }
    drop(waiters);
    assert!(!state(&scene.one, &scene.name).await.is_held(), "somebody has a second hold");
    nothing_is_left(fixture, &scene.name).await;
}

/// C39: a waiter whose last request had no number is only woken, not granted the lock.
pub async fn who_gave_no_number_is_only_woken<F: Fixture>(fixture: &F) {
    for gave_one_before in [false, true] {
        let scene = Scene::fair(fixture).await;
        let holds = [stranger(), stranger(), stranger()];
        scene.one(&holds[0]).enters().await;
        let first = scene.two(&holds[1]);
        if gave_one_before {
            first.with_number(1).queues().await;
        }
        first.queues().await;
        let mut next = Queued::queues(scene.one(&holds[2]), 1).await;
        let mut wakeups = first.subscribes().await;
        drain(fixture, &mut wakeups).await;
        scene.one(&holds[0]).releases().await;
        assert_eq!(soon(wakeups.woken()).await, Wakeup::Changed);
        assert!(!state(&scene.one, &scene.name).await.is_held(), "it was not asked for");
        first.enters().await;
        first.releases().await;
        next.hears().await;
    }
}

/// C39: a grant names the last request of its hold.
pub async fn a_grant_names_the_last_request<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    let mut waiter = Queued::queues(scene.two(&holds[1]), 1).await;
    for number in [2, u64::MAX] {
        waiter.rival.with_number(number).queues().await;
    }
    scene.one(&holds[0]).releases().await;
    assert_eq!(waiter.hears().await.1, u64::MAX);
}

/// C39: a granted hold that nobody renews lasts as long as its place would have.
pub async fn a_granted_hold_lasts_as_long_as_its_place<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters().await;
    let mut waiter = Queued::queues_for(scene.two(&holds[1]), 1, time).await;
    fixture.pass(time / 2).await;
    let asked = Instant::now();
    waiter.rival.with_number(2).queues_for(time).await;
    let told = Instant::now();
    fixture.pass(time / 4).await;
    scene.one(&holds[0]).releases().await;
    waiter.hears().await;
    let (_, remaining) = waiter.rival.holds().await;
    assert!(remaining <= time, "{remaining:?}, the place was kept for {time:?}");
    let other = scene.one(&holds[2]);
    while other.asks().await.token().is_none() {
        assert!(told.elapsed() < time * 3, "the hold does not end");
        fixture.pass(time / 40).await;
    }
    let lasted = asked.elapsed();
    assert!(lasted + MILLISECOND >= time, "a place for {time:?} was held for {lasted:?}");
}

/// C39: a granted hold is renewed, nested and released like any other.
pub async fn a_granted_hold_is_like_any_other<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let (holds, time) = ([stranger(), stranger()], fixture.short_lease() * 2);
    scene.one(&holds[0]).enters().await;
    let mut waiter = Queued::queues_for(scene.two(&holds[1]), 1, time).await;
    scene.one(&holds[0]).releases().await;
    let (token, _) = waiter.hears().await;
    waiter.rival.renews(LASTING).await;
    fixture.pass(time + MILLISECOND).await;
    let (count, remaining) = waiter.rival.at(&scene.one).holds().await;
    assert!(count == 1 && remaining > LASTING / 2, "{count}, {remaining:?}");
    assert_eq!(waiter.rival.grows_to(2, LASTING).await, token);
    waiter.rival.lowers_to(1).await;
    assert_eq!(waiter.rival.holds().await.0, 1);
    waiter.rival.releases().await;
    waiter.rival.cannot_release().await;
    drop(waiter);
    nothing_is_left(fixture, &scene.name).await;
}

/// C39: when the first waiter gives up its place and the lock is free, the next one is granted it.
pub async fn giving_up_the_first_place_grants_to_the_next<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).queues().await;
    let mut next = Queued::queues(scene.one(&holds[2]), 1).await;
    scene.one(&holds[0]).releases().await;
    scene.two(&holds[1]).cannot_release().await;
    next.hears().await;
    assert_eq!(next.rival.holds().await.0, 1);
}

/// C39: a held lock is not granted to anybody, neither when its count is lowered nor when a place
/// is given up.
pub async fn a_held_lock_is_granted_to_nobody<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let holder = scene.one(&holds[0]);
    holder.enters().await;
    scene.two(&holds[1]).with_number(1).queues().await;
    let mut next = Queued::queues(scene.two(&holds[2]), 1).await;
    holder.grows_to(2, LASTING).await;
    holder.lowers_to(1).await;
    scene.two(&holds[1]).cannot_release().await;
    next.hears_of_no_grant(fixture).await;
    assert_eq!(holder.holds().await.0, 1);
    holder.releases().await;
    next.hears().await;
}

/// C39: a waiter that gave up its place, or whose place has lapsed, is granted nothing.
pub async fn who_is_out_of_the_queue_is_granted_nothing<F: Fixture>(fixture: &F) {
    let scene = Scene::fair(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let time = fixture.short_lease();
    scene.one(&holds[0]).enters().await;
    let mut lapsed = Queued::queues_for(scene.one(&holds[1]), 1, time).await;
    let mut gave_up = Queued::queues(scene.two(&holds[2]), 1).await;
    let mut stays = Queued::queues(scene.two(&holds[3]), 1).await;
    gave_up.rival.cannot_release().await;
    fixture.pass(time + MILLISECOND).await;
    scene.one(&holds[0]).releases().await;
    stays.hears().await;
    gave_up.hears_of_no_grant(fixture).await;
    lapsed.hears_of_no_grant(fixture).await;
    assert_eq!(stays.rival.holds().await.0, 1);
}

/// C39: a grant that comes between two waits, or during a wait that is dropped, is not lost.
pub async fn a_grant_between_two_waits_is_heard_of<F: Fixture>(fixture: &F) {
    for polls in 0..4 {
        let scene = Scene::fair(fixture).await;
        let holds = [stranger(), stranger()];
        let holder = scene.one(&holds[0]);
        holder.enters().await;
        let mut waiter = Queued::queues(scene.two(&holds[1]), 1).await;
        let released = holder.releases();
        if drops_a_wait(fixture, &mut waiter.wakeups, polls, released).await {
            return;
        }
        waiter.hears().await;
    }
}
