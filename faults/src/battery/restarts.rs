//! Faults of a server that restarts, with its data or without.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::server::NOTICE;
use crate::{
    deployment::{Deployment, name_at_home},
    protocol::Result,
    report::{Report, Run},
    scene::{Judge, LEASE, Scene, Setup},
};

/// The errors that a client may get while a server reads its append-only file, or does not serve
/// its slots yet: that it is loading, for a release that continues in the background. Waiters
/// tolerate it.
const LOADING: &[&str] = &["Backend(Unavailable)"];

/// #10: the server is killed and comes back with its append-only file. Holds and tokens survive,
/// waiters retry at once.
/// Exclusion, tokens, wake-ups; recovery within 1 s after the server accepts connections.
pub(super) async fn killed_durable(run: Run) -> Result<Report> {
    let setup = Setup::default().durable();
    let setup = match run.on {
        // Recovery takes about as long as the lease of other faults.
        Deployment::Postgres => setup.patient(),
        on => setup.patient_on(on),
    };
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let down = scene.random.ms(0, 500);
    restart(&mut scene, down).await;
    scene.sleep(2500).await;
    // A node of a cluster refuses requests for up to a lease after its restart.
    let losses = scene.on == Deployment::Cluster;
    if losses {
        let lost = scene.lost(&places)?.len();
        scene.note(format!("{lost} of {} watched holds lost", places.len()));
    } else {
        scene.expect_held(&places)?;
    }
    scene.finish(Judge { losses, failures: LOADING, ..Judge::default() }).await
}

async fn restart(scene: &mut Scene, down: Duration) {
    scene.kill_server("server killed");
    tokio::time::sleep(down).await;
    scene.servers.current().restart();
    if let Err(error) = rejoin(scene).await {
        scene.finding(format!("the rig: {error}"));
    }
    // Releases at PostgreSQL do not wait for the disk.
    if let (Deployment::Postgres, Ok(stranded)) = (scene.on, scene.stranded().await) {
        scene.note(format!("{stranded} locks stranded"));
    }
    scene.healed();
    // Clients do not wait for the battery's own connection.
    if let Err(error) = scene.renew_admin().await {
        scene.finding(format!("the rig: {error}"));
    }
}

/// Waits until the server serves again, which a node of a cluster does some time after its start.
async fn rejoin(scene: &mut Scene) -> Result<()> {
    let start = Instant::now();
    scene.servers.rejoin().await?;
    if scene.on == Deployment::Cluster {
        let refused = start.elapsed().as_millis();
        scene.note(format!("the node refused for {refused} ms after its restart"));
    }
    Ok(())
}

/// #11: the server is killed and comes back empty. Holders are told with the next renewal, tokens
/// keep rising, waiters enter.
/// Tokens, lost updates with fencing, recovery; not exclusion, which a server that forgets cannot
/// provide.
pub(super) async fn killed_empty(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, None).await?;
    let down = scene.random.ms(0, 500);
    restart(&mut scene, down).await;
    let back = lockcore_testkit::monotonic();
    let notice = scene.until_lost(&places, back, 2 * LEASE).await?;
    // After a failure, the next renewal is tried a tenth of the lease later.
    scene.measure("loss told after the restart", notice, NOTICE);
    let judge = Judge { exclusion: false, losses: true, failures: LOADING, ..Judge::default() };
    scene.finish(judge).await
}

/// #12: power is lost: the end of the append-only file is missing. As #11 for the lost part; tokens
/// rise nevertheless.
/// Tokens, lost updates with fencing, recovery.
pub(super) async fn power_lost(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().durable().forgetful()).await?;
    scene.play().await?;
    scene.stage("staged", 0, Some(1)).await?;
    scene.kill_server("power lost");
    let cut = 200 + scene.random.below(40_000);
    let mut files = vec![scene.server()?.directory().join("appendonly.aof")];
    if let Ok(entries) = fs::read_dir(scene.server()?.directory().join("appendonlydir")) {
        files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "aof"));
        files.retain(|path| path.to_string_lossy().contains(".incr."));
    }
    for path in files {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        file.set_len(file.metadata()?.len().saturating_sub(cut))?;
    }
    scene.note(format!("{cut} bytes of the file lost"));
    scene.servers.current().restart();
    rejoin(&mut scene).await?;
    scene.healed();
    scene.renew_admin().await?;
    scene.sleep(1500).await;
    // The other members of a quorum have what one has lost.
    let forgets = scene.on != Deployment::Quorum;
    let judge = Judge { exclusion: !forgets, losses: forgets, ..Judge::default() };
    scene.finish(Judge { failures: LOADING, ..judge }).await
}

/// #13: the server reloads its data, four times, and reports `LOADING` meanwhile. Clients report
/// that as `Unavailable`, waiters tolerate it.
/// Exclusion, recovery.
pub(super) async fn loading(run: Run) -> Result<Report> {
    let setup = Setup::default().server(&["--loading-process-events-interval-bytes", "1024"]);
    let mut scene = Scene::open(run, setup).await?;
    // The hash tag puts them into a slot of the current server.
    let prefix = format!("battery:{{{}}}", name_at_home("loading"));
    scene.tell(&["DEBUG", "POPULATE", &BALLAST.to_string(), &prefix]).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let mut longest = Duration::ZERO;
    for _ in 0..4 {
        let start = Instant::now();
        scene.fault("DEBUG RELOAD");
        scene.tell(&["DEBUG", "RELOAD"]).await?;
        scene.healed();
        longest = longest.max(start.elapsed());
        scene.sleep(700).await;
    }
    remove_ballast(&scene, &prefix).await?;
    scene.note(format!("loading took up to {} ms", longest.as_millis()));
    // A renewal is at most 0.67 s old when loading begins.
    let losses = longest > Duration::from_secs(1);
    if !losses {
        scene.expect_held(&places)?;
    }
    scene.finish(Judge { losses, failures: &["Backend(Unavailable)"], ..Judge::default() }).await
}

/// The number of keys that slow down loading.
const BALLAST: u32 = 60_000;

/// Deletes them in batches, so that the server is not busy for long.
async fn remove_ballast(scene: &Scene, prefix: &str) -> Result<()> {
    let delete = "for i = ARGV[2], ARGV[2] + 999 do redis.call('UNLINK', ARGV[1] .. ':' .. i) end";
    for first in (0..BALLAST).step_by(1000) {
        scene.tell(&["EVAL", delete, "0", prefix, &first.to_string()]).await?;
        scene.sleep(5).await;
    }
    Ok(())
}
