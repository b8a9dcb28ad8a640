//! Faults of the members of an etcd cluster. Tokens are ignored here: exclusion alone must prevent
//! lost updates.

use std::time::{Duration, Instant};

use lockcore_testkit::{Conditions, On, monotonic};

use crate::{
    deployment::{ETCD_MEMBERS, Network, cut},
    protocol::{Order, Place, Result, failure},
    report::{Report, Run},
    scene::{Judge, LEASE, SLACK, Scene, Setup, TIMEOUT},
};

/// The longest wait while a majority is up, including elections of another leader.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The maximum time that the members, as configured, take to miss their leader and elect another.
const ELECTION: Duration = Duration::from_millis(1_200);

/// A new leader grants every lease its full time again, and looks for expired ones a while later.
/// This is how long the hold of a dead client may exist after an election.
const RENEWED: Duration = LEASE.saturating_add(Duration::from_secs(1));

/// With one member down, nothing is lost, and waiters enter. A single attempt may fail: its client
/// has to discover that the member is down.
fn judge() -> Judge {
    Judge {
        wakeup: LONGEST_PAUSE,
        recovery: LONGEST_PAUSE,
        failures: &["Backend(Unavailable)"],
        growth: 32_000,
        ..Judge::default()
    }
}

/// A scene with working clients. Their holds outlive an election, which a busy machine may cause by
/// itself.
async fn open(run: Run) -> Result<Scene> {
    open_with(run, Setup::default().patient()).await
}

async fn open_with(run: Run, setup: Setup) -> Result<Scene> {
    let mut scene = Scene::open(run, setup.unfenced()).await?;
    scene.play().await?;
    Ok(scene)
}

/// A holder and a waiter, for the next fault.
async fn stage(scene: &mut Scene, what: &str) -> Result<Vec<Place>> {
    scene.stage(what, 0, Some(1)).await
}

/// One member has been down since `since`. The staged hold is handed over to the waiter at once,
/// whose stream of wake-ups may be one of that member. For three leases, the clients work on
/// without a long pause; then a hold that was staged at the beginning still exists.
async fn endure(scene: &mut Scene, what: &str, places: &[Place], since: u64) -> Result<()> {
    hand_over(scene, &format!("{what}, at once"), places).await?;
    let places = stage(scene, &format!("{what}, kept")).await?;
    tokio::time::sleep(3 * LEASE).await;
    scene.measure_pause(&format!("longest pause, {what}"), since, LONGEST_PAUSE)?;
    hand_over(scene, what, &places).await
}

async fn hand_over(scene: &mut Scene, what: &str, places: &[Place]) -> Result<()> {
    scene.expect_held(places)?;
    let released = monotonic();
    scene.release_well(0).await?;
    let taken = scene.until_taken(places, released, 2 * LEASE).await?;
    scene.measure(&format!("handed over, {what}"), taken, LONGEST_PAUSE);
    Ok(())
}

/// A random follower, other than the last one.
async fn follower(scene: &mut Scene, before: Option<usize>) -> Result<usize> {
    let mut followers = scene.servers.etcd()?.followers().await;
    followers.retain(|member| Some(*member) != before);
    let picked = scene.random.pick(&followers).copied();
    picked.ok_or_else(|| failure("there are no followers"))
}

/// Waits until there is another leader. Returns how long a lock may be unavailable: if this machine
/// is so busy that the election takes longer than configured, that is not the fault of the clients.
async fn elected(scene: &mut Scene, since: u64) -> Result<Duration> {
    scene.servers.etcd()?.leader().await;
    let without = Duration::from_nanos(monotonic() - since);
    scene.note(format!("{} ms without a leader", without.as_millis()));
    Ok(LONGEST_PAUSE.max(without + LONGEST_PAUSE - ELECTION))
}

