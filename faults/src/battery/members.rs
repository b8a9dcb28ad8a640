//! Faults of the members of a quorum. Tokens are ignored here: exclusion alone must prevent lost
//! updates.

use std::time::{Duration, Instant};

use lockcore_testkit::{Conditions, monotonic};

use crate::{
    deployment::{self, MEMBERS, Network},
    protocol::{Kind, Order, Place, Result, failure},
    report::{Report, Run},
    scene::{Judge, LEASE, SLACK, Scene, Setup, TIMEOUT},
};

/// The longest wait while a majority is up.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A hold stays at a member that its release has not reached until its lease ends. That is a longer
/// pause where the remaining members cannot do without that one.
const UNREACHED: Duration = LEASE.saturating_add(Duration::from_secs(1));

/// With a minority down, nothing is lost, nothing fails, and waiters enter.
fn judge() -> Judge {
    Judge { wakeup: LONGEST_PAUSE, always_failures: &[], growth: 32_000, ..Judge::default() }
}

/// A scene with working clients.
async fn open(run: Run, setup: Setup) -> Result<Scene> {
    let mut scene = Scene::open(run, setup.unfenced()).await?;
    scene.play().await?;
    Ok(scene)
}

/// Two random members.
fn minority(scene: &mut Scene) -> [usize; 2] {
    let one = scene.random.below(MEMBERS as u64) as usize;
    let other = (one + 1 + scene.random.below(MEMBERS as u64 - 1) as usize) % MEMBERS;
    [one, other]
}

/// A holder and a waiter, for the next fault. All members have the hold: only then can two of them
/// fail. A late member may get it later, or not at all.
async fn stage(scene: &mut Scene, what: &str) -> Result<(Vec<Place>, u64)> {
    for attempt in 0..20 {
        let places = scene.stage(&format!("{what} {attempt}"), 0, Some(1)).await?;
        if are_everywhere(scene, &places).await? {
            return Ok((places, monotonic()));
        }
        scene.release_well(0).await?;
    }
    Err(failure("this machine is too slow: no hold gets to all members"))
}

async fn are_everywhere(scene: &Scene, places: &[Place]) -> Result<bool> {
    for member in 0..MEMBERS {
        for place in places {
            let exists = ["EXISTS", &place.name];
            if scene.servers.server(member)?.try_query::<u8>(&exists).await? == 0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Two members have been down since then. For two leases, the clients work on without a long pause;
/// then the staged hold still exists, and is handed over to the waiter.
async fn endure(scene: &mut Scene, what: &str, watched: (Vec<Place>, u64)) -> Result<()> {
    endure_with(scene, what, watched, LONGEST_PAUSE).await
}

async fn endure_with(
    scene: &mut Scene,
    what: &str,
    watched: (Vec<Place>, u64),
    longest_pause: Duration,
) -> Result<()> {
    let (places, since) = watched;
    tokio::time::sleep(2 * LEASE).await;
    scene.measure_pause(&format!("longest pause, {what}"), since, longest_pause)?;
    scene.expect_held(&places)?;
    let released = monotonic();
    scene.release_well(0).await?;
    let taken = scene.until_taken(&places, released, 2 * LEASE).await?;
    scene.measure(&format!("handed over, {what}"), taken, Duration::from_millis(500));
    Ok(())
}

/// Waits until grants of members that have been away count again.
async fn rejoined() {
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
}

/// #55: two of five members stop answering for two leases, and resume; then two others.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn stopped(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup::default()).await?;
    for what in ["two stopped", "two others"] {
        let (members, watched) = (minority(&mut scene), stage(&mut scene, what).await?);
        members.iter().for_each(|member| scene.servers.process(*member).freeze());
        endure(&mut scene, what, watched).await?;
        members.iter().for_each(|member| scene.servers.process(*member).thaw());
        rejoined().await;
    }
    scene.finish(judge()).await
}

/// #56: eight clients want one lock at the same time, and their requests reach the members in
/// different orders: nobody has a majority. Back-offs are random, so one client soon does.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn split_votes(run: Run) -> Result<Report> {
    let one = Setup { kinds: vec![Kind::Exclusive], names: 1, ..Setup::default() };
    let setup = Setup { clients: 8, tasks: 4, hold_ms: (0, 5), ..one };
    let mut scene = open(run, Setup { proxied: true, ..setup }).await?;
    let watched = stage(&mut scene, "watched").await?;
    let apart = Conditions { jitter: Duration::from_millis(20), ..Conditions::default() };
    scene.networks.iter().for_each(|network| network.set(&apart));
    endure(&mut scene, "eight clients", watched).await?;
    scene.networks.iter().for_each(Network::heal);
    scene.finish(judge()).await
}

/// #57: two of five members are killed and come back empty; then two others. Their grants do not
/// count until all holds that they forgot must have ended.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn killed_empty(run: Run) -> Result<Report> {
    killed(open(run, Setup::default().forgetful()).await?).await
}

/// #67: two of five members are killed and come back with their append-only files; then two others.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn killed_durable(run: Run) -> Result<Report> {
    killed(open(run, Setup::default().durable()).await?).await
}

