//! C22: readers share, writers exclude; and the clauses about holds, for each kind of hold.

use lockcore::Mode;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, force, named, nothing_is_left, soon, state, stranger},
        wakeups::drain,
    },
    poll_times,
};

/// C22: any number of readers hold the lock together, at all clients.
pub async fn readers_are_in_together<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), named("job-17")];
    let readers =
        [scene.one(&holds[0]), scene.two(&holds[1]), scene.one(&holds[2]), scene.two(&holds[3])];
    for reader in readers {
        reader.enters().await;
    }
    for reader in readers {
        assert_eq!(reader.is_in().await, 1);
    }
}

/// C22: a writer excludes readers and other writers, and they are told for how long.
pub async fn a_writer_is_in_alone<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), named("job-17")];
    let writer = scene.one(&holds[0]).writing();
    writer.enters().await;
    for other in [scene.two(&holds[1]), scene.one(&holds[1]), scene.two(&holds[2])] {
        for refused in [other.is_refused().await, other.writing().is_refused().await] {
            assert!(refused > LASTING / 2 && refused <= LASTING, "{refused:?} of {LASTING:?}");
        }
    }
    assert_eq!(writer.holds().await.0, 1);
    writer.releases().await;
    scene.two(&holds[1]).enters().await;
}

/// C22: readers keep a writer out until the last of them has left, and its refusals do not affect
/// them.
pub async fn a_writer_comes_after_the_last_reader<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (readers, writer) =
        ([scene.one(&holds[0]), scene.two(&holds[1])], scene.one(&holds[2]).writing());
    for reader in readers {
        reader.enters_for(LASTING / 10).await;
    }
    for reader in readers {
        writer.is_refused().await;
        writer.cannot_renew().await;
        writer.cannot_release().await;
        assert_eq!(reader.is_in().await, 1);
        let remaining = state(&scene.two, &scene.name).await.remaining();
        assert!(remaining <= Some(LASTING / 10), "a refusal extended a lease to {remaining:?}");
        reader.releases().await;
    }
    writer.enters().await;
    writer.holds().await;
    readers[0].is_refused().await;
}

/// C10 and C22: a reader releases only its own hold, and only once.
pub async fn a_reader_releases_its_own_hold_only<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (readers, writer) =
        ([scene.one(&holds[0]), scene.two(&holds[1])], scene.one(&holds[3]).writing());
    for reader in readers {
        reader.enters().await;
    }
    scene.one(&holds[2]).cannot_release().await;
    readers[0].releases().await;
    readers[0].cannot_release().await;
    readers[0].cannot_release().await;
    readers[1].is_in().await;
    readers[0].holds_nothing().await;
    writer.is_refused().await;
    writer.cannot_release().await;
    readers[1].releases().await;
    writer.enters().await;
}

/// C8 and C22: a reader renews only its own hold, and only while it exists.
pub async fn a_reader_renews_its_own_hold_only<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let readers = [scene.one(&holds[0]), scene.two(&holds[1])];
    for reader in readers {
        reader.enters_for(LASTING / 10).await;
    }
    readers[0].releases().await;
    readers[0].cannot_renew().await;
    scene.one(&holds[2]).cannot_renew().await;
    let remaining = readers[1].holds().await.1;
    assert!(
        remaining <= LASTING / 10,
        "the renewal of another extended the lease to {remaining:?}"
    );
    readers[1].renews(LASTING).await;
    assert!(readers[1].holds().await.1 > LASTING / 2);
}

/// C5 and C22: an acquire of a reader or writer that arrives twice is one hold, which one release
/// ends.
pub async fn a_reader_or_writer_that_arrives_twice_is_one_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    for mode in [Mode::Read, Mode::Write] {
        for hold in [stranger(), named("job-17")] {
            let (holder, next) = (scene.one(&hold).in_mode(mode), stranger());
            let token = holder.enters().await;
            assert_eq!(
                holder.at(&scene.two).enters().await,
                token,
                "{mode}: the repetition is the same hold"
            );
            assert_eq!(holder.holds().await.0, 1, "{mode}: the repetition was counted");
            holder.releases().await;
            scene.two(&next).writing().enters().await;
            scene.two(&next).writing().releases().await;
        }
    }
}

/// C11 and C5: a hold grows, shrinks and ends independently of other readers.
pub async fn a_reader_nests_by_itself<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (nested, other) = (scene.one(&holds[0]), scene.two(&holds[1]));
    let token = nested.enters().await;
    other.enters().await;
    assert_eq!(nested.grows_to(3, LASTING).await, token);
    assert_eq!((nested.is_in().await, other.is_in().await), (3, 1));
    nested.lowers_to(2).await;
    nested.lowers_to(2).await;
    assert_eq!((nested.is_in().await, other.is_in().await), (2, 1));
    nested.releases().await;
    nested.holds_nothing().await;
    assert_eq!(other.is_in().await, 1);
    other.releases().await;
    scene.one(&holds[2]).writing().enters().await;
}

