//! C25: a writer that waits for readers keeps new readers out.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, named, nothing_is_left, soon, state, stranger},
        wakeups::drain,
    },
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// C25: a writer that was refused because of readers keeps new readers out, and they are told for
/// how long.
pub async fn a_waiting_writer_keeps_new_readers_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, kept) = ([stranger(), stranger(), stranger()], LASTING / 10);
    let (reader, writer) = (scene.one(&holds[0]), scene.two(&holds[1]).writing());
    reader.enters().await;
    let remaining = writer.queues_for(kept).await;
    assert!(remaining > LASTING / 2, "{remaining:?}, the reader's lease is {LASTING:?}");
    for newcomer in [scene.one(&holds[2]), scene.two(&holds[2])] {
        let remaining = newcomer.is_refused().await;
        assert!(
            remaining > kept / 2 && remaining <= kept,
            "{remaining:?}, the writer waits for {kept:?}"
        );
        newcomer.cannot_renew().await;
    }
    assert_eq!(reader.holds().await.0, 1);
    reader.releases().await;
    scene.two(&holds[2]).is_refused().await;
}

/// C25: current readers repeat, nest, renew and release as if no writer waited.
pub async fn readers_that_are_in_go_on_while_a_writer_waits<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let readers = [scene.one(&holds[0]), scene.two(&holds[1])];
    let token = readers[0].enters().await;
    readers[1].enters().await;
    scene.one(&holds[2]).writing().queues().await;
    assert_eq!(readers[0].enters().await, token);
    assert_eq!(readers[0].grows_to(2, LASTING).await, token);
    readers[0].lowers_to(1).await;
    for reader in readers {
        reader.renews(LASTING).await;
        reader.releases().await;
    }
    scene.one(&holds[2]).writing().enters().await;
}

/// C6 and C25: a named reader takes over its own hold, past all waiting writers.
pub async fn a_named_reader_takes_over_past_a_waiting_writer<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [named("job-17"), named("job-17"), stranger(), named("job-18")];
    let before = scene.one(&holds[0]).enters().await;
    scene.one(&holds[2]).writing().queues().await;
    assert!(scene.two(&holds[1]).enters().await > before);
    scene.one(&holds[0]).cannot_release().await;
    scene.two(&holds[3]).is_refused().await;
    scene.two(&holds[1]).releases().await;
    scene.one(&holds[2]).writing().enters().await;
}

/// C25: the writer enters when the readers have left, and once it has left everybody may read
/// again.
pub async fn a_writer_that_came_in_keeps_nobody_out_afterwards<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.two(&holds[1]).writing();
    scene.one(&holds[0]).enters().await;
    writer.queues().await;
    scene.one(&holds[0]).releases().await;
    writer.enters().await;
    scene.one(&holds[2]).is_refused().await;
    writer.releases().await;
    scene.one(&holds[2]).enters().await;
    scene.one(&holds[2]).releases().await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C25: a writer that gives up is told that it holds nothing, and new readers are woken and let in.
pub async fn a_writer_that_gives_up_lets_readers_in<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (writer, newcomer) = (scene.two(&holds[1]).writing(), scene.one(&holds[2]));
    scene.one(&holds[0]).enters().await;
    writer.queues().await;
    newcomer.is_refused().await;
    let mut wakeups = newcomer.subscribes().await;
    drain(fixture, &mut wakeups).await;
    writer.cannot_release().await;
    soon(wakeups.woken()).await;
    newcomer.enters().await;
    assert_eq!(scene.one(&holds[0]).is_in().await, 1);
}

/// C25: a writer that has stopped asking keeps readers out for the time that it gave, and no
/// longer.
pub async fn a_writer_that_stopped_asking_keeps_readers_out_for_its_time<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease());
    scene.one(&holds[0]).enters().await;
    let sent = Instant::now();
    scene.two(&holds[1]).writing().queues_for(time).await;
    while scene.one(&holds[2]).asks().await.token().is_none() {
        assert!(sent.elapsed() < time * 20, "the writer is not forgotten");
        fixture.pass(time / 40).await;
    }
    let lasted = sent.elapsed();
    assert!(
        lasted + MILLISECOND >= time,
        "a writer that waits for {time:?} was forgotten after {lasted:?}"
    );
}

/// C25: the time of a waiting writer starts again when it asks again.
pub async fn a_writer_that_asks_again_goes_on_keeping_readers_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger(), stranger()], fixture.short_lease() * 3 / 2);
    let writer = scene.two(&holds[1]).writing();
    scene.one(&holds[0]).enters().await;
    writer.queues_for(time).await;
    fixture.pass(time * 3 / 4).await;
    writer.queues_for(time).await;
    fixture.pass(time / 2).await;
    scene.one(&holds[2]).is_refused().await;
    scene.one(&holds[0]).releases().await;
    writer.enters().await;
}

