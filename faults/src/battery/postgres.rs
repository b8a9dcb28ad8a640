//! Faults that only PostgreSQL has.

use std::time::Duration;

use crate::{
    protocol::Result,
    report::{Report, Run},
    scene::{Judge, LEASE, SLACK, Scene, Setup, TIMEOUT},
};

/// #70: a foreign transaction locks the rows of names for two response time-outs; then all holds, as
/// a schema change does; then the names again, for two leases. The short delays cost no hold; with
/// the long one, holders are told by their deadlines.
/// Exclusion, tokens, lost updates with fencing; recovery.
pub(super) async fn blocked(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let enter = |place: &crate::protocol::Place| format!("lockcore.enter('{}')", place.name);
    let names: Vec<_> = places.iter().map(enter).collect();
    let names = names.join(", ");
    // A renewal may be due when a delay begins, with two thirds of the lease left. After a short
    // one, that still has to be enough for an answer that does not come, a new connection, and
    // another attempt.
    let sleep = format!("pg_sleep({})", (2 * TIMEOUT).as_secs_f64());
    for sql in [
        format!("SELECT {names}, {sleep}"),
        format!("BEGIN; LOCK TABLE lockcore.hold; SELECT {sleep}; COMMIT"),
    ] {
        scene.fault(&sql);
        scene.servers.postgres()?.ask(&sql).await?;
        scene.healed();
        scene.sleep(1500).await;
        scene.expect_held(&places)?;
    }
    let kept = scene.fault("names kept for two leases");
    let long = format!("SELECT {names}, pg_sleep({})", 2 * LEASE.as_secs());
    scene.servers.postgres()?.ask(&long).await?;
    scene.healed();
    let notice = scene.loss_notice(&places, kept)?;
    scene.measure("loss told", notice, LEASE + SLACK);
    scene.release(0).await?;
    let judge = Judge { losses: true, failures: &["Backend(Unavailable)"], ..Judge::default() };
    scene.finish(Judge { recovery: Duration::from_secs(2), ..judge }).await
}
