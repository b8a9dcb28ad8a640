//! C26, C27 and C28: permits, whose number is limited. Cases that apply to both kinds of permits
//! test both.

use std::{sync::Arc, time::Duration};

use lockcore::{
    Mode,
    backend::{AcquireOutcome, Backend},
};
use tokio::task::JoinSet;

use crate::{
    Fixture,
    conformance::scene::{
        LASTING, Rival, Scene, force, named, nothing_is_left, soon, state, stranger,
    },
    poll_times,
};

/// One of `limit` permits, in both kinds.
fn kinds(limit: u32) -> [Mode; 2] {
    [Mode::permits(1, limit), Mode::plain_permits(1, limit)]
}

/// The number of available permits.
async fn available<B: Backend>(scene: &Scene<B>) -> Option<u32> {
    state(&scene.two, &scene.name).await.available()
}

/// Shows that the request is for too many permits, and that the answer has their number, if the
/// store must know it.
async fn is_too_many(contender: Rival<'_>, limit: u32) {
    let is_plain = matches!(contender.mode(), Mode::Permit { plain: true, .. });
    match contender.asks().await {
        AcquireOutcome::TooMany { limit: told } => assert_eq!(told, limit),
        AcquireOutcome::Held { .. } if is_plain => {}
        other => panic!("there are {limit} permits, and the answer for more is {other:?}"),
    }
}

/// C26: all permits can be held at the same time, and no more, over all clients.
pub async fn no_more_permits_are_held_than_there_are<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger(), stranger()];
        scene.one(&holds[0]).taking(2).enters().await;
        scene.two(&holds[1]).enters().await;
        for refused in [scene.one(&holds[2]), scene.two(&holds[2]), scene.two(&holds[2]).taking(2)]
        {
            refused.is_refused().await;
            refused.cannot_renew().await;
        }
        assert_eq!(state(&scene.one, &scene.name).await.holders().len(), 2);
        scene.two(&holds[1]).releases().await;
        scene.one(&holds[2]).enters().await;
        scene.two(&holds[1]).is_refused().await;
    }
}

/// C26: as many simultaneous requests are granted as there are permits.
pub async fn of_simultaneous_requests_as_many_are_granted_as_there_are_permits<F: Fixture>(
    fixture: &F,
) {
    for mode in kinds(5) {
        let scene = Scene::in_mode(fixture, mode).await;
        let name = scene.name.clone();
        let clients = [Arc::new(scene.one), Arc::new(scene.two)];
        let mut requests = JoinSet::new();
        for client in clients.iter().cycle().take(16) {
            let request = lockcore::backend::AcquireRequest::new(name.clone(), stranger(), LASTING)
                .mode(mode);
            let client = client.clone();
            requests.spawn(async move { client.acquire(&request).await.expect("acquire failed") });
        }
        let outcomes = soon(requests.join_all()).await;
        let granted = outcomes.iter().filter(|outcome| outcome.token().is_some());
        assert_eq!(granted.count(), 5, "{outcomes:?}");
    }
}

/// C26: an acquire gets all the permits that it asks for, or none.
pub async fn permits_come_together_or_not_at_all<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger(), stranger()];
        scene.one(&holds[0]).taking(2).enters().await;
        scene.two(&holds[1]).taking(2).is_refused().await;
        assert_eq!(available(&scene).await, Some(1), "a refused request has taken permits");
        scene.two(&holds[2]).enters().await;
        scene.one(&holds[0]).releases().await;
        scene.two(&holds[1]).taking(2).enters().await;
        assert_eq!(available(&scene).await, Some(0));
    }
}

/// C26: the request that finds the name free sets the number of permits, and no other does while
/// any are held.
pub async fn the_first_says_how_many_permits_there_are<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, 2).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let more = Mode::permits(1, 10);
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).in_mode(more).enters().await;
    scene.two(&holds[2]).in_mode(more).is_refused().await;
    scene.one(&holds[0]).releases().await;
    scene.one(&holds[2]).in_mode(more).enters().await;
    scene.two(&holds[3]).in_mode(more).is_refused().await;
}

/// C26: each acquisition of an owner takes its own permits: it neither repeats nor replaces
/// another.
pub async fn an_owner_can_hold_permits_several_times<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [named("job-17"), named("job-17"), named("job-17")];
        let first = scene.one(&holds[0]).taking(2).enters().await;
        assert!(scene.two(&holds[1]).enters().await > first, "tokens do not rise");
        scene.one(&holds[2]).is_refused().await;
        scene.one(&holds[0]).renews(LASTING).await;
        scene.one(&holds[0]).releases().await;
        scene.one(&holds[0]).cannot_release().await;
        scene.two(&holds[1]).renews(LASTING).await;
        assert_eq!(available(&scene).await, Some(2));
    }
}

