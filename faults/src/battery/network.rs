//! Faults of the network and of connections.

use std::time::{Duration, Instant};

use crate::{
    protocol::{Order, Result},
    report::Report,
    scene::{Judge, Scene, Setup},
};

/// #32: the server closes every pub/sub connection every 100 ms. Whoever waits subscribes again and tries again.
/// No wake-up is lost: a free lock is had within 1.5 s, also while this goes on.
pub(super) async fn listeners_killed(seed: u64) -> Result<Report> {
    let mut scene = Scene::open(seed, Setup::default().unfenced()).await?;
    scene.play().await?;
    for _ in 0..30 {
        scene.server.try_query::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await?;
        scene.sleep(100).await;
    }
    scene.finish(Judge { wakeup: Duration::from_millis(1500), ..Judge::default() }).await
}

/// #39: requests are carried out, but their replies are lost with the connection: every k-th in turn.
/// Counts are exact, nothing is held twice or by nobody, holds are not lost.
pub(super) async fn replies_lost(seed: u64) -> Result<Report> {
    let mut scene = Scene::open(seed, Setup::default().proxied().unfenced()).await?;
    for k in 1..=8 {
        scene.proxies[0].lose_answer(k);
        for place in scene.staged("staged") {
            scene.clients[0].order(Order::Hold(place)).await?;
        }
        scene.clients[0].order(Order::Release).await?;
    }
    scene.proxies[0].heal();
    scene.play().await?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        for index in 0..scene.proxies.len() {
            if scene.proxies[index].has_lost_answer() {
                let k = 1 + scene.random.below(8);
                scene.proxies[index].lose_answer(k);
            }
        }
        scene.sleep(50).await;
    }
    scene.proxies.iter().for_each(lockcore_testkit::Proxy::heal);
    scene.finish(Judge::default()).await
}
