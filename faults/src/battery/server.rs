//! Faults of the server.

use crate::{
    protocol::Result,
    report::Report,
    scene::{Judge, Scene, Setup},
};

/// #10: the server is killed and comes back with its append-only file. Holds and tokens survive, waiters try again at once.
/// Exclusion, tokens, wake-ups; recovery within 1 s of the server's accepting connections.
pub(super) async fn killed_durable(seed: u64) -> Result<Report> {
    let mut scene = Scene::open(seed, Setup::default().durable()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.fault("server killed");
    scene.server.kill();
    let down = scene.random.ms(0, 500);
    tokio::time::sleep(down).await;
    scene.server.restart();
    scene.healed();
    scene.sleep(2500).await;
    let lost = scene.loss_notice(&places, 0)?;
    scene.expect(lost.is_none(), "I1: a hold was lost though the server had kept it");
    scene.finish(Judge::default()).await
}
