//! C41, C42 and C45: the names in use, and what the store has of a name.

use std::{
    collections::HashSet,
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use lockcore::{
    BackendErrorKind, LockName, Mode,
    backend::{Backend, HoldId, ResizeRequest, Start, StoredEntry, StoredKind},
};

use crate::{
    Fixture,
    conformance::{
        capabilities::modes,
        condition::{Condition, waiters},
        latch::new_id,
        names::look_alikes,
        scene::{Scene, force, soon, state, stranger, unique_name},
        walk::{cursors_of_nobody, directory, is_refused, names, names_while},
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// Enough names for several steps, at a store that takes small ones.
const MANY: usize = 1200;

/// The number of concurrent requests.
const AT_ONCE: usize = 50;

/// One held name for each mode of the backend, with its hold.
async fn held_names<B: Backend>(scene: &Scene<B>) -> Vec<(LockName, Mode, HoldId)> {
    let capabilities = scene.one.capabilities();
    let mut held = Vec::new();
    for mode in modes().into_iter().filter(|mode| capabilities.supports(*mode)) {
        let (name, hold) = (unique_name(""), stranger());
        scene.one(&hold).under(&name).in_mode(mode).enters().await;
        held.push((name, mode, hold));
    }
    held
}

/// One name for each kind of queue of the backend, with a waiter but without an owner.
async fn awaited_names<B: Backend>(scene: &Scene<B>) -> Vec<(LockName, Mode, HoldId)> {
    let capabilities = scene.one.capabilities();
    let mut awaited = Vec::new();
    for mode in [Mode::Fair, Mode::Write].into_iter().filter(|mode| capabilities.supports(*mode)) {
        let (name, holds) = (unique_name(""), [stranger(), stranger()]);
        let before = if mode == Mode::Write { Mode::Read } else { mode };
        let holder = scene.one(&holds[0]).under(&name).in_mode(before);
        holder.enters().await;
        scene.two(&holds[1]).under(&name).in_mode(mode).queues().await;
        holder.releases().await;
        assert!(!state(&scene.one, &name).await.is_held());
        let [_, waiting] = holds;
        awaited.push((name, mode, waiting));
    }
    awaited
}

/// A resized semaphore and a latch with a count, as far as the backend has them.
async fn set_names<B: Backend>(scene: &Scene<B>) -> Vec<LockName> {
    let mut set = Vec::new();
    if scene.one.capabilities().supports(Mode::permits(1, 1)) {
        let name = unique_name("");
        soon(scene.one.resize(&ResizeRequest::new(name.clone(), 3))).await.expect("resize failed");
        set.push(name);
    }
    if let Some(latches) = scene.one.latches() {
        let name = unique_name("");
        let is_set = soon(latches.set_count(&name, 2, &new_id())).await;
        assert!(is_set.expect("set_count failed"));
        set.push(name);
    }
    set
}

/// C41: a name is reported whether it is held, waited for, resized, or a latch with a count.
pub async fn every_name_in_use_is_reported<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let (held, awaited) = (held_names(&scene).await, awaited_names(&scene).await);
    let set = set_names(&scene).await;
    for client in [&scene.one, &scene.two] {
        let reported = names(client).await;
        for (name, mode, _) in &held {
            assert!(reported.contains(name), "a name that is held is missing: {mode}");
        }
        for (name, mode, _) in &awaited {
            assert!(reported.contains(name), "a name that is waited for is missing: {mode}");
        }
        for name in &set {
            assert!(reported.contains(name), "a number or a count that was set is missing");
        }
    }
}

/// C41: a name that is free again is not reported, nor is one that was only asked for.
pub async fn a_name_that_is_free_again_is_not_reported<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let mut free = vec![unique_name(""), unique_name("")];
    let hold = stranger();
    scene.one(&hold).under(&free[0]).cannot_release().await;
    assert!(!state(&scene.one, &free[0]).await.is_held());
    scene.one(&hold).under(&free[1]).enters().await;
    assert!(force(&scene.two, &free[1]).await);
    let (held, awaited) = (held_names(&scene).await, awaited_names(&scene).await);
    for (name, mode, hold) in held {
        scene.two(&hold).under(&name).in_mode(mode).releases().await;
        free.push(name);
    }
    for (name, mode, hold) in awaited {
        // A waiter gives up its place.
        scene.one(&hold).under(&name).in_mode(mode).cannot_release().await;
        free.push(name);
    }
    if let Some(latches) = scene.one.latches() {
        let name = unique_name("");
        let is_set = soon(latches.set_count(&name, 1, &new_id())).await;
        assert!(is_set.expect("set_count failed"));
        soon(latches.count_down(&name, &new_id())).await.expect("count_down failed");
        free.push(name);
    }
    let reported = names(&scene.two).await;
    for name in free {
        assert!(!reported.contains(&name), "{name} is free");
    }
}

/// C41: a name is not reported after its lease has ended, or the last place in its queue.
pub async fn a_name_whose_lease_has_ended_is_not_reported<F: Fixture>(fixture: &F) {
    let (scene, capabilities) = (Scene::of(fixture).await, fixture.client().await.capabilities());
    let mut ended = Vec::new();
    for mode in modes().into_iter().filter(|mode| capabilities.supports(*mode)) {
        let name = unique_name("");
        scene.one(&stranger()).under(&name).in_mode(mode).enters_for(scene.brief()).await;
        ended.push((name, mode));
    }
    if capabilities.supports(Mode::Fair) {
        // A place in the queue, whose time ends as well.
        let (name, hold, next) = (unique_name(""), stranger(), stranger());
        let holder = scene.one(&hold).under(&name).in_mode(Mode::Fair);
        holder.enters().await;
        scene.two(&next).under(&name).in_mode(Mode::Fair).queues_for(scene.brief()).await;
        holder.releases().await;
        ended.push((name, Mode::Fair));
    }
    fixture.pass(2 * scene.brief() + Duration::from_millis(5)).await;
    let reported = names(&scene.two).await;
    for (name, mode) in ended {
        assert!(!reported.contains(&name), "the lease of {name} has ended: {mode}");
    }
}

/// C41: similar names are told apart, and reported exactly.
pub async fn names_that_look_alike_are_reported_as_they_are<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let (even, odd): (Vec<_>, Vec<_>) =
        look_alikes().into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
    for (held, free) in [(&even, &odd), (&odd, &even)] {
        for (_, name) in held {
            scene.one(&hold).under(name).enters().await;
        }
        let reported = names(&scene.two).await;
        for (_, name) in held {
            assert!(reported.contains(name), "{name:?} is missing");
        }
        for (_, name) in free {
            assert!(!reported.contains(name), "{name:?} is free");
        }
        for (_, name) in held {
            scene.one(&hold).under(name).releases().await;
        }
    }
}

