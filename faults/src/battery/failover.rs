//! Faults that involve a failover.

use std::time::Duration;

use lockcore_testkit::{On, monotonic};

use crate::{
    deployment::{Deployment, Network, cut},
    protocol::{Order, Place, Result},
    report::{Report, Run},
    scene::{Judge, LONG_LEASE, SLACK, Scene, Setup, TIMEOUT},
};

/// The time limit for a new lock and the next waiter, once the new primary answers.
const RECOVERY: Duration = Duration::from_secs(2);

/// The same after a manual failover or the migration of a slot, which clients are told of.
const PLANNED: Duration = Duration::from_millis(200);

/// The age at which a hold with the long lease is renewed.
const LONG_RENEWAL: Duration = Duration::from_millis(2667);

/// The time until holders of locks that the new primary does not know are told, with the next
/// renewal.
const TOLD: Duration = LONG_RENEWAL.saturating_add(TIMEOUT).saturating_add(SLACK);

/// The checks that are skipped where a failover loses writes that the new primary had not received
/// (A3).
fn judge() -> Judge {
    Judge {
        exclusion: false,
        truth: false,
        losses: true,
        wakeup: Duration::from_secs(2),
        recovery: RECOVERY,
        failures: &["Backend(Unavailable)", "Backend(ReadOnly)"],
        growth: 32_000,
        told: Some(TOLD),
        ..Judge::default()
    }
}

/// A scene with a group whose primary is replaced after one second of silence, holds that outlive
/// that, and working clients.
async fn open(run: Run, setup: Setup) -> Result<Scene> {
    let mut scene = Scene::open(run, setup.fails_over()).await?;
    scene.play().await?;
    Ok(scene)
}

/// A holder and a waiter of each kind, whose holds have been replicated.
async fn stage(scene: &mut Scene) -> Result<Vec<Place>> {
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.sleep(300).await;
    Ok(places)
}

/// Waits for the new primary. Once it accepts writes, a new lock is acquired within the bound, the
/// holds that it knows are kept, and waiters enter when these are released.
async fn recover(scene: &mut Scene, places: &[Place], bound: Duration) -> Result<u64> {
    let old = scene.servers.current_index();
    scene.servers.follow(old).await?;
    let healed = scene.healed();
    goes_on(scene, places, healed, bound).await?;
    Ok(healed)
}

async fn goes_on(scene: &mut Scene, places: &[Place], since: u64, bound: Duration) -> Result<()> {
    // Two clients at the same time, two locks each.
    let fresh = scene.staged("fresh");
    for pair in fresh.chunks(2) {
        for (client, place) in scene.clients[2..].iter_mut().zip(pair) {
            client.send(&Order::Hold(place.clone())).await?;
        }
        for client in &mut scene.clients[2..] {
            client.done().await?;
        }
    }
    let fresh = Duration::from_nanos(monotonic() - since);
    scene.measure("new locks after the new primary", Some(fresh), bound);
    scene.release_well(2).await?;
    scene.release_well(3).await?;
    scene.renew_admin().await?;
    count_stranded(scene).await?;
    // Longer than the delay of a renewal: every holder that had to be told has been.
    tokio::time::sleep(TOLD).await;
    scene.expect_held(places)?;
    let released = monotonic();
    scene.release_well(0).await?;
    let taken = scene.until_taken(places, released, LONG_LEASE).await?;
    scene.measure("handed over by the new primary", taken, Duration::from_millis(500));
    Ok(())
}

async fn count_stranded(scene: &mut Scene) -> Result<()> {
    let stranded = scene.stranded().await?;
    scene.note(format!("{stranded} locks stranded"));
    Ok(())
}

/// Waits until the servers have settled, and judges.
async fn finish(mut scene: Scene) -> Result<Report> {
    scene.servers.settle().await;
    scene.renew_admin().await?;
    scene.finish(judge()).await
}

