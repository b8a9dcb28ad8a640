//! C43 and C44: the records of clients.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lockcore::{LockName, backend::Backend};
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::{
        scene::{LASTING, Scene, force, soon, stranger},
        walk::{clients, clients_while, directory, names},
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// The shortest lifetime of a record.
const SHORTEST: Duration = Duration::from_secs(1);

/// An id that no other client has.
fn new_id() -> String {
    Uuid::new_v4().to_string()
}

async fn put(backend: &impl Backend, id: &str, record: &str, lifetime: Duration) {
    let put = directory(backend).put_client(id, record, lifetime);
    soon(put).await.expect("put_client failed");
}

async fn remove(backend: &impl Backend, id: &str) {
    soon(directory(backend).remove_client(id)).await.expect("remove_client failed");
}

/// Returns the record of `id` as a walk reports it.
async fn record(backend: &impl Backend, id: &str) -> Option<String> {
    clients(backend).await.remove(id)
}

/// C43: every client reports a record exactly as it was written, whatever characters it contains.
pub async fn a_record_is_reported_as_it_was_written<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let long = "ä\"\\".repeat(64 * 1024 / 4);
    let records = [
        "",
        " ",
        "0",
        "null",
        r#"{"host":"h","program":"a \"b\" \\ c","pid":7,"at":[1.50,-0]}"#,
        r"back\slash \n \\ \u00e4 %s $1 {x} ${y} ' '' ; --",
        "ä a\u{308} 😀 \u{10ffff}",
        &long,
    ];
    let ids = ["a", "A", "0", "-", "a-b"].map(|end| format!("{}-{end}", Uuid::new_v4().simple()));
    let longest = format!("{0}{0}", Uuid::new_v4().simple());
    let ids: Vec<_> = ids.into_iter().chain([longest, new_id(), new_id()]).collect();
    for (id, record) in ids.iter().zip(records) {
        put(&scene.one, id, record, LASTING).await;
    }
    for client in [&scene.one, &scene.two] {
        let reported = clients(client).await;
        for (id, record) in ids.iter().zip(records) {
            let found = reported.get(id).map(String::as_str);
            assert!(found == Some(record), "{record:.60} was reported as {found:.60?}");
        }
    }
}

/// C43: only the last record of a client is reported, whoever wrote it.
pub async fn the_last_record_of_a_client_is_reported<F: Fixture>(fixture: &F) {
    let (scene, id) = (Scene::of(fixture).await, new_id());
    put(&scene.one, &id, "first", LASTING).await;
    put(&scene.one, &id, "second", LASTING).await;
    assert_eq!(record(&scene.two, &id).await.as_deref(), Some("second"));
    put(&scene.two, &id, "third", LASTING).await;
    for client in [&scene.one, &scene.two] {
        assert_eq!(record(client, &id).await.as_deref(), Some("third"));
    }
}

/// C43: a record is no longer reported after its lifetime.
pub async fn a_record_is_forgotten_after_its_lifetime<F: Fixture>(fixture: &F) {
    let (scene, ids) = (Scene::of(fixture).await, [new_id(), new_id()]);
    put(&scene.one, &ids[0], "brief", SHORTEST).await;
    put(&scene.one, &ids[1], "lasting", LASTING).await;
    fixture.pass(SHORTEST + Duration::from_millis(50)).await;
    for client in [&scene.one, &scene.two] {
        assert_eq!(record(client, &ids[0]).await, None, "its lifetime has passed");
        assert_eq!(record(client, &ids[1]).await.as_deref(), Some("lasting"));
    }
}

/// C43: a record is reported for its whole lifetime.
pub async fn a_record_is_kept_for_its_lifetime<F: Fixture>(fixture: &F) {
    let (scene, id) = (Scene::of(fixture).await, new_id());
    put(&scene.one, &id, "record", 60 * SHORTEST).await;
    fixture.pass(2 * SHORTEST).await;
    assert_eq!(record(&scene.two, &id).await.as_deref(), Some("record"));
}

/// C43: the lifetime of the last record counts, whether it is longer or shorter than the previous
/// one.
pub async fn the_last_lifetime_of_a_record_counts<F: Fixture>(fixture: &F) {
    let (scene, ids) = (Scene::of(fixture).await, [new_id(), new_id()]);
    put(&scene.one, &ids[0], "first", SHORTEST).await;
    put(&scene.two, &ids[0], "longer", LASTING).await;
    put(&scene.one, &ids[1], "first", LASTING).await;
    put(&scene.two, &ids[1], "shorter", SHORTEST).await;
    fixture.pass(SHORTEST + Duration::from_millis(50)).await;
    assert_eq!(record(&scene.one, &ids[0]).await.as_deref(), Some("longer"));
    assert_eq!(record(&scene.one, &ids[1]).await, None, "its lifetime has passed");
}

