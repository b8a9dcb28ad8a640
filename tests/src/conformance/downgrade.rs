//! C23: a writer that also reads, and continues as a reader.

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, force, named, nothing_is_left, soon, stranger},
        wakeups::drain,
    },
};

/// C23: an owner with a write hold gets a read hold beside it.
pub async fn a_writer_is_let_in_as_a_reader<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (writer, reader) = (scene.one(&holds[0]).writing(), scene.one(&holds[1]).within(&holds[0]));
    let before = writer.enters().await;
    let token = reader.enters().await;
    assert!(token > before, "the reader has token {token}, the writer {before}");
    assert_eq!(reader.enters().await, token, "the repetition is the same hold");
    reader.grows_to(2, LASTING).await;
    assert_eq!((writer.is_in().await, reader.is_in().await), (1, 2));
    reader.renews(LASTING).await;
    writer.renews(LASTING).await;
    assert_eq!(writer.enters().await, before, "the reader has changed the write hold");
}

/// C23: when the write hold is released, the read hold stays and keeps writers out; other readers
/// are let in.
pub async fn a_writer_goes_on_as_a_reader<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (writer, reader) = (scene.one(&holds[0]).writing(), scene.one(&holds[1]).within(&holds[0]));
    let (other_reader, other_writer) = (scene.two(&holds[2]), scene.two(&holds[2]).writing());
    writer.enters().await;
    reader.enters().await;
    writer.releases().await;
    writer.cannot_renew().await;
    assert_eq!(reader.holds().await.0, 1);
    reader.renews(LASTING).await;
    other_writer.is_refused().await;
    other_reader.enters().await;
    other_reader.releases().await;
    reader.releases().await;
    nothing_is_left(fixture, &scene.name).await;
    other_writer.enters().await;
}

/// C23 and C22: while there is a write hold, nobody else is let in, not even with a reader within
/// it.
pub async fn a_reader_within_a_write_hold_opens_it_to_nobody<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (writer, reader) = (scene.one(&holds[0]).writing(), scene.one(&holds[1]).within(&holds[0]));
    writer.enters().await;
    reader.enters().await;
    for other in [scene.two(&holds[2]), scene.two(&holds[2]).writing()] {
        other.is_refused().await;
    }
    reader.releases().await;
    for other in [scene.two(&holds[2]), scene.two(&holds[2]).writing()] {
        other.is_refused().await;
    }
    assert_eq!(writer.holds().await.0, 1);
    writer.releases().await;
    scene.two(&holds[2]).writing().enters().await;
}

/// C23: the release of the write hold wakes other readers, although the lock is not free.
pub async fn going_on_as_a_reader_wakes_the_others<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let writer = scene.one(&holds[0]).writing();
    writer.enters().await;
    scene.one(&holds[1]).within(&holds[0]).enters().await;
    let mut wakeups = scene.two(&holds[2]).subscribes().await;
    drain(fixture, &mut wakeups).await;
    writer.releases().await;
    soon(wakeups.woken()).await;
    scene.two(&holds[2]).enters().await;
}

/// C23: a reader is let in within a live write hold of its own only: not another owner's, nor one
/// that was released, forced or has expired.
pub async fn a_dead_write_hold_lets_nobody_in<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [stranger(), stranger(), stranger()];
    let (dead, reader) = (scene.one(&holds[0]).writing(), scene.one(&holds[1]).within(&holds[0]));
    let writer = scene.two(&holds[2]).writing();
    dead.enters().await;
    dead.releases().await;
    writer.enters().await;
    reader.is_refused().await;
    writer.releases().await;
    dead.enters().await;
    assert!(force(&scene.one, &scene.name).await);
    writer.enters().await;
    reader.is_refused().await;
    writer.releases().await;
    dead.enters_for(fixture.short_lease() / 5).await;
    fixture.pass(fixture.short_lease() / 4).await;
    writer.enters().await;
    reader.is_refused().await;
    assert_eq!(writer.holds().await.0, 1);
}

/// C23: a named owner is let in beside its own write hold if it names it, and replaces its older
/// read hold.
pub async fn a_named_owner_reads_within_its_own_write_hold<F: Fixture>(fixture: &F) {
    let scene = Scene::read_write(fixture).await;
    let holds = [named("job-17"), named("job-17"), named("job-17"), stranger()];
    let writer = scene.one(&holds[0]).writing();
    let readers = [scene.one(&holds[1]).within(&holds[0]), scene.one(&holds[2]).within(&holds[0])];
    let write = writer.enters().await;
    let first = readers[0].enters().await;
    assert!(readers[1].enters().await > first);
    readers[0].cannot_renew().await;
    assert_eq!(writer.enters().await, write, "the reader has taken over the write hold");
    assert_eq!((writer.is_in().await, readers[1].is_in().await), (1, 1));
    writer.releases().await;
    readers[1].renews(LASTING).await;
    scene.two(&holds[3]).writing().is_refused().await;
    scene.two(&holds[3]).enters().await;
}
