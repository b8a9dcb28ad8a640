//! Faults of the server.

use std::{
    fs,
    time::{Duration, Instant},
};

use lockcore_testkit::monotonic;

use crate::{
    deployment::{ServerSetup, name_at_home},
    process::ClientProcess,
    protocol::{Kind, Order, Result, failure},
    report::{Report, Run},
    scene::{self, Judge, LEASE, RENEWAL, SLACK, Scene, Setup, TIMEOUT},
};

/// The time limit for noticing a loss: a renewal that finds nothing, and its answer.
pub(super) const NOTICE: Duration = RENEWAL.saturating_add(TIMEOUT).saturating_add(SLACK);

/// #6: the server stops for 200 ms, less than the response timeout, repeatedly. Everything is late,
/// and nothing else.
/// Everything, as without a fault.
pub(super) async fn stopped_short(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for _ in 0..8 {
        scene.servers.current().freeze();
        scene.sleep(200).await;
        scene.servers.current().thaw();
        let pause = scene.random.ms(50, 400);
        tokio::time::sleep(pause).await;
    }
    scene.expect_held(&places)?;
    scene.finish(Judge::default()).await
}

/// #7: the server stops for two leases. Holders are told of the loss by their own deadlines, before
/// it resumes; then others enter.
/// Exclusion, server truth; recovery.
pub(super) async fn stopped_long(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    scene.fault("server stopped");
    scene.servers.current().freeze();
    // PostgreSQL has many processes: the last one may have renewed until now.
    let stopped = monotonic();
    scene.sleep(4000).await;
    let notice = scene.loss_notice(&places, stopped)?;
    scene.servers.current().thaw();
    scene.healed();
    scene.measure("loss told after SIGSTOP of the server", notice, LEASE);
    scene
        .finish(Judge { losses: true, recovery: Duration::from_millis(1500), ..Judge::default() })
        .await
}

/// #8: the server is busy with one slow command for a second, three times. The outcome of
/// unanswered requests is unknown, and they are undone.
/// Exclusion, server truth, exact counts.
pub(super) async fn slow_command(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for _ in 0..3 {
        scene.fault("DEBUG SLEEP 1");
        scene.tell(&["DEBUG", "SLEEP", "1"]).await?;
        scene.healed();
        scene.sleep(1000).await;
    }
    scene.expect_held(&places)?;
    scene.finish(Judge::default()).await
}

/// #9: an endless script keeps the server busy, which answers `BUSY` to all others, until the
/// script is killed.
/// Clients report `BUSY` as `Unavailable`, waiters tolerate it; recovery.
pub(super) async fn busy_script(run: Run) -> Result<Report> {
    let setup = Setup::default().server(&["--busy-reply-threshold", "200"]);
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.fault("BUSY");
    let mut looping = scene::admin(&scene.server()?.url()).await?;
    let endless = tokio::spawn(async move {
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query_async::<redis::Value>(&mut looping)
            .await
    });
    scene.sleep(1000).await;
    scene.tell(&["SCRIPT", "KILL"]).await?;
    scene.expect(endless.await?.is_err(), "the rig: the script was not killed");
    scene.healed();
    scene.expect_held(&places)?;
    let judge = Judge { failures: &["Backend(Unavailable)"], ..Judge::default() };
    scene.finish(judge).await
}

/// #14: the server forgets all scripts every 10 ms. They are loaded again, and nobody notices.
/// Everything, as without a fault.
pub(super) async fn scripts_flushed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        scene.tell(&["SCRIPT", "FLUSH"]).await?;
        scene.sleep(10).await;
    }
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.finish(Judge::default()).await
}

/// #15: an administrator deletes everything. Holders are told with the next renewal; a release
/// returns `Lost`, not Ok.
/// Tokens, lost updates with fencing.
pub(super) async fn flushed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let flushed = scene.fault("FLUSHALL");
    scene.tell(&["FLUSHALL"]).await?;
    let notice = scene.until_lost(&places, flushed, 2 * LEASE).await?;
    scene.healed();
    scene.measure("loss told after FLUSHALL", notice, NOTICE);
    let released = scene.release(0).await?;
    let all_lost = released.iter().all(|(_, failure)| failure.as_deref() == Some("Lost"));
    scene.expect(
        all_lost,
        format!("I9: the release of a lost hold said something else: {released:?}"),
    );
    scene.finish(Judge { exclusion: false, truth: false, losses: true, ..Judge::default() }).await
}

