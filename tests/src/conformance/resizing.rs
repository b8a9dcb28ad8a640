//! C29: the number of permits can be set.

use lockcore::{
    LockName,
    backend::{AcquireOutcome, Backend, ResizeOutcome, ResizeRequest},
};

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Rival, Scene, force, soon, state, stranger},
        wakeups::drain,
    },
};

/// The number of permits that requests carry as `limit`. No case sets this one.
const SAID: u32 = 3;

async fn resize(backend: &impl Backend, name: &LockName, permits: u32) {
    soon(backend.resize(&ResizeRequest::new(name.clone(), permits))).await.expect("resize failed");
}

/// The number of available permits, and the total.
async fn permits(backend: &impl Backend, name: &LockName) -> (Option<u32>, Option<u32>) {
    let state = state(backend, name).await;
    (state.available(), state.limit())
}

async fn is_too_many(contender: Rival<'_>, limit: u32) {
    assert_eq!(contender.asks().await, AcquireOutcome::TooMany { limit });
}

/// C29: the number that was set counts, whatever the requests carry.
pub async fn what_was_set_counts_and_not_what_is_said<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let holds = [stranger(), stranger(), stranger()];
    resize(&scene.one, &scene.name, 5).await;
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(5), Some(5)));
    scene.two(&holds[0]).taking(4).enters().await;
    scene.one(&holds[1]).enters().await;
    scene.two(&holds[2]).is_refused().await;
    is_too_many(scene.two(&holds[2]).taking(6), 5).await;
    assert_eq!(permits(&scene.one, &scene.name).await, (Some(0), Some(5)));
}

/// C29: the number that was set is remembered after all permits were returned, by release, by force
/// or by the end of a lease.
pub async fn what_was_set_is_remembered<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let (hold, time) = (stranger(), fixture.short_lease() / 5);
    let holder = scene.one(&hold).taking(2);
    resize(&scene.one, &scene.name, 2).await;
    holder.enters().await;
    holder.releases().await;
    is_too_many(scene.two(&hold).taking(3), 2).await;
    holder.enters().await;
    assert!(force(&scene.two, &scene.name).await);
    is_too_many(scene.two(&hold).taking(3), 2).await;
    holder.enters_for(time).await;
    fixture.pass(time * 2).await;
    is_too_many(scene.two(&hold).taking(3), 2).await;
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(2), Some(2)));
}

/// C29: when permits are added, refused waiters are woken and get theirs.
pub async fn more_permits_wake_those_who_wait<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).taking(SAID).enters().await;
    let mut wakeups =
        [scene.one(&holds[1]).subscribes().await, scene.two(&holds[2]).subscribes().await];
    for permits in [SAID + 1, SAID + 3] {
        for wakeups in &mut wakeups {
            drain(fixture, wakeups).await;
        }
        resize(&scene.one, &scene.name, permits).await;
        for wakeups in &mut wakeups {
            soon(wakeups.woken()).await;
        }
    }
    scene.two(&holds[2]).taking(3).enters().await;
    scene.one(&holds[1]).is_refused().await;
}

/// C29: when permits are removed, current holds keep theirs, and returned permits become available
/// only below the new number.
pub async fn fewer_permits_leave_those_that_are_held<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (holders, other) =
        ([0, 1, 2].map(|number| scene.one(&holds[number])), scene.two(&holds[3]));
    for holder in holders {
        holder.enters().await;
    }
    resize(&scene.two, &scene.name, 1).await;
    for holder in holders {
        holder.renews(LASTING).await;
    }
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(0), Some(1)));
    for holder in holders {
        other.is_refused().await;
        holder.releases().await;
    }
    other.enters().await;
    holders[0].is_refused().await;
}

/// C29: the number can be set repeatedly while permits are held; held permits count each time.
pub async fn permits_can_be_set_again<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let hold = stranger();
    scene.one(&hold).taking(2).enters().await;
    for total in [2, 7, 7, 1, 0, 4] {
        resize(&scene.two, &scene.name, total).await;
        let left = total.saturating_sub(2);
        assert_eq!(permits(&scene.one, &scene.name).await, (Some(left), Some(total)));
    }
    scene.one(&hold).releases().await;
    assert_eq!(permits(&scene.one, &scene.name).await, (Some(4), Some(4)));
}

/// C29 and C9: setting the number of permits changes no lease.
pub async fn setting_the_permits_changes_no_lease<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let hold = stranger();
    let token = scene.one(&hold).enters_for(LASTING / 10).await;
    for total in [1, 5] {
        resize(&scene.two, &scene.name, total).await;
        let (_, remaining) = scene.one(&hold).holds().await;
        assert!(
            remaining > LASTING / 20 && remaining <= LASTING / 10,
            "{remaining:?}, a tenth of {LASTING:?}"
        );
    }
    assert_eq!(scene.one(&hold).enters_for(LASTING / 10).await, token);
}

/// Sets the number unless it was set before. Returns `true` if it did.
async fn resize_if_unset(backend: &impl Backend, name: &LockName, permits: u32) -> bool {
    let request = ResizeRequest::new(name.clone(), permits).only_if_unset(true);
    match soon(backend.resize(&request)).await.expect("resize failed") {
        ResizeOutcome::Resized => true,
        ResizeOutcome::AlreadySet => false,
        other => panic!("{other:?} is no answer to a resize"),
    }
}

/// C29: a request to set the number only if it is unset sets it once, and then leaves it as it is,
/// whichever kind of request set it.
pub async fn a_number_that_was_set_stays_if_it_is_asked_to<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let hold = stranger();
    assert!(resize_if_unset(&scene.one, &scene.name, 2).await);
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(2), Some(2)));
    for total in [7, 2] {
        assert!(!resize_if_unset(&scene.two, &scene.name, total).await);
    }
    scene.one(&hold).taking(2).enters().await;
    assert!(!resize_if_unset(&scene.two, &scene.name, 7).await);
    scene.one(&hold).releases().await;
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(2), Some(2)));

    resize(&scene.two, &scene.name, 5).await;
    assert!(!resize_if_unset(&scene.one, &scene.name, 1).await);
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(5), Some(5)));
}

/// C29: a number that is set replaces the one of the first acquisition, and wakes the waiters.
pub async fn what_the_first_acquire_said_is_not_set<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, SAID).await;
    let holds = [stranger(), stranger()];
    scene.one(&holds[0]).taking(SAID).enters().await;
    let mut wakeups = scene.two(&holds[1]).subscribes().await;
    drain(fixture, &mut wakeups).await;
    assert!(resize_if_unset(&scene.one, &scene.name, SAID + 2).await);
    soon(wakeups.woken()).await;
    assert_eq!(permits(&scene.two, &scene.name).await, (Some(2), Some(SAID + 2)));
    scene.two(&holds[1]).taking(2).enters().await;
    assert!(!resize_if_unset(&scene.two, &scene.name, 1).await);
}
