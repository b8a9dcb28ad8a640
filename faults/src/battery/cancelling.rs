//! Faults caused by callers: dropped futures and runtimes, crowds.

use std::time::{Duration, Instant};

use lockcore::{Lock, LockGuard, Locks};
use lockcore_testkit::{RedisServer, poll_times};
use tokio::task::JoinSet;

use crate::{
    deployment::{Deployment, ServerSetup, Servers},
    protocol::{Kind, PERMITS, Result, failure},
    report::{Measure, Report, Run},
    scene::{LEASE, SLACK, Scene, Stall, is_of_lock},
    store::{Connecting, Store},
};

pub(super) async fn connect(store: &Store) -> Result<Locks> {
    let how = Connecting {
        response_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(2),
        allow_eviction: false,
        lease: LEASE,
        rejoin_after: Duration::ZERO,
        linger: Duration::ZERO,
    };
    Ok(store.connect(&how).await?.queue_timeout(Duration::from_secs(1)).build()?)
}

/// The lock of a kind, in the mode that is not shared.
pub(super) fn whole(locks: &Locks, kind: Kind, name: &str) -> Lock {
    match kind {
        Kind::Exclusive => locks.lock(name),
        Kind::Fair => locks.fair_lock(name),
        Kind::ReadWrite => locks.rw_lock(name).write(),
        Kind::Semaphore => locks.semaphore(name, PERMITS).permits(PERMITS),
    }
}

/// #58: an acquisition is dropped after n polls, for n from 0 to 24, of a free lock, and of one
/// that is held and then released. The next waiter has it at once: there is no orphan, and a
/// wake-up that the dropped one had taken is passed on. The same holds for a dropped release.
/// Nothing left behind; the wait of the next one is measured.
pub(super) async fn cancelled(run: Run) -> Result<Report> {
    let servers = Servers::start(run.on, &ServerSetup::default()).await?;
    let store = servers.store("");
    let (dropping, other) = (connect(&store).await?, connect(&store).await?);
    let mut report = Report::new(run, run.on.kinds());
    for kind in run.on.kinds().iter().copied() {
        let mut longest = Duration::ZERO;
        for polls in 0..25 {
            for contended in [false, true] {
                let name = format!("{}-{polls}-{contended}", kind.short());
                let holder = if contended {
                    Some(whole(&other, kind, &name).acquire().await?)
                } else {
                    None
                };
                let acquire = poll_times(polls, whole(&dropping, kind, &name).acquire());
                drop(tokio::time::timeout(Duration::from_millis(20), acquire).await);
                drop(holder);
                let start = Instant::now();
                let next =
                    tokio::time::timeout(5 * LEASE, whole(&other, kind, &name).acquire()).await;
                longest = longest.max(start.elapsed());
                let next: LockGuard =
                    next.map_err(|_| failure(format!("{name}: nobody comes in")))??;
                report.grants += 1;
                // A release is dropped as well, and continues in the background.
                drop(poll_times(polls % 3, next.release()).await);
            }
        }
        let (took, bound, stall) = (Some(longest), Duration::from_millis(600), SLACK);
        report.measure(Measure {
            what: format!("next after a drop, {}", kind.short()),
            took,
            bound,
            stall,
        });
    }
    other.close().await?;
    dropping.close().await?;
    quiet(&servers, &mut report, LEASE + run.on.late()).await?;
    Ok(report)
}