/// #24: writes of locks no longer reach the replicas; a second later the primary is killed. The new
/// primary does not know the last holds: their holders are told with the next renewal, others get
/// the locks before that, and tokens rise nevertheless.
/// Tokens, lost updates with fencing; losses reported; recovery.
pub(super) async fn unreplicated(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default().between()).await?;
    hold_replication(&scene).await?;
    let places = scene.stage("unsent", 0, Some(1)).await?;
    scene.sleep(700).await;
    let old = scene.servers.current_index();
    let killed = scene.kill_server("primary killed whose replicas are behind");
    scene.servers.follow(old).await?;
    let healed = scene.healed();
    let notice = scene.until_lost(&places, healed, LONG_LEASE).await?;
    scene.measure("loss told after the new primary", notice, TOLD);
    let down = Duration::from_nanos(healed - killed);
    scene.note(format!("{} ms without a primary", down.as_millis()));
    scene.release(0).await?;
    restart_old(&mut scene, old).await?;
    finish(scene).await
}

async fn hold_replication(scene: &Scene) -> Result<()> {
    scene.servers.hold_replication().await?;
    scene.sleep(300).await;
    Ok(())
}

/// Restarts the old primary, which becomes a replica. With PostgreSQL it would become another
/// primary: promoting a replica includes keeping the old primary down.
async fn restart_old(scene: &mut Scene, old: usize) -> Result<()> {
    if scene.on != Deployment::Postgres {
        scene.servers.heal_between().await?;
        scene.servers.process(old).restart();
    }
    Ok(())
}

/// #23: writes reach the replicas three seconds late, twice. Nobody waits for replicas, so nobody
/// notices.
/// Everything, as without a fault.
pub(super) async fn lagging(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced().between()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for _ in 0..2 {
        hold_replication(&scene).await?;
        scene.sleep(3000).await;
        scene.servers.heal_between().await?;
        scene.sleep(500).await;
    }
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.finish(Judge::default()).await
}

/// #25 and #29: the primary is killed. A replica takes its place; holds and waits continue there.
/// Tokens, lost updates with fencing; losses reported; recovery.
pub(super) async fn primary_killed(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default()).await?;
    let places = stage(&mut scene).await?;
    let old = scene.servers.current_index();
    let killed = scene.kill_server("primary killed");
    let healed = recover(&mut scene, &places, RECOVERY).await?;
    let down = Duration::from_nanos(healed - killed);
    scene.note(format!("{} ms without a primary", down.as_millis()));
    restart_old(&mut scene, old).await?;
    finish(scene).await
}

/// #71: as #25 on PostgreSQL, but the primary waits for its replica: no hold is lost. Releases do
/// not wait, so a lock may be stranded.
/// Exclusion, tokens, lost updates; no hold lost; recovery.
pub(super) async fn synchronous(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced().fails_over()).await?;
    scene.servers.postgres()?.replicate_synchronously().await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.kill_server("primary killed");
    recover(&mut scene, &places, RECOVERY).await?;
    scene.finish(Judge { exclusion: true, losses: false, told: None, ..judge() }).await
}

/// #26: the primary is killed and comes back once a replica has taken its place: for a while, it
/// considers itself the primary. No client uses it.
/// As #25.
pub(super) async fn stale_primary(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default()).await?;
    let places = stage(&mut scene).await?;
    let old = scene.servers.current_index();
    scene.kill_server("primary killed");
    scene.servers.follow(old).await?;
    // Every Sentinel would send a client that asks before to the old primary.
    scene.servers.agree().await;
    scene.servers.process(old).restart();
    let healed = scene.healed();
    goes_on(&mut scene, &places, healed, RECOVERY).await?;
    let scripts = scene.servers.server(old)?.calls_of("evalsha").await;
    scene.expect(scripts == 0, format!("I1: {scripts} scripts ran at the stale primary"));
    finish(scene).await
}