/// #16: other data is stored under the names of locks that are held and waited for. Clients report
/// that as `WrongType` at once, and leave the data untouched.
/// Errors, no hang; other locks are not affected.
pub(super) async fn overwritten(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let overwritten = monotonic();
    for place in &places {
        scene.tell(&["DEL", &place.name]).await?;
        scene.tell(&["RPUSH", &place.name, "foreign"]).await?;
        scene.clients[1].order(Order::Wait(place.clone())).await?;
    }
    let notice = scene.until_lost(&places, overwritten, 2 * LEASE).await?;
    scene.measure("loss told", notice, LEASE);
    for place in &places {
        let stored: Vec<String> =
            scene.server()?.try_query(&["LRANGE", &place.name, "0", "-1"]).await?;
        scene.expect(
            stored == ["foreign"],
            format!("what was stored under `{}` was touched: {stored:?}", place.name),
        );
        scene.tell(&["DEL", &place.name]).await?;
    }
    scene.release(0).await?;
    let judge = Judge {
        exclusion: false,
        truth: false,
        losses: true,
        failures: &["Backend(WrongType)"],
        ..Judge::default()
    };
    scene.finish(judge).await
}

/// #17: the key of a lock loses its time to live, and its holder is killed: the lock stays held
/// forever. Waiters do not spin, and enter when the key is deleted, within their longest retry
/// interval.
/// Bounded commands; wake-ups.
pub(super) async fn ttl_removed(run: Run) -> Result<Report> {
    let setup = Setup { kinds: vec![Kind::Exclusive, Kind::Fair], ..Setup::default() };
    let mut scene = Scene::open(run, Setup { tasks: 0, ..setup }).await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.kill_client(0)?;
    for place in &places {
        scene.tell(&["PERSIST", &place.name]).await?;
    }
    scene.fault("PERSIST");
    let before = scene.commands_so_far().await;
    scene.sleep(4000).await;
    let commands = scene.commands_so_far().await - before;
    scene.expect(commands < 80, format!("I10: two waiters sent {commands} commands in 4 s"));
    scene.note(format!("{commands} commands of two waiters in 4 s"));
    let deleted = monotonic();
    for place in &places {
        scene.tell(&["DEL", &place.name]).await?;
    }
    let taken = scene.until_taken(&places, deleted, Duration::from_secs(12)).await?;
    scene.measure("taken after a silent DEL", taken, Duration::from_secs(10));
    scene.healed();
    scene.finish(Judge { truth: false, ..Judge::default() }).await
}