/// Acquires `count` names with long leases, many at a time.
async fn hold_many<B: Backend>(scene: &Scene<B>, count: usize, hold: &HoldId) -> Vec<LockName> {
    let all: Vec<_> = (0..count).map(|_| unique_name("")).collect();
    for some in all.chunks(AT_ONCE) {
        for_each(some, async |name| _ = scene.one(hold).under(name).enters().await).await;
    }
    all
}

async fn release_many<B: Backend>(scene: &Scene<B>, all: &[LockName], hold: &HoldId) {
    for some in all.chunks(AT_ONCE) {
        for_each(some, async |name| scene.one(hold).under(name).releases().await).await;
    }
}

/// Calls `each` for all names at once.
async fn for_each(names: &[LockName], each: impl AsyncFn(&LockName)) {
    let mut under_way: Vec<_> = names.iter().map(|name| Box::pin(each(name))).collect();
    poll_fn(|context| {
        under_way.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// C41: a walk over many names reports each of them.
pub async fn a_walk_over_many_names_reports_each<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let all = hold_many(&scene, MANY, &hold).await;
    let reported = names(&scene.two).await;
    let missing = all.iter().filter(|name| !reported.contains(*name)).count();
    assert_eq!(missing, 0, "of {MANY} names");
    release_many(&scene, &all, &hold).await;
}

/// C41: a walk reports every name that stays in use while others come and go.
pub async fn a_walk_reports_what_stays_while_others_come_and_go<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let before = hold_many(&scene, MANY / 4, &hold).await;
    let (going, staying) = before.split_at(MANY / 8);
    let gone = AtomicUsize::new(0);
    let reported = names_while(&scene.two, async || {
        let from = gone.fetch_add(10, Ordering::Relaxed);
        // More names are freed than taken, so that the remaining ones move up.
        for name in going.iter().skip(from).take(10) {
            scene.one(&hold).under(name).releases().await;
        }
        scene.one(&hold).under(&unique_name("")).enters().await;
    })
    .await;
    let missing: HashSet<_> = staying.iter().filter(|name| !reported.contains(*name)).collect();
    assert!(missing.is_empty(), "these were in use all the time: {missing:?}");
    release_many(&scene, staying, &hold).await;
}

/// C41: a cursor that the store did not issue is refused, for names and for clients.
pub async fn a_cursor_of_another_store_is_refused<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    for start in cursors_of_nobody() {
        is_refused(soon(directory(&scene.one).names(&start)).await);
        is_refused(soon(directory(&scene.one).clients(&start)).await);
    }
}

