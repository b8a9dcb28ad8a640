//! C21: a name is in use as one kind at a time. The cases cover the kinds that the backend
//! declares.

use lockcore::{
    BackendErrorKind, Mode,
    backend::{Backend, ResizeRequest},
};

use crate::{
    Fixture,
    conformance::scene::{
        LASTING, Rival, Scene, force, nothing_is_left, soon, state, stranger, unique_name,
    },
};

/// The modes of `backend`, by kind.
fn kinds(backend: &impl Backend) -> Vec<Vec<Mode>> {
    let all = [
        vec![Mode::Exclusive, Mode::Fair],
        vec![Mode::Read, Mode::Write],
        vec![Mode::permits(1, 1)],
        vec![Mode::plain_permits(1, 1)],
    ];
    let declared = |mode: &Mode| backend.capabilities().supports(*mode);
    let kinds = all.map(|kind| kind.into_iter().filter(declared).collect::<Vec<_>>());
    kinds.into_iter().filter(|kind| !kind.is_empty()).collect()
}

/// Each mode, with all modes of other kinds.
fn modes_and_others(backend: &impl Backend) -> Vec<(Mode, Vec<Mode>)> {
    let kinds = kinds(backend);
    assert!(kinds.len() > 1, "the case is for backends with more than one kind of lock");
    let others =
        |kind: &Vec<Mode>| kinds.iter().filter(|other| *other != kind).flatten().copied().collect();
    kinds
        .iter()
        .flat_map(|kind| kind.iter().map(|mode| (*mode, others(kind))).collect::<Vec<_>>())
        .collect()
}

/// Returns `true` for permits: a store may remember their number for a while after the last
/// release.
fn is_permit(mode: Mode) -> bool {
    matches!(mode, Mode::Permit { .. })
}

/// C21: while a name is in use as one kind, every client refuses requests for it as another kind.
pub async fn a_name_in_use_as_one_kind_is_refused_as_another<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for (mode, others) in modes_and_others(&scene.one) {
        let name = unique_name("");
        let holder = scene.one(&holds[0]).under(&name).in_mode(mode);
        holder.enters().await;
        for other in others {
            let contender = scene.two(&holds[1]).under(&name).in_mode(other);
            contender.is_of_another_kind().await;
            contender.at(&scene.one).is_of_another_kind().await;
        }
        holder.releases().await;
    }
}

/// C21: a request that was refused for its kind has no effect, then or later.
pub async fn a_request_as_another_kind_has_no_effect<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for (mode, others) in modes_and_others(&scene.one) {
        let name = unique_name("");
        let holder = scene.one(&holds[0]).under(&name).in_mode(mode);
        let token = holder.enters_for(LASTING / 10).await;
        for other in others {
            let contender = scene.two(&holds[1]).under(&name).in_mode(other);
            contender.is_of_another_kind().await;
            contender.holds_nothing().await;
            let (count, remaining) = holder.holds().await;
            assert!(
                count == 1 && remaining <= LASTING / 10,
                "{mode} as {other}: {count}, {remaining:?}"
            );
        }
        assert_eq!(holder.enters_for(LASTING / 10).await, token, "{mode}: the hold has changed");
        holder.releases().await;
        assert!(
            !state(&scene.two, &name).await.is_held(),
            "{mode}: the refused request was granted later"
        );
    }
}

/// C21: a name that is free again, by release or by force, can become any kind, unless it was a
/// semaphore.
pub async fn a_name_that_is_free_again_can_be_of_another_kind<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for (mode, others) in modes_and_others(&scene.one) {
        if is_permit(mode) {
            continue;
        }
        for other in others {
            let name = unique_name("");
            let first = scene.one(&holds[0]).under(&name).in_mode(mode);
            first.enters().await;
            first.releases().await;
            first.enters().await;
            assert!(force(&scene.one, &name).await, "{mode}: the lock was held");
            let second = scene.two(&holds[1]).under(&name).in_mode(other);
            second.enters().await;
            first.is_of_another_kind().await;
            second.releases().await;
        }
    }
}