/// C5 and C26: an acquire that arrives twice takes its permits once, and a release that arrives
/// twice returns them once.
pub async fn permits_are_taken_and_given_back_once<F: Fixture>(fixture: &F) {
    for mode in kinds(5) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger()];
        let holder = scene.one(&holds[0]).taking(2);
        let token = holder.enters().await;
        assert_eq!(holder.at(&scene.two).enters().await, token, "the repetition is the same hold");
        assert_eq!(available(&scene).await, Some(3), "the repetition has taken permits");
        scene.two(&holds[1]).taking(2).enters().await;
        holder.releases().await;
        holder.cannot_release().await;
        holder.at(&scene.two).cannot_release().await;
        assert_eq!(available(&scene).await, Some(3), "the repetition has given back permits");
    }
}

/// C5 and C26: an acquire that arrives twice gets the same answer, even if no permits are left.
pub async fn an_acquire_of_the_last_permits_can_be_repeated<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger()];
        let holder = scene.one(&holds[0]).taking(3);
        let token = holder.enters().await;
        assert_eq!(holder.enters().await, token);
        scene.two(&holds[1]).is_refused().await;
        holder.releases().await;
        scene.two(&holds[1]).taking(3).enters().await;
    }
}

/// C27: each hold of permits is renewed and released independently.
pub async fn permits_are_renewed_and_released_by_their_holder_only<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let (holds, less) = ([stranger(), stranger(), stranger(), stranger()], LASTING / 10);
        let holders = [scene.one(&holds[0]).taking(2), scene.two(&holds[1])];
        for holder in holders {
            holder.enters_for(less).await;
        }
        let other = scene.one(&holds[2]);
        other.cannot_renew().await;
        other.cannot_release().await;
        holders[1].releases().await;
        holders[1].cannot_renew().await;
        assert!(
            state(&scene.one, &scene.name).await.remaining() <= Some(less),
            "somebody else's was renewed"
        );
        holders[0].renews(LASTING).await;
        assert!(state(&scene.one, &scene.name).await.remaining() > Some(LASTING / 2));
        holders[0].renews(less).await;
        assert!(
            state(&scene.one, &scene.name).await.remaining() > Some(LASTING / 2),
            "it was shortened"
        );
        assert_eq!(available(&scene).await, Some(1));
    }
}

/// C27: permits become available when their lease has ended; those of other holds do not.
pub async fn permits_come_back_with_the_end_of_their_lease<F: Fixture>(fixture: &F) {
    for mode in kinds(4) {
        let scene = Scene::in_mode(fixture, mode).await;
        let (holds, time) =
            ([stranger(), stranger(), stranger(), stranger()], fixture.short_lease());
        let (short, renewed) = (scene.one(&holds[0]).taking(2), scene.two(&holds[2]));
        scene.two(&holds[1]).enters().await;
        short.enters_for(time).await;
        renewed.enters_for(time).await;
        renewed.renews(LASTING).await;
        scene.two(&holds[3]).is_refused().await;
        fixture.pass(time + Duration::from_millis(5)).await;
        short.cannot_renew().await;
        short.cannot_release().await;
        assert_eq!(available(&scene).await, Some(2), "two permits have come back");
        scene.two(&holds[3]).taking(3).is_refused().await;
        scene.two(&holds[3]).taking(2).enters().await;
        short.taking(1).is_refused().await;
        renewed.renews(LASTING).await;
    }
}

/// C27: a refused acquire is told when the next lease ends, whatever the order of the grants.
pub async fn a_refusal_tells_when_the_next_permits_come_back<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger(), stranger(), stranger()];
        let (leases, other) = ([LASTING, LASTING / 100, LASTING / 10], scene.two(&holds[3]));
        for (hold, lease) in holds.iter().zip(leases) {
            scene.one(hold).enters_for(lease).await;
        }
        let told = other.is_refused().await;
        assert!(
            told > LASTING / 200 && told <= LASTING / 100,
            "{told:?}, a hundredth of {LASTING:?}"
        );
        scene.two(&holds[1]).renews(LASTING).await;
        let told = other.is_refused().await;
        assert!(told > LASTING / 20 && told <= LASTING / 10, "{told:?}, a tenth of {LASTING:?}");
    }
}

/// C28: a request for more permits than there are says so, whether they are free or held, and takes
/// none.
pub async fn more_permits_than_there_are_is_answered_so<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger()];
        is_too_many(scene.one(&holds[0]).taking(4), 3).await;
        scene.one(&holds[0]).enters().await;
        is_too_many(scene.two(&holds[1]).taking(4), 3).await;
        scene.two(&holds[1]).taking(2).enters().await;
        is_too_many(scene.one(&stranger()).taking(4), 3).await;
    }
}

/// C28: a request for all permits is not too many.
pub async fn all_permits_can_be_had_together<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger()];
        scene.one(&holds[0]).enters().await;
        scene.two(&holds[1]).taking(3).is_refused().await;
        scene.one(&holds[0]).releases().await;
        scene.two(&holds[1]).taking(3).enters().await;
        scene.one(&holds[0]).is_refused().await;
    }
}