async fn killed(mut scene: Scene) -> Result<Report> {
    for what in ["two killed", "two others"] {
        let (members, watched) = (minority(&mut scene), stage(&mut scene, what).await?);
        members.iter().for_each(|member| scene.servers.process(*member).kill());
        let down = scene.random.ms(0, 1500);
        tokio::time::sleep(down).await;
        members.iter().for_each(|member| scene.servers.process(*member).restart());
        scene.note(format!("{members:?} down for {} ms", down.as_millis()));
        endure(&mut scene, what, watched).await?;
    }
    scene.renew_admin().await?;
    scene.finish(judge()).await
}

/// #72: a client that reaches three of five members acquires a lock there, and two of these are
/// killed and come back empty: four members do not know the hold. Its holder is told by its
/// deadline, and nobody gets the lock before, because these two do not count for a lease.
/// Exclusion, tokens, lost updates; takeover, recovery.
pub(super) async fn forgotten(run: Run) -> Result<Report> {
    let setup = Setup { proxied: true, ..Setup::default().forgetful() };
    let mut scene = open(run, setup).await?;
    for member in [0, 1] {
        scene.networks[0].set_server(member, &deployment::cut());
    }
    // The client cannot release its holds at the two members. Their leases end meanwhile.
    tokio::time::sleep(LEASE).await;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let killed = scene.fault("two of three members killed");
    [2, 3].into_iter().for_each(|member| scene.servers.process(member).kill());
    // Everybody notices.
    let down = scene.random.ms(300, 900);
    tokio::time::sleep(down).await;
    [2, 3].into_iter().for_each(|member| scene.servers.process(member).restart());
    scene.healed();
    let notice = scene.until_lost(&places, killed, 2 * LEASE).await?;
    scene.measure("loss told", notice, LEASE);
    let taken = scene.until_taken(&places, killed, 4 * LEASE).await?;
    // The lease for which they do not count begins when a client has reconnected to them, and
    // waiters that get errors until then ask once a second.
    scene.measure("taken over", taken, down + LEASE + Duration::from_secs(2));
    scene.networks.iter().for_each(Network::heal);
    rejoined().await;
    // The client that is cut off has to wait for those two.
    let judge = Judge { losses: true, wakeup: 2 * LEASE, ..Judge::default() };
    scene.finish(Judge { growth: 32_000, ..judge }).await
}

/// #68: all clients are cut off from two of five members, then two members are slower than allowed,
/// then each client is cut off from two others.
/// Everything, as without a fault; no pause of more than 2 s, and of 3 s at the end.
pub(super) async fn cut_off(run: Run) -> Result<Report> {
    let mut scene = open(run, Setup { proxied: true, ..Setup::default() }).await?;
    let slow = Conditions { latency: 2 * TIMEOUT, ..Conditions::default() };
    for (what, conditions) in [("two cut off", deployment::cut()), ("two slow", slow)] {
        let (members, watched) = (minority(&mut scene), stage(&mut scene, what).await?);
        for network in &scene.networks {
            members.iter().for_each(|member| network.set_server(*member, &conditions));
        }
        endure(&mut scene, what, watched).await?;
        scene.networks.iter().for_each(Network::heal);
        rejoined().await;
    }
    let what = "two cut off from each";
    let watched = stage(&mut scene, what).await?;
    for (client, network) in scene.networks.iter().enumerate() {
        for member in [client, client + 1] {
            network.set_server(member % MEMBERS, &deployment::cut());
        }
    }
    endure_with(&mut scene, what, watched, UNREACHED).await?;
    scene.networks.iter().for_each(Network::heal);
    rejoined().await;
    scene.finish(Judge { wakeup: UNREACHED, ..judge() }).await
}

/// #69: two of five members are killed and a third is stopped, for longer than a lease. Holders are
/// told of the loss by their deadlines, and an acquisition fails with an error that names the
/// members; then the killed ones come back empty, and work continues.
/// Exclusion, tokens, lost updates; recovery.
pub(super) async fn majority_gone(run: Run) -> Result<Report> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let setup = Setup { retry_for: PATIENCE, ..Setup::default().forgetful() };
    let mut scene = open(run, setup).await?;
    let (places, _) = stage(&mut scene, "staged").await?;
    let [one, other] = minority(&mut scene);
    let third = (0..MEMBERS).find(|member| ![one, other].contains(member)).unwrap_or(one);
    let gone = scene.fault("majority gone");
    scene.servers.process(one).kill();
    scene.servers.process(other).kill();
    scene.servers.process(third).freeze();
    let (fresh, start) = (scene.staged("fresh"), Instant::now());
    let refused = scene.clients[2].order(Order::Hold(fresh[0].clone())).await;
    // The last attempt may start when the retry time ends.
    let failed_after = start.elapsed();
    scene.measure("error", Some(failed_after), PATIENCE + 3 * TIMEOUT + SLACK);
    let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
    let is_clear = said.contains("3 of the 5 stores");
    scene.expect(is_clear, format!("I9: no majority was left, and the error was: {said}"));
    let notice = scene.until_lost(&places, gone, 2 * LEASE).await?;
    scene.measure("loss told", notice, LEASE);
    scene.release(0).await?;
    scene.sleep(500).await;
    scene.servers.process(one).restart();
    scene.servers.process(other).restart();
    scene.servers.process(third).thaw();
    scene.healed();
    scene.renew_admin().await?;
    scene.sleep(LEASE.as_millis() as u64).await;
    let judge = Judge { losses: true, recovery: LONGEST_PAUSE, ..Judge::default() };
    let judge = Judge { failures: &["Backend(Unavailable)"], growth: 32_000, ..judge };
    scene.finish(judge).await
}