/// C25: a late nested request of a waiting writer, which has no hold, is not granted.
pub async fn a_writer_that_cannot_grow_goes_on_keeping_readers_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.two(&holds[1]).writing();
    scene.one(&holds[0]).enters().await;
    writer.queues().await;
    scene.one(&holds[0]).releases().await;
    writer.cannot_grow().await;
    scene.one(&holds[2]).is_refused().await;
    writer.enters().await;
}

/// C25: each of several waiting writers keeps new readers out until it gives up itself.
pub async fn every_waiting_writer_keeps_new_readers_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (writers, newcomer) =
        ([1, 2].map(|number| scene.two(&holds[number]).writing()), scene.one(&holds[3]));
    scene.one(&holds[0]).enters().await;
    writers[0].queues_for(LASTING / 10).await;
    writers[1].queues_for(LASTING / 2).await;
    let told = newcomer.is_refused().await;
    assert!(
        told > LASTING / 4 && told <= LASTING / 2,
        "{told:?}, and the last writer waits for half of {LASTING:?}"
    );
    writers[1].cannot_release().await;
    let told = newcomer.is_refused().await;
    assert!(
        told > LASTING / 20 && told <= LASTING / 10,
        "{told:?}, and a writer waits for a tenth of {LASTING:?}"
    );
    writers[0].cannot_release().await;
    newcomer.enters().await;
}

/// C25: a writer that only tries keeps nobody out.
pub async fn a_writer_that_only_tries_keeps_nobody_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    scene.one(&holds[0]).enters().await;
    scene.two(&holds[1]).writing().is_refused().await;
    scene.two(&holds[2]).enters().await;
}

/// C25: a writer that was refused because of another writer keeps nobody out, not even with a
/// reader within the write hold.
pub async fn a_writer_that_waits_for_a_writer_keeps_nobody_out<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (first, second) = (scene.one(&holds[0]).writing(), scene.two(&holds[1]).writing());
    first.enters().await;
    second.queues().await;
    scene.one(&holds[3]).within(&holds[0]).enters().await;
    second.queues().await;
    first.releases().await;
    scene.one(&holds[2]).enters().await;
}

/// C25: a writer that waits for readers does not keep out a reader within a write hold.
pub async fn a_waiting_writer_does_not_keep_a_writer_from_reading<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger(), stranger()];
    let (waiting, other) = (scene.two(&holds[1]).writing(), scene.one(&holds[2]).writing());
    scene.one(&holds[0]).enters().await;
    waiting.queues().await;
    scene.one(&holds[0]).releases().await;
    other.enters().await;
    scene.one(&holds[3]).within(&holds[2]).enters().await;
}

/// C14: the writer that keeps readers out is reported as waiting, until it enters or gives up.
pub async fn a_waiting_writer_is_reported<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger()];
    let (reader, writer) = (scene.one(&holds[0]), scene.two(&holds[1]).writing());
    reader.enters().await;
    assert!(state(&scene.one, &scene.name).await.waiters().is_empty());
    for _ in 0..2 {
        writer.queues().await;
        let waiting = state(&scene.one, &scene.name).await;
        assert_eq!(waiting.waiters(), [holds[1].owner()], "{waiting:?}");
        writer.cannot_release().await;
        assert!(state(&scene.one, &scene.name).await.waiters().is_empty());
    }
    writer.queues().await;
    reader.releases().await;
    writer.enters().await;
    assert!(state(&scene.one, &scene.name).await.waiters().is_empty());
}

/// C15 and C25: nothing is left of writers that waited, however the wait ended.
pub async fn nothing_is_left_of_writers_that_waited<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let (holds, time) = ([stranger(), stranger()], fixture.short_lease() / 5);
    let (reader, writer) = (scene.one(&holds[0]), scene.two(&holds[1]).writing());
    reader.enters().await;
    writer.queues().await;
    writer.cannot_release().await;
    reader.releases().await;
    nothing_is_left(fixture, &scene.name).await;
    reader.enters().await;
    writer.queues_for(time).await;
    reader.releases().await;
    fixture.pass(time * 2).await;
    nothing_is_left(fixture, &scene.name).await;
}

/// C25 and C12: a writer that enters for less than the time for which it keeps readers out wakes
/// them.
pub async fn a_writer_that_comes_in_for_less_than_its_time_wakes_readers<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (reader, writer) = (scene.one(&holds[0]), scene.one(&holds[1]).writing());
    let newcomer = scene.two(&holds[2]);
    reader.enters().await;
    writer.queues().await;
    reader.releases().await;
    let before = newcomer.is_refused().await;
    let mut wakeups = newcomer.subscribes().await;
    drain(fixture, &mut wakeups).await;
    writer.enters_for(LASTING / 10).await;
    soon(wakeups.woken()).await;
    let after = newcomer.is_refused().await;
    assert!(after < before / 2, "the reader was told {before:?} before and {after:?} now");
}