/// #18: the server's memory is full. New holds are refused with `OutOfMemory`; existing ones are
/// renewed and can be released.
/// Exclusion, server truth; nothing left behind.
pub(super) async fn out_of_memory(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    scene.fault("OOM");
    scene.tell(&["CONFIG", "SET", "maxmemory", "1mb"]).await?;
    scene.sleep(3000).await;
    scene.expect_held(&places)?;
    scene.release_well(0).await?;
    scene.tell(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    scene.healed();
    scene.finish(Judge { failures: &["Backend(OutOfMemory)"], ..Judge::default() }).await
}

/// #19: the server evicts keys when its memory is full. Such a server is refused; a client that
/// accepts it anyway is told of the loss with the next renewal.
/// Tokens, lost updates with fencing; not exclusion.
pub(super) async fn evicting(run: Run) -> Result<Report> {
    let setup = Setup { allow_eviction: true, ..Setup::default() };
    let setup = setup.server(&["--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"]);
    let mut scene = Scene::open(run, setup).await?;
    let mut strict = scene.clients[0].config.clone();
    strict.connecting.allow_eviction = false;
    strict.log = strict.log.with_file_name("strict.log");
    let refusal = ClientProcess::start(strict, &[]).await;
    let reason = refusal.err().map(|error| error.to_string()).unwrap_or_default();
    scene.expect(
        reason.contains("evict"),
        format!("I9: a server that evicts was not refused: {reason}"),
    );
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let evicted = scene.fault("eviction");
    let used: String = scene.server()?.try_query(&["INFO", "memory"]).await?;
    let used =
        used.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<u64>().ok());
    let limit = (used.ok_or_else(|| failure("no used_memory"))? + 2_000_000).to_string();
    scene.tell(&["CONFIG", "SET", "maxmemory", &limit]).await?;
    let big = "x".repeat(500_000);
    for number in 0..12 {
        // Refused when there is nothing left to evict.
        let _ = scene.tell(&["SET", &ballast(number), &big]).await;
    }
    let notice = scene.until_lost(&places, evicted, 2 * LEASE).await?;
    scene.measure("loss told after eviction", notice, NOTICE + SLACK);
    scene.tell(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    for number in 0..12 {
        scene.tell(&["DEL", &ballast(number)]).await?;
    }
    scene.healed();
    let judge = Judge {
        exclusion: false,
        truth: false,
        losses: true,
        failures: &["Backend(OutOfMemory)", "Backend(Unavailable)", "Backend(Configuration)"],
        ..Judge::default()
    };
    scene.finish(judge).await
}

/// A key of the battery itself, at the current server.
fn ballast(number: usize) -> String {
    name_at_home(&format!("battery:ballast-{number}"))
}

/// #20: the server cannot save and refuses all writes (`MISCONF`), for longer than a lease. Holders
/// are told by their deadlines, and holds that cannot be released expire; then work continues.
/// Exclusion, server truth, recovery.
pub(super) async fn misconf(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    // A directory in its place cannot be replaced by the file, not even by root.
    let file = scene.server()?.directory().join("dump.rdb");
    if file.exists() {
        fs::remove_file(&file)?;
    }
    fs::create_dir(file)?;
    scene.tell(&["CONFIG", "SET", "save", "3600 1000000"]).await?;
    let misconf = scene.fault("MISCONF");
    scene.tell(&["BGSAVE"]).await?;
    let notice = scene.until_lost(&places, misconf, 2 * LEASE).await?;
    scene.sleep(500).await;
    scene.tell(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).await?;
    scene.healed();
    scene.measure("loss told after MISCONF", notice, LEASE + SLACK);
    let judge = Judge { losses: true, failures: &["Backend(Unavailable)"], ..Judge::default() };
    scene.finish(judge).await
}

/// #21: the server becomes a replica of another and refuses writes (`READONLY`), for longer than a
/// lease, then a primary again.
/// Holders are told by their deadlines; recovery.
pub(super) async fn read_only(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let demoted = scene.fault("REPLICAOF");
    // No server listens there, so nothing is copied.
    scene.tell(&["REPLICAOF", "127.0.0.1", "1"]).await?;
    let notice = scene.until_lost(&places, demoted, 2 * LEASE).await?;
    scene.sleep(500).await;
    scene.tell(&["REPLICAOF", "NO", "ONE"]).await?;
    scene.healed();
    scene.measure("loss told after READONLY", notice, LEASE + SLACK);
    let judge = Judge { losses: true, failures: &["Backend(ReadOnly)"], ..Judge::default() };
    scene.finish(judge).await
}

/// #22: the server has too few replicas and refuses writes (`NOREPLICAS`). Clients report
/// `Unavailable`; recovery.
pub(super) async fn no_replicas(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    scene.stage("staged", 0, None).await?;
    scene.fault("NOREPLICAS");
    scene.tell(&["CONFIG", "SET", "min-replicas-to-write", "9"]).await?;
    scene.sleep(2500).await;
    scene.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await?;
    scene.healed();
    let judge = Judge { losses: true, failures: &["Backend(Unavailable)"], ..Judge::default() };
    scene.finish(judge).await
}

/// #43: the server's wall clock jumps ahead by a minute, which frees locks; then back and forth by
/// a second; then back by an hour, which makes the leases of that time long. Tokens rise
/// nevertheless, holders are told with the next renewal.
/// Tokens, lost updates with fencing; not exclusion, since the server's leases end by that clock.
pub(super) async fn clock_jumps(run: Run) -> Result<Report> {
    let Some(clock) = crate::clock::WallClock::make()? else {
        return Ok(Report::impossible(
            run,
            "there is no C compiler (cc) for the library that moves the clock",
        ));
    };
    let setup = Setup {
        servers: ServerSetup { environment: clock.environment(), ..ServerSetup::default() },
        ..Setup::default()
    };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let jumped = scene.fault("clock of the server");
    clock.ahead(Duration::from_secs(60))?;
    let notice = scene.until_lost(&places, jumped, 2 * LEASE).await?;
    scene.measure("loss told after +60 s", notice, NOTICE);
    for second in 0..10 {
        clock.ahead(Duration::from_secs(60 + second % 2))?;
        scene.sleep(100).await;
    }
    clock.behind(Duration::from_secs(3600))?;
    scene.sleep(1500).await;
    clock.ahead(Duration::from_secs(3600))?;
    scene.sleep(1000).await;
    scene.healed();
    // A waiter that was told an end by a clock that was set asks again after 10 s.
    let wakeup = Duration::from_secs(10);
    let judge = Judge { exclusion: false, truth: false, losses: true, wakeup, ..Judge::default() };
    scene.finish(judge).await
}

/// #46: the server pauses clients that write, then all, each for 1.5 s. Unanswered requests are
/// undone; nobody spins.
/// Exclusion, server truth; bounded commands.
pub(super) async fn paused(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    scene.stage("staged", 0, Some(1)).await?;
    for mode in ["WRITE", "ALL"] {
        scene.fault(format!("CLIENT PAUSE {mode}"));
        scene.tell(&["CLIENT", "PAUSE", "1500", mode]).await?;
        scene.sleep(1500).await;
        scene.healed();
        scene.sleep(700).await;
    }
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}