/// C21: once the leases of one kind have ended, the name can become any kind, and the ended holds
/// cannot come back.
pub async fn a_name_whose_leases_have_ended_can_be_of_another_kind<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let (holds, names) = ([stranger(), stranger()], [(); 8].map(|()| unique_name("")));
    let first = |mode| -> Rival<'_> { scene.one(&holds[0]).in_mode(mode) };
    let modes: Vec<_> =
        modes_and_others(&scene.one).into_iter().filter(|(mode, _)| !is_permit(*mode)).collect();
    for ((mode, _), name) in modes.iter().zip(&names) {
        first(*mode).under(name).enters_for(fixture.short_lease() / 5).await;
    }
    fixture.pass(fixture.short_lease() / 4).await;
    for ((mode, others), name) in modes.iter().zip(&names) {
        let other = others[0];
        scene.two(&holds[1]).under(name).in_mode(other).enters().await;
        first(*mode).under(name).cannot_renew().await;
        scene.two(&holds[1]).under(name).in_mode(other).releases().await;
    }
}

/// C21: modes of the same kind refuse each other as held.
pub async fn modes_of_one_kind_refuse_each_other_as_held<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for kind in kinds(&scene.one) {
        for (mode, other) in kind.iter().zip(kind.iter().rev()) {
            let name = unique_name("");
            let first = scene.one(&holds[0]).under(&name).in_mode(*mode);
            let second = scene.two(&holds[1]).under(&name).in_mode(*other);
            first.enters().await;
            second.is_refused().await;
            first.releases().await;
        }
    }
}

/// C21: a resized semaphore stays a semaphore even while nobody holds permits, and a name held as
/// another kind cannot be resized.
pub async fn a_resized_semaphore_is_nothing_else<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, 1).await;
    let (hold, lock) = (stranger(), unique_name(":lock"));
    let holder = scene.one(&hold).under(&lock).in_mode(Mode::Exclusive);
    holder.enters().await;
    let error = soon(scene.two.resize(&ResizeRequest::new(lock.clone(), 2)))
        .await
        .expect_err("the name is in use as a lock");
    assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
    assert_eq!(holder.holds().await.0, 1);
    holder.releases().await;
    nothing_is_left(fixture, &lock).await;
    soon(scene.one.resize(&ResizeRequest::new(scene.name.clone(), 2)))
        .await
        .expect("resize failed");
    scene.two(&hold).in_mode(Mode::Exclusive).is_of_another_kind().await;
}

/// C21: a latch with a count is of no other kind, and a held lock cannot be given a count.
pub async fn a_latch_with_a_count_is_no_lock<F: Fixture>(fixture: &F) {
    let (scene, hold) = (Scene::of(fixture).await, stranger());
    let latches = scene.two.latches().expect("the backend has latches");
    for mode in kinds(&scene.one).into_iter().flatten() {
        let (name, contender) = (unique_name(""), scene.one(&hold).in_mode(mode));
        assert!(soon(latches.set_count(&name, 1, "set")).await.expect("set_count failed"));
        contender.under(&name).is_of_another_kind().await;
        assert_eq!(soon(latches.count_down(&name, "down")).await.expect("count_down failed"), 0);
        contender.under(&name).enters().await;
        let error = soon(latches.set_count(&name, 1, "again"))
            .await
            .expect_err("the name is in use as a lock");
        assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}");
        contender.under(&name).releases().await;
    }
}

/// C21 and C7: a request to grow a hold is also told that its name has become another kind.
pub async fn a_hold_cannot_grow_into_another_kind<F: Fixture>(fixture: &F) {
    let (scene, holds) = (Scene::of(fixture).await, [stranger(), stranger()]);
    for (mode, others) in modes_and_others(&scene.one) {
        if is_permit(mode) {
            continue;
        }
        for other in others {
            let name = unique_name("");
            let holder = scene.one(&holds[0]).under(&name).in_mode(other);
            holder.enters().await;
            let request =
                scene.two(&holds[1]).under(&name).in_mode(mode).acquire_request(LASTING).count(2);
            match soon(scene.two.acquire(&request)).await {
                Err(error) => assert_eq!(error.kind(), BackendErrorKind::WrongType, "{error}"),
                Ok(outcome) => panic!("{mode} of a name in use as {other}: {outcome:?}"),
            }
            assert_eq!(holder.holds().await.0, 1);
            holder.releases().await;
        }
    }
}