/// #73: the leader is killed every few seconds, and restarted; each time the others elect another
/// one. Holds outlive that.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn leaders_killed(run: Run) -> Result<Report> {
    let mut scene = open(run).await?;
    let places = stage(&mut scene, "staged").await?;
    for round in 1..=4 {
        let leader = scene.servers.etcd()?.leader().await;
        scene.servers.turn_to(leader);
        let killed = scene.kill_server("leader killed");
        let longest_pause = elected(&mut scene, killed).await?;
        let down = scene.random.ms(500, 1500);
        tokio::time::sleep(down).await;
        scene.servers.process(leader).restart();
        scene.healed();
        let pause = scene.random.ms(1000, 2000);
        tokio::time::sleep(pause).await;
        scene.measure_pause(&format!("longest pause {round}"), killed, longest_pause)?;
    }
    hand_over(&mut scene, "in the end", &places).await?;
    scene.finish(judge()).await
}

/// #74: a follower stops answering for three leases, and resumes; then the other one.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn followers_stopped(run: Run) -> Result<Report> {
    let mut scene = open(run).await?;
    let mut before = None;
    for _ in 0..2 {
        let member = follower(&mut scene, before).await?;
        let what = format!("member {member} stopped");
        let places = stage(&mut scene, &what).await?;
        let since = monotonic();
        scene.servers.process(member).freeze();
        endure(&mut scene, &what, &places, since).await?;
        scene.servers.process(member).thaw();
        scene.sleep(500).await;
        before = Some(member);
    }
    scene.finish(judge()).await
}

/// #75: the leader stops answering, as if cut off from the others; they elect another one. It
/// resumes 3 s later, and at first considers itself the leader. It has been stopped for less than
/// the rest of any lease: otherwise a version with etcd's issue 15247 would, on resuming, end
/// leases that were renewed meanwhile at the new leader.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn leader_stopped(run: Run) -> Result<Report> {
    let mut scene = open(run).await?;
    for round in ["one leader", "the next leader"] {
        let places = stage(&mut scene, round).await?;
        let leader = scene.servers.etcd()?.leader().await;
        let since = scene.fault("leader stopped");
        scene.servers.process(leader).freeze();
        let longest_pause = elected(&mut scene, since).await?;
        scene.sleep(3000).await;
        scene.servers.process(leader).thaw();
        scene.healed();
        scene.sleep(2000).await;
        scene.measure_pause(&format!("longest pause, {round}"), since, longest_pause)?;
        hand_over(&mut scene, round, &places).await?;
    }
    scene.finish(judge()).await
}

/// #76: a follower is killed and comes back with its data; then the other one.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn followers_killed(run: Run) -> Result<Report> {
    let mut scene = open(run).await?;
    let mut before = None;
    for _ in 0..2 {
        let member = follower(&mut scene, before).await?;
        let what = format!("member {member} killed");
        let places = stage(&mut scene, &what).await?;
        let since = monotonic();
        scene.servers.process(member).kill();
        let down = scene.random.ms(0, 1500);
        tokio::time::sleep(down).await;
        scene.servers.process(member).restart();
        scene.note(format!("member {member} down for {} ms", down.as_millis()));
        endure(&mut scene, &what, &places, since).await?;
        before = Some(member);
    }
    scene.finish(judge()).await
}

/// #77: a follower is killed and loses its data. It is removed from the cluster and added again,
/// which is etcd's only way to replace it.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn replaced(run: Run) -> Result<Report> {
    let mut scene = open(run).await?;
    let places = stage(&mut scene, "staged").await?;
    let lost = follower(&mut scene, None).await?;
    let since = monotonic();
    scene.servers.process(lost).kill();
    scene.servers.etcd_mut()?.replace(lost).await;
    endure(&mut scene, "one replaced", &places, since).await?;
    // The new one is needed for the majority.
    let places = stage(&mut scene, "without another").await?;
    let other = follower(&mut scene, Some(lost)).await?;
    let since = monotonic();
    scene.servers.process(other).kill();
    endure(&mut scene, "another killed", &places, since).await?;
    scene.servers.process(other).restart();
    scene.finish(judge()).await
}

