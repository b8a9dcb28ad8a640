//! Faults of the slots of a cluster.

use std::time::Duration;

use lockcore::LockError;
use lockcore_testkit::monotonic;

use super::cancelling::{connect, whole};
use crate::{
    deployment::{ServerSetup, Servers, slot_of},
    protocol::{Order, Result},
    report::{Report, Run},
    scene::{Judge, LEASE, Scene, Setup},
};

/// No lock is lost with its slot; waiters may have to wait until the slot has arrived.
fn judge() -> Judge {
    Judge {
        truth: false,
        wakeup: Duration::from_secs(2),
        failures: &["Backend(Unavailable)"],
        growth: 32_000,
        ..Judge::default()
    }
}

/// The time limit for waits and renewals to continue after a slot has moved.
const MOVED: Duration = Duration::from_millis(200);

/// #28: slots of locks that are held, waited for and used all the time migrate slowly to another
/// primary and back. Holds stay, waiters enter.
/// Exclusion, tokens, lost updates, wake-ups.
pub(super) async fn migrating(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let mut names: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
    names.extend(["lock0", "fair0", "rw0", "sem0"].map(str::to_owned));
    for name in &names {
        for _ in 0..2 {
            let [begun, moved] = [0, 1].map(|_| scene.random.ms(0, 300));
            let cluster = scene.servers.cluster()?;
            let slot = slot_of(name);
            let to = (cluster.primary_of(slot).await + 1) % 2;
            let migration = cluster.begin_migration(slot, to).await;
            tokio::time::sleep(begun).await;
            cluster.move_keys(&migration).await;
            tokio::time::sleep(moved).await;
            cluster.move_keys(&migration).await;
            cluster.finish_migration(migration).await;
        }
    }
    scene.expect_held(&places)?;
    let released = monotonic();
    scene.release_well(0).await?;
    let taken = scene.until_taken(&places, released, 2 * LEASE).await?;
    scene.measure("handed over after the migrations", taken, MOVED);
    scene.note(format!("{} slots to and fro", names.len()));
    scene.finish(judge()).await
}

/// #66: a node joins the cluster and gets the slots of locks that are held and waited for; then it
/// returns them, and leaves.
/// Exclusion, tokens, lost updates, wake-ups.
pub(super) async fn node_comes_and_goes(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let new = scene.servers.cluster_mut()?.add_node().await;
    for place in &places {
        scene.servers.cluster()?.migrate_slot(slot_of(&place.name), new).await;
    }
    scene.sleep(2000).await;
    scene.expect_held(&places)?;
    let released = monotonic();
    scene.release_well(0).await?;
    let taken = scene.until_taken(&places, released, 2 * LEASE).await?;
    scene.measure("handed over at the new node", taken, MOVED);
    for place in &places {
        scene.clients[2].order(Order::Hold(place.clone())).await?;
    }
    for place in &places {
        scene.servers.cluster()?.migrate_slot(slot_of(&place.name), 0).await;
    }
    scene.servers.cluster_mut()?.remove_node(new).await;
    scene.sleep(2000).await;
    scene.expect_held(&places)?;
    scene.release_well(2).await?;
    scene.finish(judge()).await
}

/// Names with braces in every place.
const NAMES: [&str; 9] = ["o{1", "a}b", "{}x", "a{", "{", "}", "{}", "{a}b", "x{a}{b}"];

/// #30: locks of each kind whose names have braces in odd places: all keys of one name must be in
/// one slot. Each name works, or is refused with an error that says why.
pub(super) async fn odd_names(run: Run) -> Result<Report> {
    let servers = Servers::start(run.on, &ServerSetup::default()).await?;
    let mut report = Report::new(run, run.on.kinds());
    let [one, other] = [connect(&servers.store("")).await?, connect(&servers.store("")).await?];
    let mut refused = 0;
    for name in NAMES {
        for kind in run.on.kinds().iter().copied() {
            let [mine, theirs] = [&one, &other].map(|locks| whole(locks, kind, name));
            match mine.acquire().await {
                Ok(guard) => {
                    let is_free = theirs.try_acquire().await?.is_some();
                    let waiting = tokio::spawn(async move { theirs.acquire().await });
                    guard.release().await?;
                    waiting.await??.release().await?;
                    report.grants += 2;
                    if is_free {
                        report.findings.push(format!("C1: `{name}` was held twice"));
                    }
                }
                Err(LockError::InvalidName { .. }) => refused += 1,
                Err(error) => report.findings.push(format!("I9: `{name}`: {error}")),
            }
            // Kinds do not share names.
            for primary in servers.primaries().await {
                let () = primary.try_query(&["FLUSHALL"]).await?;
            }
        }
    }
    report.notes.push(format!("{refused} of {} locks refused", NAMES.len() * 4));
    one.close().await?;
    other.close().await?;
    Ok(report)
}