/// C7: a reader or writer that is gone cannot grow, whether the lock is free or held by readers or
/// by writers.
pub async fn a_reader_or_writer_that_is_gone_cannot_grow<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    for mode in [Mode::Read, Mode::Write] {
        let holds = [stranger(), stranger()];
        let gone = scene.one(&holds[0]).in_mode(mode);
        gone.cannot_grow().await;
        gone.enters().await;
        gone.releases().await;
        gone.cannot_grow().await;
        for other in [scene.two(&holds[1]), scene.two(&holds[1]).writing()] {
            other.enters().await;
            let outcome = gone.asks_for_count(2, LASTING).await;
            let has_grown = outcome.token().is_some();
            assert!(!has_grown, "{mode}: a hold that was gone has grown");
            assert_eq!(other.holds().await.0, 1);
            other.releases().await;
        }
    }
}

/// C9: neither a renewal nor a repetition nor growth shortens the lease of a reader.
pub async fn nothing_shortens_the_lease_of_a_reader<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    for mode in [Mode::Read, Mode::Write] {
        let (hold, less) = (stranger(), LASTING / 10);
        let holder = scene.one(&hold).in_mode(mode);
        holder.enters().await;
        holder.renews(less).await;
        assert!(
            holder.holds().await.1 > LASTING / 2,
            "{mode}: the renewal has shortened the lease"
        );
        holder.enters_for(less).await;
        assert!(
            holder.holds().await.1 > LASTING / 2,
            "{mode}: the repetition has shortened the lease"
        );
        holder.grows_to(2, less).await;
        assert!(holder.holds().await.1 > LASTING / 2, "{mode}: the growth has shortened the lease");
        holder.releases().await;
    }
}

/// C6: the next hold of a named reader replaces its older one, and no other.
pub async fn a_named_reader_takes_over_its_own_hold_only<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [named("job-17"), named("job-17"), named("job-18"), stranger(), stranger()];
    let (older, newer) = (scene.one(&holds[0]), scene.two(&holds[1]));
    let others = [scene.one(&holds[2]), scene.two(&holds[3])];
    let before = older.enters().await;
    older.grows_to(3, LASTING).await;
    for other in others {
        other.enters().await;
    }
    assert!(newer.enters().await > before, "the takeover has no greater token");
    assert_eq!(newer.is_in().await, 1, "a takeover is a new hold");
    assert_eq!(state(&scene.one, &scene.name).await.holders().len(), 3);
    older.cannot_renew().await;
    older.cannot_release().await;
    newer.releases().await;
    for other in others {
        other.is_in().await;
        other.releases().await;
    }
    scene.one(&holds[4]).writing().enters().await;
}

/// C6: the next hold of a named writer replaces its older one.
pub async fn a_named_writer_takes_over_its_own_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [named("job-17"), named("job-17"), named("job-18")];
    let (older, newer) = (scene.one(&holds[0]).writing(), scene.two(&holds[1]).writing());
    let before = older.enters().await;
    assert!(newer.enters().await > before, "the takeover has no greater token");
    older.cannot_renew().await;
    older.cannot_release().await;
    older.cannot_grow().await;
    scene.one(&holds[2]).writing().is_refused().await;
    scene.one(&holds[2]).is_refused().await;
    newer.releases().await;
    scene.one(&holds[2]).enters().await;
}

/// C4: tokens rise from grant to grant, across read, write and exclusive holds of one name.
pub async fn tokens_rise_across_modes<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let mut tokens = Vec::new();
    for round in 0..3 {
        let holds = [stranger(), stranger(), stranger()];
        let readers = [scene.one(&holds[0]), scene.two(&holds[1])];
        for reader in readers {
            tokens.push(reader.enters().await);
        }
        for reader in readers {
            reader.releases().await;
        }
        let mode = [Mode::Write, Mode::Exclusive][round % 2];
        let alone = scene.two(&holds[2]).in_mode(mode);
        tokens.push(alone.enters().await);
        alone.releases().await;
    }
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens do not rise: {tokens:?}");
}

/// C12: the release of the last reader wakes a writer at another client.
pub async fn the_release_of_the_last_reader_wakes<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let readers = [scene.one(&holds[0]), scene.one(&holds[1])];
    for reader in readers {
        reader.enters().await;
    }
    let mut wakeups = scene.two(&holds[2]).writing().subscribes().await;
    readers[0].releases().await;
    drain(fixture, &mut wakeups).await;
    readers[1].releases().await;
    soon(wakeups.woken()).await;
}