/// #63: the primary stops answering, and resumes three seconds after a replica has taken its place.
/// As #25.
pub(super) async fn primary_stopped(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default()).await?;
    let places = stage(&mut scene).await?;
    scene.fault("primary stopped");
    let old = scene.servers.current_index();
    scene.servers.current().freeze();
    recover(&mut scene, &places, RECOVERY).await?;
    scene.servers.process(old).thaw();
    scene.sleep(2000).await;
    finish(scene).await
}

/// #64: a replica takes over by a manual failover while the primary runs, twice. Work continues at
/// once.
/// Tokens, lost updates with fencing; losses reported; recovery within 200 ms.
pub(super) async fn by_hand(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default()).await?;
    for round in 0..2 {
        let places = scene.stage(&format!("staged{round}"), 0, Some(1)).await?;
        scene.sleep(300).await;
        scene.fault("failover by hand");
        scene.servers.fail_over().await?;
        let healed = scene.healed();
        goes_on(&mut scene, &places, healed, PLANNED).await?;
        scene.servers.settle().await;
    }
    finish(scene).await
}

/// #65: the old primary is cut off from the other servers, with one client on its side and the
/// others on theirs; a replica takes its place. The client on its side continues there until the
/// partition ends; then it is told of its losses, and joins the others.
/// Tokens, lost updates with fencing; losses reported; recovery.
pub(super) async fn partitioned(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default().proxied().between()).await?;
    let places = scene.stage("staged", 2, Some(1)).await?;
    scene.sleep(300).await;
    let start = scene.fault("old primary cut off");
    let old = scene.servers.current_index();
    scene.servers.cut_between();
    scene.networks[0].cut_all_but(old);
    scene.networks[1..].iter().for_each(|network| network.set_server(old, &cut()));
    let cut_off = scene.stage("cut-off", 0, None).await?;
    scene.servers.follow(old).await?;
    let healed = scene.healed();
    for place in &cut_off {
        scene.clients[1].order(Order::Hold(place.clone())).await?;
    }
    let fresh = Duration::from_nanos(monotonic() - healed);
    scene.measure("new locks on the side of the others", Some(fresh), RECOVERY);
    count_stranded(&mut scene).await?;
    scene.release_well(1).await?;
    scene.sleep(3000).await;
    scene.expect_held(&places)?;
    scene.servers.heal_between().await?;
    scene.networks.iter().for_each(Network::heal);
    let back = scene.healed();
    for place in scene.staged("rejoined") {
        scene.clients[0].order(Order::Hold(place)).await?;
    }
    let rejoined = Duration::from_nanos(monotonic() - back);
    scene.note(format!("the client that was cut off is back after {} ms", rejoined.as_millis()));
    let notice = scene.until_lost(&cut_off, back, LONG_LEASE).await?;
    scene.measure("loss told after the partition", notice, TOLD);
    scene.release(0).await?;
    scene.release_well(2).await?;
    scene.servers.settle().await;
    scene.renew_admin().await?;
    // Both sides continue while neither can know of the other.
    let told = Duration::from_nanos(back - start) + TOLD;
    scene.finish(Judge { told: Some(told), ..judge() }).await
}

/// #27: two of three Sentinels are killed, then the last one: existing connections stay, and
/// nothing is noticed. Then the connections break: there is nobody to ask until the Sentinels are
/// back.
/// Everything; errors only while there is nobody to ask; recovery.
pub(super) async fn sentinels_lost(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for index in 0..2 {
        scene.servers.sentinel_mut(index)?.kill();
    }
    scene.servers.end_connections(On::Commands).await?;
    scene.sleep(1500).await;
    scene.servers.sentinel_mut(2)?.kill();
    scene.sleep(2000).await;
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.fault("connections broken without a Sentinel");
    scene.servers.end_connections(On::All).await?;
    scene.sleep(1500).await;
    for index in 0..3 {
        scene.servers.sentinel_mut(index)?.restart();
    }
    scene.healed();
    scene.sleep(1000).await;
    let judge = Judge {
        losses: true,
        failures: &["Backend(Unavailable)"],
        recovery: Duration::from_secs(2),
        ..Judge::default()
    };
    scene.finish(judge).await
}
