//! Faults of client processes.

use crate::{
    protocol::Result,
    report::Report,
    scene::{Judge, LEASE, SLACK, Scene, Setup},
};

/// #1: a client that holds a lock of each kind, and works on others, is killed. Those who wait take over when its lease has ended.
/// Exclusion, tokens, server truth, wake-ups, nothing left behind.
pub(super) async fn holder_killed(seed: u64) -> Result<Report> {
    let mut scene = Scene::open(seed, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let pause = scene.random.ms(0, 700);
    tokio::time::sleep(pause).await;
    let killed = scene.kill_client(0)?;
    let takeover = scene.until_taken(&places, killed, 2 * LEASE).await?;
    scene.measure("takeover after SIGKILL", takeover, LEASE + SLACK);
    scene.finish(Judge::default()).await
}

/// #2: a client is stopped for longer than its lease, and goes on. Others take over; it is told of the loss before anything else, its
/// writes are turned away by their tokens, and it releases nobody else's hold.
/// Exclusion up to its deadline, tokens, server truth, lost updates with fencing.
pub(super) async fn holder_stopped_long(seed: u64) -> Result<Report> {
    let setup = Setup { careless: true, hold_ms: (20, 200), ..Setup::default() };
    let mut scene = Scene::open(seed, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let stopped = scene.stop_client(0)?;
    let takeover = scene.until_taken(&places, stopped, 2 * LEASE).await?;
    scene.measure("takeover after SIGSTOP", takeover, LEASE + SLACK);
    let extra = scene.random.ms(100, 1000);
    tokio::time::sleep(extra).await;
    let continued = scene.continue_client(0)?;
    let notice = scene.until_lost(&places, continued, LEASE).await?;
    scene.measure("loss told after SIGCONT", notice, SLACK);
    scene.finish(Judge { losses: true, ..Judge::default() }).await
}