/// C28: the limit is the number that the first request set, not the one in a request for too many.
pub async fn too_many_is_measured_by_what_there_is<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, 2).await;
    let holds = [stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    is_too_many(scene.two(&holds[1]).in_mode(Mode::permits(3, 10)), 2).await;
    assert_eq!(available(&scene).await, Some(1));
}

/// C12: each release of permits wakes the waiters, at all clients, and so does a forced one.
pub async fn every_release_of_permits_wakes<F: Fixture>(fixture: &F) {
    for mode in kinds(2) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger(), stranger(), stranger()];
        let holders = [scene.one(&holds[0]), scene.two(&holds[1])];
        let mut wakeups =
            [scene.one(&holds[2]).subscribes().await, scene.two(&holds[3]).subscribes().await];
        for round in 0..3 {
            for holder in holders {
                holder.enters().await;
            }
            for wakeups in &mut wakeups {
                super::wakeups::drain(fixture, wakeups).await;
            }
            match round {
                0 => holders[0].releases().await,
                1 => holders[1].releases().await,
                _ => assert!(force(&scene.one, &scene.name).await),
            }
            for wakeups in &mut wakeups {
                soon(wakeups.woken()).await;
            }
        }
    }
}

/// C13: a forced release returns all permits.
pub async fn a_forced_release_gives_back_all_permits<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), stranger(), stranger()];
        let holders = [scene.one(&holds[0]).taking(2), scene.two(&holds[1])];
        for holder in holders {
            holder.enters().await;
        }
        assert!(force(&scene.two, &scene.name).await, "permits were held");
        assert!(!force(&scene.two, &scene.name).await, "no permits were held");
        for holder in holders {
            holder.cannot_renew().await;
            holder.cannot_release().await;
        }
        scene.two(&holds[2]).taking(3).enters().await;
    }
}

/// C14: holders of permits are reported, with the available and the total number.
pub async fn permits_are_reported<F: Fixture>(fixture: &F) {
    for mode in kinds(5) {
        let scene = Scene::in_mode(fixture, mode).await;
        let holds = [stranger(), named("job-17")];
        scene.one(&holds[0]).taking(2).enters_for(LASTING / 10).await;
        scene.two(&holds[1]).enters().await;
        for client in [&scene.one, &scene.two] {
            let state = state(client, &scene.name).await;
            let taken_by = |hold: &lockcore::backend::HoldId| {
                state
                    .holders()
                    .iter()
                    .find(|holder| holder.owner() == hold.owner())
                    .map(|holder| holder.mode())
            };
            assert!(
                matches!(taken_by(&holds[0]), Some(Mode::Permit { count: 2, .. })),
                "{state:?}"
            );
            assert!(
                matches!(taken_by(&holds[1]), Some(Mode::Permit { count: 1, .. })),
                "{state:?}"
            );
            assert_eq!(state.available(), Some(2), "{state:?}");
            assert!(state.limit() == Some(5) || mode == kinds(5)[1], "{state:?}");
            assert!(state.remaining() > Some(LASTING / 2), "{state:?}");
        }
    }
}

/// C15: nothing is left of permits that were released, forced, or ended with their leases.
pub async fn nothing_is_left_of_permits<F: Fixture>(fixture: &F) {
    let scene = Scene::semaphore(fixture, 3).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease() / 5);
    let holders = [scene.one(&holds[0]).taking(2), scene.two(&holds[1])];
    for holder in holders {
        holder.enters().await;
    }
    scene.two(&holds[2]).is_refused().await;
    for holder in holders {
        holder.releases().await;
    }
    nothing_is_left(fixture, &scene.name).await;
    holders[0].enters().await;
    assert!(force(&scene.two, &scene.name).await);
    nothing_is_left(fixture, &scene.name).await;
    is_too_many(holders[0].taking(4), 3).await;
    for holder in holders {
        holder.enters_for(time).await;
    }
    fixture.pass(time * 2).await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C17: a request for permits that is dropped at any await can be undone.
pub async fn dropped_permits_can_be_undone<F: Fixture>(fixture: &F) {
    for mode in kinds(3) {
        for polls in 0..64 {
            let scene = Scene::in_mode(fixture, mode).await;
            let holds = [stranger(), stranger()];
            let dropped = scene.one(&holds[0]).taking(2);
            let request = dropped.acquire_request(LASTING);
            let answer = poll_times(polls, scene.one.acquire(&request)).await;
            dropped.asks_to_release(0).await;
            fixture.pass(fixture.short_lease() / 50).await;
            scene.two(&holds[1]).taking(3).enters().await;
            scene.two(&holds[1]).releases().await;
            if answer.is_some() {
                break;
            }
        }
    }
}
