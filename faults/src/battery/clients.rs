//! Faults of client processes.

use std::{fs, path::PathBuf, time::Duration};

use rustix::process::Signal;

use crate::{
    protocol::{Answer, Kind, Order, Place, Result, failure},
    report::{Report, Run},
    scene::{Judge, LEASE, SLACK, Scene, Setup},
};

/// Not a fault of the table, but a proof that the check for lost updates works: tokens are ignored,
/// holders do not check whether they still hold, and are stopped for longer than their lease.
/// Updates must be lost, and must be found.
pub(super) async fn control(run: Run) -> Result<Report> {
    let setup = Setup { careless: true, hold_ms: (20, 200), ..Setup::default().unfenced() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    for _ in 0..3 {
        for index in [0, 1] {
            scene.stop_client(index)?;
        }
        scene.sleep(2500).await;
        for index in [0, 1] {
            scene.continue_client(index)?;
        }
        scene.sleep(300).await;
    }
    let mut report =
        scene.finish(Judge { losses: true, must_lose_updates: true, ..Judge::default() }).await?;
    report.notes.push(format!("{} lost updates found, as there must be", report.lost_updates));
    Ok(report)
}

/// #1: a client that holds a lock of each kind, and works on others, is killed. The waiters take
/// over when its lease has ended.
/// Exclusion, tokens, server truth, wake-ups, nothing left behind.
pub(super) async fn holder_killed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let pause = scene.random.ms(0, 700);
    tokio::time::sleep(pause).await;
    let killed = scene.kill_client(0)?;
    let takeover = scene.until_taken(&places, killed, 2 * LEASE).await?;
    scene.measure("takeover after SIGKILL", takeover, scene.ends_within() + SLACK);
    scene.finish(Judge::default()).await
}

