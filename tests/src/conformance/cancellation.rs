//! C17: futures that are dropped, after any number of polls.

use lockcore::backend::{Backend, SubscribeRequest};

use crate::{
    Fixture,
    conformance::scene::{
        LASTING, Rival, Scene, force, nothing_is_left, soon, state, stranger, unique_name,
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// Undoes, once and as the core does, what a dropped acquire may have done. The acquire must have
/// no effect afterwards: `next` enters at once, and still does after a straggler could have
/// arrived.
async fn gives_way<F: Fixture>(fixture: &F, dropped: Rival<'_>, next: Rival<'_>) {
    dropped.asks_to_release(0).await;
    next.enters().await;
    next.releases().await;
    fixture.pass(fixture.short_lease() / 10).await;
    next.enters().await;
    next.releases().await;
}

/// C17: an acquire that is dropped at any await can be undone, and nobody has to wait for its
/// lease.
pub async fn a_dropped_acquire_can_be_undone<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let dropped = scene.one(&holds[0]);
        let request = dropped.acquire_request(LASTING);
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        gives_way(fixture, dropped, scene.two(&holds[1])).await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// Lets the first client carry out requests in parallel, under other names. Connections that are
/// opened when all others are busy are open from then on.
async fn warms_up<B: Backend>(scene: &Scene<B>) {
    let (hold, names) = (stranger(), [""; 8].map(unique_name));
    let [a, b, c, d, e, f, g, h] = names.each_ref().map(|name| async {
        let owner = scene.one(&hold).under(name);
        owner.enters().await;
        owner.releases().await;
    });
    tokio::join!(a, b, c, d, e, f, g, h);
}

/// C17: a dropped acquire can be undone as well at a client that has carried out requests in
/// parallel, and so may have several connections.
pub async fn a_dropped_acquire_can_be_undone_by_a_warm_client<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    for polls in 0..POLLS {
        let (name, holds) = (unique_name(""), [stranger(), stranger()]);
        let dropped = scene.one(&holds[0]).under(&name);
        let request = dropped.acquire_request(LASTING);
        warms_up(&scene).await;
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        gives_way(fixture, dropped, scene.two(&holds[1]).under(&name)).await;
        nothing_is_left(fixture, &name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: dropping an acquire does not affect later requests of the same client.
pub async fn a_dropped_acquire_does_not_block_its_client<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        scene.two(&holds[0]).enters().await;
        let request = scene.one(&holds[1]).acquire_request(LASTING);
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        scene.one(&holds[1]).is_refused().await;
        scene.two(&holds[0]).releases().await;
        gives_way(fixture, scene.one(&holds[1]), scene.one(&holds[0])).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C3 and C17: an acquire that is dropped and never undone ends with its lease.
pub async fn a_dropped_acquire_ends_with_its_lease_at_the_latest<F: Fixture>(fixture: &F) {
    let lease = fixture.short_lease() / 5;
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let request = scene.one(&holds[0]).acquire_request(lease);
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        fixture.pass(lease * 2).await;
        scene.two(&holds[1]).enters().await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a dropped request for a fair lock leaves no place in the queue once it has been undone.
pub async fn a_dropped_fair_acquire_leaves_no_place<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::fair(fixture).await;
        let holds = [stranger(), stranger(), stranger()];
        scene.two(&holds[0]).enters().await;
        let request = scene.one(&holds[1]).acquire_request(LASTING).queue(Some(LASTING));
        let answer = poll_times(polls, scene.one.acquire(&request)).await;
        scene.one(&holds[1]).cannot_release().await;
        fixture.pass(fixture.short_lease() / 10).await;
        scene.two(&holds[0]).releases().await;
        scene.two(&holds[2]).enters().await;
        scene.two(&holds[2]).releases().await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a dropped renewal has either renewed the lease or not; nothing else about the hold changes.
pub async fn a_dropped_renewal_leaves_the_hold<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, hold) = (Scene::of(fixture).await, stranger());
        let holder = scene.one(&hold);
        let token = holder.enters_for(LASTING / 2).await;
        let answer = poll_times(polls, scene.one.renew(&[holder.renew_request(LASTING)])).await;
        let (count, remaining) = holder.holds().await;
        assert!(count == 1 && remaining > LASTING / 4, "{count}, {remaining:?}");
        holder.renews(LASTING).await;
        assert_eq!(holder.enters().await, token);
        holder.releases().await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a dropped release has either taken effect or not; repeating it releases the hold.
pub async fn a_dropped_release_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let holder = scene.one(&holds[0]);
        holder.enters().await;
        let request = holder.release_request();
        let answer = poll_times(polls, scene.one.release(&request)).await;
        holder.asks_to_release(0).await;
        scene.two(&holds[1]).enters().await;
        scene.two(&holds[1]).releases().await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a dropped forced release can be repeated.
pub async fn a_dropped_forced_release_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, hold) = (Scene::of(fixture).await, stranger());
        scene.two(&hold).enters().await;
        let answer = poll_times(polls, scene.one.force_release(&scene.name)).await;
        force(&scene.one, &scene.name).await;
        assert!(!state(&scene.one, &scene.name).await.is_held());
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a dropped inspection changes nothing.
pub async fn a_dropped_inspection_changes_nothing<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, hold) = (Scene::of(fixture).await, stranger());
        scene.one(&hold).enters().await;
        let answer = poll_times(polls, scene.one.inspect(&scene.name)).await;
        assert_eq!(scene.one(&hold).holds().await.0, 1);
        scene.one(&hold).releases().await;
        if answer.is_some() {
            return;
        }
    }
}

/// C17: a subscription that is dropped before it takes effect leaves nothing behind and does not
/// disturb the next one.
pub async fn a_dropped_subscribe_leaves_no_subscription<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
        let request = SubscribeRequest::new(scene.name.clone(), holds[1].clone());
        let answer = poll_times(polls, scene.one.subscribe(&request)).await.map(drop);
        nothing_is_left(fixture, &scene.name).await;
        scene.two(&holds[0]).enters().await;
        let mut wakeups = scene.one(&holds[1]).subscribes().await;
        scene.two(&holds[0]).releases().await;
        soon(wakeups.woken()).await;
        drop(wakeups);
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() {
            return;
        }
    }
}