/// C42: locks can be acquired and released during a walk over many names.
pub async fn a_walk_does_not_hold_up_others<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    let all = hold_many(&scene, MANY / 2, &holds[0]).await;
    let walking = names(&scene.two);
    let working = async {
        for _ in 0..20 {
            scene.one(&holds[1]).enters().await;
            scene.one(&holds[1]).releases().await;
        }
    };
    tokio::join!(walking, working);
    release_many(&scene, &all, &holds[0]).await;
}

/// C17: a dropped step of a walk changes nothing, and the next steps report everything.
pub async fn a_dropped_step_of_a_walk_changes_nothing<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    scene.one(&hold).enters().await;
    let two = directory(&scene.two);
    for polls in 0..POLLS {
        let ended = poll_times(polls, two.names(&Start::Beginning)).await;
        soon(two.names(&Start::Beginning)).await.expect("the first step of a walk failed");
        if ended.is_some() {
            break;
        }
    }
    for polls in 0..POLLS {
        let ended = poll_times(polls, two.clients(&Start::Beginning)).await;
        soon(two.clients(&Start::Beginning)).await.expect("the first step of a walk failed");
        if ended.is_some() {
            break;
        }
    }
    assert!(names(&scene.two).await.contains(&scene.name));
    assert_eq!(scene.one(&hold).holds().await.0, 1);
}

/// What the store has of a name, or [`None`] if the backend cannot tell.
async fn stored<B: Backend>(
    client: &B,
    name: &LockName,
    conditions: &[LockName],
) -> Option<Vec<StoredEntry>> {
    match soon(directory(client).storage(name, conditions)).await {
        Ok(entries) => Some(entries),
        Err(error) => {
            assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error}");
            None
        }
    }
}

/// C45: something is reported of a held or resized name, nothing of one that was never used, and
/// inspection changes nothing.
pub async fn what_is_stored_of_a_name_is_told<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let (held, set) = (held_names(&scene).await, set_names(&scene).await);
    let unused = unique_name("");
    for client in [&scene.one, &scene.two] {
        for name in held.iter().map(|(name, ..)| name).chain(&set) {
            let entries = stored(client, name, &[]).await;
            let is_empty = entries.is_some_and(|entries| entries.is_empty());
            assert!(!is_empty, "nothing is stored of {name}, which is in use");
        }
        let entries = stored(client, &unused, &[]).await.unwrap_or_default();
        assert!(entries.is_empty(), "{unused} was never used: {entries:?}");
    }
    for (name, mode, hold) in held {
        scene.two(&hold).under(&name).in_mode(mode).releases().await;
    }
}

/// C45: the number of waiters of a condition is reported on request.
pub async fn how_many_wait_for_a_condition_is_told<F: Fixture>(fixture: &F) {
    if fixture.client().await.conditions().is_none() {
        return;
    }
    let condition = Condition::of(fixture).await;
    let [first, second, _] = waiters();
    condition.one(&first).joins().await;
    condition.two(&second).joins().await;
    let (lock, name) = (condition.id.lock.clone(), condition.id.name.clone());
    for client in [&condition.scene.one, &condition.scene.two] {
        let asked = [name.clone(), unique_name(":other")];
        let Some(entries) = stored(client, &lock, &asked).await else { return };
        let of_conditions = entries.into_iter().filter(|entry| {
            matches!(entry.kind, StoredKind::Condition(_)) && entry.number.is_some()
        });
        let told: Vec<_> = of_conditions.map(|entry| (entry.kind, entry.number)).collect();
        assert_eq!(told, [(StoredKind::Condition(name.clone()), Some(2))]);
    }
    condition.two(&first).is_in().await;
}