/// C43: a removed record is not reported, and all others still are.
pub async fn a_removed_record_is_not_reported<F: Fixture>(fixture: &F) {
    let (scene, ids) = (Scene::of(fixture).await, [new_id(), new_id()]);
    remove(&scene.one, &ids[0]).await;
    for id in &ids {
        put(&scene.one, id, "record", LASTING).await;
    }
    remove(&scene.two, &ids[0]).await;
    for client in [&scene.one, &scene.two] {
        assert_eq!(record(client, &ids[0]).await, None, "it was removed");
        assert_eq!(record(client, &ids[1]).await.as_deref(), Some("record"));
    }
    put(&scene.one, &ids[0], "again", LASTING).await;
    assert_eq!(record(&scene.two, &ids[0]).await.as_deref(), Some("again"));
}

/// C43: a walk over the records of many clients reports each of them.
pub async fn the_records_of_many_clients_are_reported<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let ids: Vec<_> = (0..300).map(|_| new_id()).collect();
    for id in &ids {
        put(&scene.one, id, &format!("record of {id}"), LASTING).await;
    }
    let reported = clients(&scene.two).await;
    for id in &ids {
        assert_eq!(reported.get(id), Some(&format!("record of {id}")));
    }
}

/// C43: a walk reports the record of a client that stays while others come and go, and while the
/// record is rewritten.
pub async fn records_are_reported_while_others_come_and_go<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let ids: Vec<_> = (0..200).map(|_| new_id()).collect();
    for id in &ids {
        put(&scene.one, id, "record", LASTING).await;
    }
    let (going, staying) = ids.split_at(100);
    let gone = AtomicUsize::new(0);
    let reported = clients_while(&scene.two, async || {
        let from = gone.fetch_add(10, Ordering::Relaxed);
        // More records are removed than added, so that the remaining ones move up.
        for (going, staying) in going.iter().zip(staying).skip(from).take(10) {
            remove(&scene.one, going).await;
            put(&scene.one, staying, "record", LASTING / 2).await;
        }
        put(&scene.one, &new_id(), "record", LASTING).await;
    })
    .await;
    for id in staying {
        assert_eq!(reported.get(id).map(String::as_str), Some("record"), "it was there all along");
    }
}

/// C44: writing and removing the record of a client does not affect the lock of the same name.
pub async fn records_do_not_affect_locks<F: Fixture>(fixture: &F) {
    let (scene, id, holds) = (Scene::of(fixture).await, new_id(), [stranger(), stranger()]);
    let name = LockName::new(id.as_str()).expect("a valid name");
    let holder = scene.one(&holds[0]).under(&name);
    put(&scene.two, &id, "record", LASTING).await;
    holder.enters().await;
    put(&scene.two, &id, "another", LASTING).await;
    assert_eq!(holder.holds().await.0, 1);
    remove(&scene.two, &id).await;
    assert_eq!(holder.holds().await.0, 1);
    scene.two(&holds[1]).under(&name).is_refused().await;
    put(&scene.two, &id, "record", LASTING).await;
    holder.releases().await;
    scene.two(&holds[1]).under(&name).enters().await;
}

/// C44: using a lock does not affect the record of the client of the same name.
pub async fn locks_do_not_affect_records<F: Fixture>(fixture: &F) {
    let (scene, id, hold) = (Scene::of(fixture).await, new_id(), stranger());
    let name = LockName::new(id.as_str()).expect("a valid name");
    let holder = scene.one(&hold).under(&name);
    put(&scene.one, &id, "record", LASTING).await;
    holder.enters().await;
    holder.grows_to(2, LASTING).await;
    holder.renews(LASTING).await;
    assert_eq!(record(&scene.two, &id).await.as_deref(), Some("record"));
    holder.releases().await;
    holder.enters().await;
    assert!(force(&scene.two, &name).await);
    assert_eq!(record(&scene.two, &id).await.as_deref(), Some("record"));
}

/// C44: client records are not reported as names of locks.
pub async fn records_are_not_reported_as_names<F: Fixture>(fixture: &F) {
    let (scene, id) = (Scene::of(fixture).await, new_id());
    put(&scene.one, &id, "record", LASTING).await;
    let reported = names(&scene.two).await;
    let found = reported.iter().find(|name| name.as_str().contains(&id));
    assert_eq!(found, None, "no lock is called so");
}

/// C17: a dropped write of a record has either taken effect or not, and can be repeated.
pub async fn a_dropped_put_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, id) = (Scene::of(fixture).await, new_id());
        put(&scene.one, &id, "before", LASTING).await;
        let putting = directory(&scene.one).put_client(&id, "dropped", LASTING);
        let ended = poll_times(polls, putting).await;
        let found = record(&scene.two, &id).await;
        assert!(["before", "dropped"].contains(&found.as_deref().unwrap_or("none")), "{found:?}");
        put(&scene.one, &id, "after", LASTING).await;
        assert_eq!(record(&scene.two, &id).await.as_deref(), Some("after"));
        if ended.is_some() {
            return;
        }
    }
}

/// C17: a dropped removal can be repeated.
pub async fn a_dropped_removal_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let (scene, id) = (Scene::of(fixture).await, new_id());
        put(&scene.one, &id, "record", LASTING).await;
        let ended = poll_times(polls, directory(&scene.one).remove_client(&id)).await;
        remove(&scene.one, &id).await;
        assert_eq!(record(&scene.two, &id).await, None);
        if ended.is_some() {
            return;
        }
    }
}
