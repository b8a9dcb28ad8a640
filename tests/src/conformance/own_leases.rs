//! C24: of several holds of one name, each ends with its own lease.

use std::time::Duration;

use lockcore::Mode;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Rival, Scene, named, soon, state, stranger},
        wakeups::drain,
    },
};

/// Lets the short leases expire.
async fn short_leases_end<F: Fixture>(fixture: &F) {
    fixture.pass(fixture.short_lease() + Duration::from_millis(5)).await;
}

/// Shows that the hold has ended with its lease.
async fn has_ended(holder: Rival<'_>) {
    holder.holds_nothing().await;
    holder.cannot_renew().await;
    holder.cannot_release().await;
}

/// C24: a reader ends with its own lease, and does not affect the other readers.
pub async fn a_reader_ends_with_its_own_lease<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (short, long) = (scene.one(&holds[1]), [scene.one(&holds[0]), scene.two(&holds[2])]);
    long[0].enters().await;
    short.enters_for(fixture.short_lease()).await;
    long[1].enters().await;
    assert_eq!(state(&scene.two, &scene.name).await.holders().len(), 3);
    short_leases_end(fixture).await;
    has_ended(short).await;
    for reader in long {
        assert_eq!(reader.is_in().await, 1);
        scene.two(&holds[3]).writing().is_refused().await;
        reader.releases().await;
    }
    scene.two(&holds[3]).writing().enters().await;
}

/// C24: the renewal, growth or repetition of one reader does not extend another.
pub async fn what_one_reader_does_does_not_keep_another<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger()], fixture.short_lease());
    let (short, busy) = (scene.one(&holds[0]), scene.two(&holds[1]));
    short.enters_for(time).await;
    busy.enters_for(time).await;
    busy.renews(LASTING).await;
    busy.grows_to(2, LASTING).await;
    busy.lowers_to(1).await;
    busy.enters().await;
    short_leases_end(fixture).await;
    has_ended(short).await;
    assert_eq!(busy.holds().await.0, 1);
}

/// C24: the end of a reader's lease does not end readers that came earlier or were renewed.
pub async fn a_renewed_reader_outlives_the_others<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    let (renewed, short) = (scene.one(&holds[0]), scene.two(&holds[1]));
    renewed.enters_for(time).await;
    short.enters_for(time).await;
    renewed.renews(LASTING).await;
    short_leases_end(fixture).await;
    has_ended(short).await;
    renewed.renews(LASTING).await;
    scene.two(&holds[2]).writing().is_refused().await;
}

/// C24: a writer enters when the leases of all readers have ended, and not before.
pub async fn a_writer_comes_in_when_the_last_lease_has_ended<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters_for(time).await;
    scene.two(&holds[1]).enters_for(time / 5).await;
    let writer = scene.one(&holds[2]).writing();
    fixture.pass(time / 4).await;
    let remaining = writer.is_refused().await;
    assert!(remaining <= time, "{remaining:?} of {time:?}");
    fixture.pass(remaining + Duration::from_millis(5)).await;
    writer.enters().await;
}

/// C24: a refused writer is told when the last of the holds ends, whatever their order.
pub async fn a_refused_writer_is_told_when_the_last_hold_ends<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let leases = [LASTING / 100, LASTING, LASTING / 10];
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let writer = scene.two(&holds[3]).writing();
    for (hold, lease) in holds.iter().zip(leases) {
        scene.one(hold).enters_for(lease).await;
    }
    let remaining = writer.is_refused().await;
    assert!(
        remaining > LASTING / 2 && remaining <= LASTING,
        "{remaining:?}, the last lease is {LASTING:?}"
    );
    scene.two(&holds[1]).releases().await;
    let remaining = writer.is_refused().await;
    assert!(
        remaining > LASTING / 20 && remaining <= LASTING / 10,
        "{remaining:?}, one tenth of {LASTING:?}"
    );
}

/// C24 and C12: a writer that was told to wait for the longest lease is woken when that reader
/// releases.
pub async fn a_release_after_which_a_writer_waits_less_wakes<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.two(&holds[2]).writing();
    scene.one(&holds[0]).enters_for(LASTING / 10).await;
    scene.one(&holds[1]).enters().await;
    let before = writer.is_refused().await;
    let mut wakeups = writer.subscribes().await;
    drain(fixture, &mut wakeups).await;
    scene.one(&holds[1]).releases().await;
    soon(wakeups.woken()).await;
    let after = writer.is_refused().await;
    assert!(after < before / 2, "the writer was told {before:?} before and {after:?} now");
}

/// C24 and C23: a write hold ends with its lease, and the reader within it continues with its own.
pub async fn a_reader_outlives_the_lease_of_the_write_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.one(&holds[0]).writing();
    writer.enters_for(fixture.short_lease()).await;
    scene.one(&holds[1]).within(&holds[0]).enters().await;
    short_leases_end(fixture).await;
    writer.cannot_renew().await;
    assert_eq!(scene.one(&holds[1]).holds().await.0, 1);
    scene.two(&holds[2]).writing().is_refused().await;
    scene.two(&holds[2]).enters().await;
}

/// C24 and C23: a reader within a write hold ends with its own lease, and the writer stays, alone.
pub async fn a_writer_outlives_the_reader_within<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.one(&holds[0]).writing();
    writer.enters().await;
    scene.one(&holds[1]).within(&holds[0]).enters_for(fixture.short_lease()).await;
    short_leases_end(fixture).await;
    scene.one(&holds[1]).cannot_renew().await;
    assert_eq!(writer.holds().await.0, 1);
    scene.two(&holds[2]).is_refused().await;
    writer.releases().await;
    scene.two(&holds[2]).writing().enters().await;
}

/// C24 and C12: a takeover that ends earlier wakes readers behind a writer, and writers behind a
/// reader.
pub async fn a_takeover_of_a_lease_of_its_own_that_ends_earlier_wakes<F: Fixture>(fixture: &F) {
    for mode in [Mode::Read, Mode::Write] {
        let scene = Scene::read_write(fixture).await;
        let holds = [named("job-17"), named("job-17"), stranger()];
        let other = if mode == Mode::Read { Mode::Write } else { Mode::Read };
        let waiter = scene.two(&holds[2]).in_mode(other);
        scene.one(&holds[0]).in_mode(mode).enters().await;
        let before = waiter.is_refused().await;
        let mut wakeups = waiter.subscribes().await;
        drain(fixture, &mut wakeups).await;
        scene.one(&holds[1]).in_mode(mode).enters_for(LASTING / 10).await;
        soon(wakeups.woken()).await;
        let after = waiter.is_refused().await;
        assert!(after < before / 2, "{mode}: {before:?} before and {after:?} now");
    }
}