/// Waits until nothing is held and nobody listens, for at most `time` and a second.
async fn quiet(servers: &Servers, report: &mut Report, time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let [mut channels, mut held, mut endless] = [const { Vec::new() }; 3];
        held.extend(servers.owners().await?.into_iter().map(|(name, _)| name));
        for server in servers.primaries().await {
            channels.extend(listened(server).await);
            held.extend(held_keys(server).await);
            endless.extend(server.keys_without_expiry().await);
        }
        if held.is_empty() && endless.is_empty() && channels.is_empty() {
            return Ok(());
        }
        if start.elapsed() > time + Duration::from_secs(1) {
            held.truncate(5);
            report.findings.push(format!("I7: left behind: {held:?} {endless:?} {channels:?}"));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The channels with subscribed clients, on any deployment.
async fn listened(server: &RedisServer) -> Vec<String> {
    let mut channels = server.channels().await;
    channels.retain(|channel| !channel.starts_with("__sentinel__"));
    channels.extend(server.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await);
    channels
}

async fn held_keys(server: &RedisServer) -> Vec<String> {
    let mut held = Vec::new();
    for key in server.query::<Vec<String>>(&["KEYS", "*"]).await {
        let kind: String = server.query(&["TYPE", &key]).await;
        let is_held = kind != "none" && is_of_lock(&key) && !key.contains("sem");
        if is_held || key.ends_with(":timeout") {
            held.push(key);
        }
    }
    held
}

/// Part of #60: a runtime ends while guards exist and acquisitions wait in it; the guards are
/// dropped afterwards. No panic; the locks are free when their leases have ended.
pub(super) async fn runtime_dropped(scene: &mut Scene) -> Result<()> {
    let (store, kinds) = (scene.servers.store(""), scene.on.kinds());
    let of_runtime = store.clone();
    let ended = tokio::task::spawn_blocking(move || -> Result<()> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let guards = runtime.block_on(async {
            let (holding, waiting) = (connect(&of_runtime).await?, connect(&of_runtime).await?);
            let mut guards = Vec::new();
            for kind in kinds.iter().copied() {
                let name = format!("runtime-{}", kind.short());
                guards.push(whole(&holding, kind, &name).acquire().await?);
                for locks in [&waiting, &holding] {
                    tokio::spawn(whole(locks, kind, &name).acquire());
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(guards)
        })?;
        drop(runtime);
        drop(guards);
        Ok(())
    });
    // A panic in a destructor ends the task with an error.
    ended.await??;
    let start = Instant::now();
    let locks = connect(&store).await?;
    for kind in kinds.iter().copied() {
        let acquire = whole(&locks, kind, &format!("runtime-{}", kind.short())).acquire();
        let guard = tokio::time::timeout(3 * LEASE, acquire).await;
        guard
            .map_err(|_| failure("a lock stays held after its runtime has ended"))??
            .release()
            .await?;
    }
    let took = start.elapsed();
    locks.close().await?;
    scene.measure("free after the runtime's end", Some(took), scene.ends_within() + SLACK);
    Ok(())
}

/// #61: 10,000 tasks of one client wait for one name, then 10,000 names are held and renewed for
/// two leases. One connection for messages, one task woken per release, no hold lost, memory and
/// tasks back to the initial level.
pub(super) async fn crowd(run: Run) -> Result<Report> {
    // On a quorum, each request goes to all members.
    let crowd_size = match run.on {
        // Each hold has its own lease, and a separate request for each renewal.
        Deployment::Etcd => 400,
        on => 10_000 / on.members(),
    };
    let servers = Servers::start(run.on, &ServerSetup::default()).await?;
    let store = servers.store("");
    let (locks, other) = (connect(&store).await?, connect(&store).await?);
    let mut report = Report::new(run, &[Kind::Exclusive]);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let gate = other.lock("one").acquire().await?;
    let mut crowd = JoinSet::new();
    for _ in 0..crowd_size {
        let acquire = locks.lock("one").acquire();
        crowd.spawn(async move { acquire.await?.release().await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = servers.commands().await;
    let mut listening = 0;
    for server in servers.primaries().await {
        let clients: String = server.query(&["CLIENT", "LIST"]).await;
        listening += clients.lines().filter(|line| listens(line)).count();
    }
    if listening > run.on.members() {
        report.findings.push(format!("I8: {listening} connections listen to one name"));
    }
    let start = Instant::now();
    gate.release().await?;
    while let Some(done) = crowd.join_next().await {
        done??;
        report.grants += 1;
    }
    let commands = servers.commands().await - before;
    report.notes.push(format!(
        "{crowd_size} waiters served in {:?} with {commands} commands",
        start.elapsed()
    ));
    if commands > 3 * (crowd_size * run.on.requests()) as u64 {
        report.findings.push(format!("I10: {commands} commands for {crowd_size} holds"));
    }
    let (mut guards, stall) = (Vec::new(), Stall::start());
    for first in (0..crowd_size).step_by(200) {
        let mut some = JoinSet::new();
        for number in first..first + 200 {
            some.spawn(locks.lock(format!("many-{number}")).acquire());
        }
        while let Some(guard) = some.join_next().await {
            guards.push(guard??);
        }
    }
    report.grants += guards.len();
    tokio::time::sleep(2 * LEASE).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    if lost > 0 {
        report.findings.push(format!(
            "I4: {lost} of {crowd_size} holds were lost without a fault, this machine was late by {:?} \
             at most",
            stall.longest()
        ));
    }
    report.losses = lost;
    drop(guards);
    locks.close().await?;
    other.close().await?;
    // A release may not reach a late member of a quorum, and an earlier renewal may arrive late.
    let lates = if run.on.members() > 1 { LEASE } else { run.on.late() };
    quiet(&servers, &mut report, LEASE + lates).await?;
    drop((locks, other));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let now = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    if now > tasks {
        report.findings.push(format!("I8: {now} tasks, {tasks} before"));
    }
    report.notes.push(format!("there is no cap on waiters: {crowd_size} are served"));
    Ok(report)
}

/// Returns `true` if a line of `CLIENT LIST` is of a client that listens to one channel.
fn listens(line: &str) -> bool {
    let is_of_client = !line.contains(" name=sentinel-");
    is_of_client && (line.contains(" sub=1") || line.contains(" ssub=1"))
}

/// #59: a copy of a client with the same memory, as after `fork` or from a snapshot of a virtual
/// machine.
pub(super) async fn cloned(run: Run) -> Result<Report> {
    Ok(Report::impossible(
        run,
        "`fork` in a program with threads needs unsafe code, which is forbidden here, and there are no snapshots; by its construction a copy \
         draws the same ids as its original: do not go on in a forked child with a client of its parent",
    ))
}