/// C12: the release of a writer wakes all waiting readers, and a forced release wakes all waiters.
pub async fn the_release_of_a_writer_wakes_every_reader<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.one(&holds[0]).writing();
    writer.enters().await;
    let mut wakeups =
        [scene.one(&holds[1]).subscribes().await, scene.two(&holds[2]).subscribes().await];
    writer.releases().await;
    for wakeups in &mut wakeups {
        soon(wakeups.woken()).await;
        drain(fixture, wakeups).await;
    }
    writer.enters().await;
    assert!(force(&scene.two, &scene.name).await);
    for wakeups in &mut wakeups {
        soon(wakeups.woken()).await;
    }
}

/// C13: a forced release ends the holds of all readers, of writers, and of readers within write
/// holds.
pub async fn a_forced_release_ends_all_holds<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (writer, within) = (scene.one(&holds[0]).writing(), scene.one(&holds[1]));
    let readers = [scene.one(&holds[1]), scene.two(&holds[2])];
    for holders in [[writer, within.within(&holds[0])], readers] {
        for holder in holders {
            holder.enters().await;
        }
        assert!(force(&scene.two, &scene.name).await, "the lock was held");
        assert!(!force(&scene.one, &scene.name).await, "the lock was free");
        for holder in holders {
            holder.cannot_renew().await;
            holder.cannot_release().await;
        }
        assert!(!state(&scene.one, &scene.name).await.is_held());
    }
    writer.enters().await;
}

/// C14: readers and writers are reported as such, each with its count, and with the longest lease.
pub async fn readers_and_writers_are_reported<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), named("job-17")];
    let readers = [scene.one(&holds[0]), scene.two(&holds[1])];
    readers[0].enters_for(LASTING / 10).await;
    readers[1].enters().await;
    readers[1].grows_to(4, LASTING).await;
    for client in [&scene.one, &scene.two] {
        let state = state(client, &scene.name).await;
        assert_eq!(state.holders().len(), 2, "{state:?}");
        assert!(state.holders().iter().all(|holder| holder.mode() == Mode::Read), "{state:?}");
        assert!(
            state.remaining() > Some(LASTING / 2) && state.remaining() <= Some(LASTING),
            "{state:?}"
        );
        assert_eq!((readers[0].is_in().await, readers[1].is_in().await), (1, 4));
    }
    for reader in readers {
        reader.releases().await;
    }
    let writer = scene.one(&holds[1]).writing();
    writer.enters().await;
    writer.holds().await;
    assert_eq!(state(&scene.two, &scene.name).await.holders()[0].mode(), Mode::Write);
}

/// C15: nothing is left of readers and writers that were released, forced out, or ended with their
/// leases.
pub async fn nothing_is_left_of_readers_and_writers<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease() / 5);
    for holders in
        [[scene.one(&holds[0]), scene.two(&holds[1])], [scene.one(&holds[2]).writing(); 2]]
    {
        for holder in holders {
            holder.enters().await;
            holder.grows_to(2, LASTING).await;
        }
        holders[0].releases().await;
        holders[1].asks_to_release(0).await;
        nothing_is_left(fixture, &scene.name).await;
        holders[0].enters().await;
        force(&scene.one, &scene.name).await;
        nothing_is_left(fixture, &scene.name).await;
        for holder in holders {
            holder.enters_for(time).await;
        }
        fixture.pass(time * 2).await;
        nothing_is_left(fixture, &scene.name).await;
    }
}

/// C17: a read or write request that is dropped at any await can be undone.
pub async fn a_dropped_read_or_write_can_be_undone<F: Fixture>(fixture: &F) {
    for (polls, mode) in
        (0..64).flat_map(|polls| [Mode::Read, Mode::Write].map(|mode| (polls, mode)))
    {
        let scene = Scene::read_write(fixture).await;
        let holds = [stranger(), stranger()];
        let (dropped, next) = (scene.one(&holds[0]).in_mode(mode), scene.two(&holds[1]).writing());
        let request = dropped.acquire_request(LASTING).queue(Some(LASTING));
        let answer =
            poll_times(polls, lockcore::backend::Backend::acquire(&scene.one, &request)).await;
        dropped.asks_to_release(0).await;
        fixture.pass(fixture.short_lease() / 50).await;
        next.enters().await;
        next.releases().await;
        nothing_is_left(fixture, &scene.name).await;
        if answer.is_some() && mode == Mode::Write {
            return;
        }
    }
}