/// #80: a client that keeps released locks is killed meanwhile. For everybody else that is a killed
/// holder: waiters for these locks get them when the leases have ended.
/// Exclusion, tokens, server truth, nothing left behind.
pub(super) async fn keeper_killed(run: Run) -> Result<Report> {
    const KEEPER: usize = 1;
    let setup = Setup { linger: Duration::from_millis(100), ..Setup::default().unfenced() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let kept = keep(&mut scene, KEEPER).await?;
    let killed = scene.kill_client(KEEPER)?;
    for place in &kept {
        scene.clients[0].order(Order::Wait(place.clone())).await?;
    }
    let takeover = scene.until_taken(&kept, killed, 2 * LEASE).await?;
    scene.measure("takeover after SIGKILL", takeover, scene.ends_within() + SLACK);
    scene.finish(Judge::default()).await
}

/// Stops a client while it keeps locks, and returns them.
async fn keep(scene: &mut Scene, index: usize) -> Result<Vec<Place>> {
    const ATTEMPTS: usize = 20;
    let mut places = scene.staged("kept");
    places.retain(|place| place.kind == Kind::Exclusive);
    for _ in 0..ATTEMPTS {
        for place in &places {
            scene.clients[index].order(Order::Hold(place.clone())).await?;
        }
        scene.release_well(index).await?;
        scene.stop_client(index)?;
        let mut kept = Vec::new();
        for place in &places {
            if scene.tell(&["EXISTS", &place.name]).await? == redis::Value::Int(1) {
                kept.push(place.clone());
            }
        }
        if !kept.is_empty() {
            return Ok(kept);
        }
        scene.continue_client(index)?;
    }
    Err(failure(format!("a client kept nothing in {ATTEMPTS} attempts")))
}

/// #2: a client is stopped for longer than its lease, and resumes. Others take over; it is told of
/// the loss before anything else, its writes are rejected by their tokens, and it releases no other
/// hold.
/// Exclusion up to its deadline, tokens, server truth, lost updates with fencing.
pub(super) async fn holder_stopped_long(run: Run) -> Result<Report> {
    let setup = Setup { careless: true, hold_ms: (20, 200), ..Setup::default() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let stopped = scene.stop_client(0)?;
    let takeover = scene.until_taken(&places, stopped, 2 * LEASE).await?;
    scene.measure("takeover after SIGSTOP", takeover, scene.ends_within() + SLACK);
    let extra = scene.random.ms(100, 1000);
    tokio::time::sleep(extra).await;
    let continued = scene.continue_client(0)?;
    let notice = scene.until_lost(&places, continued, LEASE).await?;
    scene.measure("loss told after SIGCONT", notice, SLACK);
    let released = scene.release(0).await?;
    let all_lost = released.iter().all(|(_, failure)| failure.as_deref() == Some("Lost"));
    scene.expect(
        all_lost,
        format!("I9: the release of a lost hold said something else: {released:?}"),
    );
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}

/// #3: a client is stopped for less than its remaining lease, several times. It keeps its holds,
/// and renewals resume.
/// Exclusion, server truth; no hold is lost.
pub(super) async fn holder_stopped_short(run: Run) -> Result<Report> {
    // A fair hold that a release has granted at first lasts only as long as its place, so places
    // are kept for longer than a lease here: then releases grant nothing.
    let setup = Setup { queue_timeout: Duration::from_secs(3), ..Setup::default().unfenced() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for _ in 0..3 {
        scene.stop_client(0)?;
        // A renewal is at most 0.67 s old, so 1.3 s are left.
        let stopped = scene.random.ms(500, 900);
        tokio::time::sleep(stopped).await;
        scene.continue_client(0)?;
        scene.sleep(900).await;
    }
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.finish(Judge::default()).await
}

/// A process group with a small share of a processor.
struct Starvation(PathBuf);

impl Starvation {
    /// 5 % of a processor for a process; `None` if there are no such groups, or no access to them.
    fn of(pid: u32) -> Option<Self> {
        let group = Self(format!("/sys/fs/cgroup/cpu/lockcore-faults-{pid}").into());
        fs::create_dir(&group.0).ok()?;
        let set = [
            ("cpu.cfs_period_us", "100000".into()),
            ("cpu.cfs_quota_us", "5000".into()),
            ("cgroup.procs", pid.to_string()),
        ];
        let all = set.into_iter().all(|(file, value)| fs::write(group.0.join(file), value).is_ok());
        all.then_some(group)
    }

    /// The number of periods in which it got less than it wanted.
    fn throttled(&self) -> u64 {
        let told = fs::read_to_string(self.0.join("cpu.stat")).unwrap_or_default();
        let count = told.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Starvation {
    fn drop(&mut self) {
        // Its processes are moved to the parent group; then it can be removed.
        let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write("/sys/fs/cgroup/cpu/cgroup.procs", pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// #4: a client gets 5 % of a processor (by a cgroup, or else by being stopped 95 % of the time).
/// Its holds are renewed, or it is told of their loss by their deadline: it is never inside with
/// another.
/// Exclusion, server truth, tokens.
pub(super) async fn client_starved(run: Run) -> Result<Report> {
    let setup = Setup { tasks: 6, ..Setup::default() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    scene.stage("staged", 0, Some(1)).await?;
    scene.fault("starved");
    let starvation = scene.clients[0].pid().and_then(Starvation::of);
    match &starvation {
        Some(_) => {
            scene.log.of(
                lockcore_testkit::monotonic(),
                "client0",
                0,
                lockcore_testkit::What::Stopped,
            );
            scene.sleep(4000).await;
            let throttled = starvation.as_ref().map_or(0, Starvation::throttled);
            scene.expect(throttled > 0, "the rig: the client was never without a processor");
            scene.note(format!("without a processor in {throttled} of 40 periods"));
            drop(starvation);
            scene.log.of(
                lockcore_testkit::monotonic(),
                "client0",
                0,
                lockcore_testkit::What::Continued,
            );
        }
        None => {
            scene.note("no cgroup for processor time: stopped for 95 % of the time instead");
            for _ in 0..20 {
                scene.stop_client(0)?;
                scene.sleep(190).await;
                scene.continue_client(0)?;
                scene.sleep(10).await;
            }
        }
    }
    scene.healed();
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}

/// #5: all threads of a client's runtime are blocked for two leases by code that does not yield.
/// Its holds are lost, and known to be lost as soon as anything runs again.
/// Exclusion up to its deadline, tokens.
pub(super) async fn runtime_blocked(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let blocked = lockcore_testkit::monotonic();
    scene.log.of(blocked, "client0", 0, lockcore_testkit::What::Stopped);
    scene.clients[0].send(&Order::Block(2 * LEASE)).await?;
    let takeover = scene.until_taken(&places, blocked, 2 * LEASE).await?;
    scene.measure("takeover", takeover, scene.ends_within() + SLACK);
    scene.clients[0].answer().await?;
    // Whenever the order was answered, the runtime is free once it answers the next one.
    scene.clients[0].order(Order::Vitals).await?;
    tokio::time::sleep(Duration::from_nanos(
        (blocked + 4_050_000_000).saturating_sub(lockcore_testkit::monotonic()),
    ))
    .await;
    scene.log.of(lockcore_testkit::monotonic(), "client0", 0, lockcore_testkit::What::Continued);
    let notice = scene.until_lost(&places, blocked, LEASE).await?;
    scene.measure("loss told after the block began", notice, 2 * LEASE + 2 * SLACK);
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}

/// #45: the host of a client is suspended for two leases: its lease clock jumps, but its timers do
/// not. Holds end at once, and the loss is reported within the second in which the core checks.
/// Exclusion, tokens; server truth.
pub(super) async fn host_suspended(run: Run) -> Result<Report> {
    let setup = Setup { can_suspend: true, ..Setup::default() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let suspended = lockcore_testkit::monotonic();
    scene.clients[0].order(Order::Suspend(2 * LEASE)).await?;
    let notice = scene.until_lost(&places, suspended, LEASE).await?;
    scene.measure("loss told after resuming", notice, Duration::from_secs(1) + SLACK);
    let released = scene.release(0).await?;
    let all_lost = released.iter().all(|(_, failure)| failure.as_deref() == Some("Lost"));
    scene.expect(all_lost, format!("I4: a hold outlived the suspension: {released:?}"));
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}

/// #60: a client process that holds and waits gets SIGTERM. It ends without clean-up; its holds end
/// with their leases.
/// Exclusion, server truth; takeover within a lease.
pub(super) async fn terminated(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let t = lockcore_testkit::monotonic();
    scene.log.of(t, "client0", 0, lockcore_testkit::What::Killed);
    scene.clients[0].signal(Signal::TERM)?;
    let takeover = scene.until_taken(&places, t, 2 * LEASE).await?;
    scene.measure("takeover after SIGTERM", takeover, scene.ends_within() + SLACK);
    super::cancelling::runtime_dropped(&mut scene).await?;
    scene.finish(Judge::default()).await
}

/// #44: the wall clock of every client jumps ahead by a day, back by a day, and back and forth.
/// That has no effect at all.
/// Everything, as without a fault.
pub(super) async fn client_wall_clock(run: Run) -> Result<Report> {
    let Some(clock) = crate::clock::WallClock::make()? else {
        return Ok(Report::impossible(
            run,
            "there is no C compiler (cc) for the library that moves the clock",
        ));
    };
    let setup = Setup { client_environment: clock.environment(), ..Setup::default().unfenced() };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let day = Duration::from_secs(86400);
    let before = wall(&mut scene).await?;
    clock.ahead(day)?;
    let jumped = wall(&mut scene).await?.saturating_sub(before);
    scene.expect(jumped >= 86400, format!("the rig: the clock did not jump but by {jumped} s"));
    for _ in 0..10 {
        scene.sleep(150).await;
        clock.behind(day)?;
        scene.sleep(150).await;
        clock.ahead(day)?;
    }
    clock.ahead(Duration::ZERO)?;
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.finish(Judge::default()).await
}

/// The first client's wall clock, in seconds.
async fn wall(scene: &mut Scene) -> Result<u64> {
    match scene.clients[0].order(Order::Vitals).await? {
        Answer::Vitals { wall, .. } => Ok(wall),
        _ => Ok(0),
    }
}