/// #36 on etcd: all connections go silent at once, half open. A client has one to each member that
/// it has used so far, and replaces it when an HTTP/2 ping is not answered, after 9 s at most.
/// Exclusion; holds that last longer are kept; a free lock is acquired within 10 s.
pub(super) async fn connections_half_open(run: Run) -> Result<Report> {
    const REPLACED: Duration = Duration::from_secs(10);
    let lease = 2 * REPLACED;
    let setup = Setup { lease, retry_for: lease, ..Setup::default().proxied() };
    let mut scene = open_with(run, setup).await?;
    let places = stage(&mut scene, "staged").await?;
    let before = scene.networks[0].accepted();
    let since = monotonic();
    scene.networks.iter().for_each(|network| network.freeze(On::All));
    tokio::time::sleep(REPLACED).await;
    let replaced = scene.networks[0].accepted() > before;
    scene.expect(replaced, "I6: no silent connection was replaced within 10 s");
    scene.sleep(1000).await;
    scene.measure_pause("longest pause", since, REPLACED)?;
    hand_over(&mut scene, "on new connections", &places).await?;
    scene.networks.iter().for_each(Network::heal);
    scene.finish(Judge { wakeup: REPLACED, ..judge() }).await
}

/// #78: the leader is killed and a follower is stopped, for longer than a lease. Holders are told
/// of the loss by their deadlines, and an acquisition fails with an error that names a member; then
/// both come back, and work continues.
/// Exclusion, tokens, lost updates; recovery.
pub(super) async fn majority_gone(run: Run) -> Result<Report> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let setup = Setup { retry_for: PATIENCE, ..Setup::default() };
    let mut scene = open_with(run, setup).await?;
    let places = stage(&mut scene, "staged").await?;
    let follower = follower(&mut scene, None).await?;
    let leader = scene.servers.etcd()?.leader().await;
    let gone = scene.fault("majority gone");
    scene.servers.process(follower).freeze();
    scene.servers.process(leader).kill();
    let (fresh, start) = (scene.staged("fresh"), Instant::now());
    let refused = scene.clients[2].order(Order::Hold(fresh[0].clone())).await;
    // The last attempt may start when the retry time ends. Its effects are undone.
    let answer = scene.setup.response_timeout;
    scene.measure("error", Some(start.elapsed()), PATIENCE + 2 * answer + SLACK);
    let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
    scene.expect(said.contains("etcd at 127.0.0.1:"), format!("I9: the error was: {said}"));
    let notice = scene.until_lost(&places, gone, 2 * LEASE).await?;
    scene.measure("loss told", notice, LEASE);
    scene.release(0).await?;
    scene.sleep(500).await;
    scene.servers.process(follower).thaw();
    scene.servers.etcd_mut()?.restart_all(&[leader]);
    scene.servers.etcd()?.leader().await;
    let back = scene.healed();
    for (what, places, bound) in [
        ("new locks after the return", &fresh[1..], LONGEST_PAUSE),
        ("taken over after the return", &places, RENEWED + TIMEOUT),
    ] {
        for place in places {
            scene.clients[2].order(Order::Hold(place.clone())).await?;
        }
        let had = Duration::from_nanos(monotonic() - back);
        scene.measure(what, Some(had), bound);
    }
    scene.release_well(2).await?;
    scene.finish(Judge { losses: true, recovery: RENEWED + TIMEOUT, ..judge() }).await
}

/// #79: all clients are cut off from the leader; then a member answers later than clients wait;
/// then each client is cut off from another member. The other members stand in.
/// Everything, as without a fault; no pause of more than 2 s.
pub(super) async fn cut_off(run: Run) -> Result<Report> {
    let mut scene = open_with(run, Setup { proxied: true, ..Setup::default().patient() }).await?;
    let slow = Conditions { latency: 2 * TIMEOUT, ..Conditions::default() };
    for (what, conditions) in [("leader cut off", cut()), ("leader slow", slow)] {
        let places = stage(&mut scene, what).await?;
        let leader = scene.servers.etcd()?.leader().await;
        let since = monotonic();
        scene.networks.iter().for_each(|network| network.set_server(leader, &conditions));
        endure(&mut scene, what, &places, since).await?;
        scene.networks.iter().for_each(Network::heal);
        scene.sleep(500).await;
    }
    let what = "one cut off from each";
    let places = stage(&mut scene, what).await?;
    let since = monotonic();
    for (client, network) in scene.networks.iter().enumerate() {
        network.set_server(client % ETCD_MEMBERS, &cut());
    }
    endure(&mut scene, what, &places, since).await?;
    scene.networks.iter().for_each(Network::heal);
    scene.finish(judge()).await
}
