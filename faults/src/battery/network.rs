//! Faults of the network and of connections.

use std::time::{Duration, Instant};

use lockcore_testkit::{Conditions, On};

use crate::{
    deployment::{self, Deployment, Network},
    protocol::{Order, Result},
    report::{Report, Run},
    scene::{Judge, LEASE, SLACK, Scene, Setup, TIMEOUT},
};

/// How often connections are broken, in ms, and how many times: for 3 s. PostgreSQL starts a
/// process for each new connection, which takes longer, and adds [`OPEN_FOR`] each time. An etcd
/// client needs several answers, one after the other, for one lock; there it is for 5 s.
fn pace(on: Deployment) -> (u64, u64) {
    match on {
        Deployment::Postgres => (300, 10),
        Deployment::Etcd => (500, 10),
        _ => (100, 30),
    }
}

/// How long connections work at PostgreSQL before they are closed again, in ms. The one that is
/// opened last would otherwise be closed before it has had an answer, every time: for its names,
/// the server would be away.
const OPEN_FOR: u64 = 200;

/// #31: the server closes the command connections of all clients every 100 ms. PostgreSQL waits for
/// 300 ms, until all of them are open again, which is measured there, and for [`OPEN_FOR`]. Clients
/// reconnect; no lock is held twice or orphaned.
/// Exclusion, server truth; a free lock is acquired within 2 s, even meanwhile.
pub(super) async fn connections_killed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    // Only Redis counts them.
    let before = scene.connections_so_far().await.ok();
    let (pause, times) = pace(run.on);
    let open = scene.servers.open_for_requests().await?;
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let ended = Instant::now();
        scene.servers.end_connections(On::Commands).await?;
        scene.sleep(pause).await;
        while scene.servers.open_for_requests().await? < open && ended.elapsed() < 2 * LEASE {
            scene.sleep(10).await;
        }
        longest = longest.max(ended.elapsed());
        if open.is_some() {
            scene.sleep(OPEN_FOR).await;
        }
    }
    if open.is_some() {
        scene.measure("all connections open again", Some(longest), LEASE);
    }
    if let Some(before) = before {
        let opened = scene.connections_so_far().await? - before;
        scene.note(format!("{opened} connections in 3 s"));
    }
    scene.expect_held(&places)?;
    scene.finish(Judge { wakeup: Duration::from_secs(2), ..Judge::default() }).await
}

/// #32: the server closes every pub/sub connection every 100 ms. Waiters subscribe and ask again.
/// No wake-up is lost: a free lock is acquired within 1.5 s, even meanwhile.
pub(super) async fn listeners_killed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    for _ in 0..20 {
        scene.servers.end_connections(On::Messages).await?;
        scene.sleep(100).await;
    }
    // The release comes while nobody listens. No other client uses these locks, so only the
    // reconnect can help.
    let mut longest = Some(Duration::ZERO);
    for round in 0..6 {
        let places = scene.stage(&format!("staged{round}"), 0, Some(1)).await?;
        scene.servers.end_connections(On::Messages).await?;
        let released = lockcore_testkit::monotonic();
        scene.release_well(0).await?;
        let taken = scene.until_taken(&places, released, 2 * LEASE).await?;
        longest = longest.zip(taken).map(|(longest, taken)| longest.max(taken));
    }
    scene.measure(
        "taken over after a release that nobody heard",
        longest,
        Duration::from_millis(500),
    );
    scene.finish(Judge { wakeup: Duration::from_millis(1500), ..Judge::default() }).await
}

/// #33: the server closes pub/sub connections because their output buffers overflow. As #32; the
/// flood itself costs clients no memory.
pub(super) async fn listeners_overrun(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.tell(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 65536 32768 2"]).await?;
    scene.play().await?;
    let before = scene.connections_so_far().await?;
    let flood = "for i = 1, 400 do redis.call(ARGV[1], ARGV[2], string.rep('x', 1000)) end";
    for _ in 0..8 {
        for channel in scene.channels().await? {
            scene.tell(&["EVAL", flood, "0", channel.publish, &channel.name]).await?;
        }
        scene.sleep(200).await;
    }
    let opened = scene.connections_so_far().await? - before;
    scene.expect(opened > 10, "the rig: no connection was closed for its buffer");
    scene.note(format!("{opened} connections opened anew, the battery's own with them"));
    scene.finish(Judge { wakeup: Duration::from_millis(1500), ..Judge::default() }).await
}

/// #34: every second message is silently lost. Waiters enter when the lease that they were told of
/// would have ended.
/// A free lock is acquired within a lease and a timeout.
pub(super) async fn messages_lost(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied().unfenced()).await?;
    let lossy = Conditions { drop_every_second_push: true, ..Conditions::default() };
    scene.networks.iter().for_each(|network| network.set(&lossy));
    scene.play().await?;
    scene.sleep(4000).await;
    scene.networks.iter().for_each(Network::heal);
    scene
        .finish(Judge { wakeup: LEASE + TIMEOUT, recovery: LEASE + TIMEOUT, ..Judge::default() })
        .await
}

/// #35: other programs publish garbage on all channels, as fast as they can. Waiters ask in vain,
/// but not once per message.
/// Exclusion, wake-ups; bounded commands.
pub(super) async fn messages_forged(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().unfenced()).await?;
    scene.play().await?;
    scene.stage("staged", 0, Some(1)).await?;
    let (before, start) = (scene.commands_so_far().await, Instant::now());
    let mut messages = 0;
    let forge = "for i = 1, 20 do redis.call(ARGV[1], ARGV[2], ARGV[3]) end";
    while start.elapsed() < Duration::from_secs(3) {
        for channel in scene.channels().await? {
            // Every other message looks like the grant of a fair lock.
            let payload = match scene.random.next() {
                even if even % 2 == 0 => format!("\u{0}garbage {even}"),
                odd => format!("{}:{}", u64::MAX / 2, odd % 4),
            };
            let forged = ["EVAL", forge, "0", channel.publish, &channel.name, &payload];
            scene.tell(&forged).await?;
            messages += 20;
        }
        scene.sleep(5).await;
    }
    let commands = scene.commands_so_far().await - before;
    scene.note(format!("{messages} messages forged, {commands} commands sent"));
    scene.finish(Judge::default()).await
}

/// #36: command connections go silent, half open, every second: nothing gets through and nobody is
/// told. After the timeout there is a new connection.
/// Exclusion, exact counts; holds are kept; a free lock is acquired within 2 s.
pub(super) async fn commands_half_open(run: Run) -> Result<Report> {
    if run.on == Deployment::Etcd {
        return super::etcd::connections_half_open(run).await;
    }
    let mut scene = Scene::open(run, Setup::default().proxied().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let accepted = |scene: &Scene| -> u64 { scene.networks.iter().map(Network::accepted).sum() };
    let before = accepted(&scene);
    for _ in 0..4 {
        scene.networks.iter().for_each(|network| network.freeze(On::Commands));
        scene.sleep(1000).await;
    }
    scene.networks.iter().for_each(Network::heal);
    scene.expect_held(&places)?;
    let commands = COMMANDS_FOR_A_CONNECTION * (accepted(&scene) - before);
    scene.finish(Judge { wakeup: Duration::from_secs(2), commands, ..Judge::default() }).await
}

/// #37: pub/sub connections go silent, half open. Until that is noticed, within 5 s and a timeout,
/// waiters enter when the lease that they were told of would have ended.
/// A free lock is acquired within a lease and a timeout.
pub(super) async fn listeners_half_open(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied().unfenced()).await?;
    scene.play().await?;
    scene.networks.iter().for_each(|network| network.freeze(On::Messages));
    let before = scene.networks[0].accepted();
    scene.sleep(6500).await;
    let renewed = scene.networks[0].accepted() > before;
    scene.expect(renewed, "I6: a silent pub/sub connection was not replaced within 6.5 s");
    scene.networks.iter().for_each(Network::heal);
    scene.finish(Judge { wakeup: LEASE + TIMEOUT, ..Judge::default() }).await
}

/// #38: connections are reset in the middle of a reply, after any number of bytes, every 100 ms.
/// Unanswered requests are undone.
/// Exclusion, server truth, exact counts.
pub(super) async fn reset_midway(run: Run) -> Result<Report> {
    let setup = Setup::default().proxied().unfenced().patient_on(run.on);
    let mut scene = Scene::open(run, setup).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let (pause, times) = pace(run.on);
    for round in 0..times {
        for index in 0..scene.networks.len() {
            let bytes = scene.random.below(1500);
            if round % 10 == 9 {
                scene.networks[index].reset();
            } else {
                scene.networks[index].reset_after(bytes);
            }
        }
        scene.sleep(pause).await;
    }
    scene.networks.iter().for_each(Network::heal);
    scene.expect_held(&places)?;
    scene.finish(Judge { wakeup: Duration::from_secs(2), ..Judge::default() }).await
}

/// The number of answered requests of a client between two lost replies. A client that reconnects
/// sends all pending requests at once, a dozen: if one of them were always lost, together with what
/// follows it, most attempts would fail and waiters would pause longer each time, the more so the
/// longer it takes to connect. So they are counted for each member of a quorum, all of which lose a
/// reply at about the same time.
const ANSWERED: u64 = 12;

/// The commands that a new connection may cost, on any deployment, before it serves requests.
const COMMANDS_FOR_A_CONNECTION: u64 = 10;

/// The commands that a lost reply may cost. The client reconnects, subscribes again, and undoes and
/// repeats the requests that were pending, a dozen, each of which may be a script with a command
/// that is counted as well. A dozen answers have to come before the next one is lost.
const COMMANDS_FOR_A_LOST_ANSWER: u64 = 45;

/// #39: requests are carried out, but their replies are lost with the connection: every k-th in
/// turn.
/// Counts are exact, no lock is held twice or orphaned, holds are not lost.
pub(super) async fn replies_lost(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied().unfenced()).await?;
    for k in 1..=8 {
        scene.networks[0].lose_answer(k);
        for place in scene.staged("staged") {
            scene.clients[0].order(Order::Hold(place)).await?;
        }
        scene.release_well(0).await?;
    }
    scene.networks[0].heal();
    scene.play().await?;
    let mut next: Vec<u64> = scene.networks.iter().map(Network::answers).collect();
    // Those of all members are counted together.
    let members = run.on.members() as u64;
    let (start, mut lost) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(4) {
        for (network, next) in scene.networks.iter().zip(&mut next) {
            if network.has_lost_answer() && network.answers() >= *next {
                let k = 1 + scene.random.below(8);
                *next = network.answers() + members * (k + ANSWERED);
                network.lose_answer(k);
                lost += 1;
            }
        }
        scene.sleep(20).await;
    }
    scene.networks.iter().for_each(Network::heal);
    scene.expect(lost > 20, format!("the rig: {lost} replies were to be lost"));
    let lost: u64 = scene.networks.iter().map(Network::lost_answers).sum();
    scene.note(format!("{lost} replies lost"));
    let commands = COMMANDS_FOR_A_LOST_ANSWER * lost;
    scene.finish(Judge { commands, ..Judge::default() }).await
}

/// #40: requests arrive after their clients have given them up, on closed connections. Their grants
/// are not renewed, and are returned.
/// Exclusion, server truth; orphans end with their lease.
pub(super) async fn requests_delayed(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied().unfenced()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    for _ in 0..6 {
        let index = usize::try_from(scene.random.below(scene.networks.len() as u64))?;
        scene.networks[index].delay_next_request(2 * TIMEOUT);
        scene.sleep(700).await;
    }
    scene.networks.iter().for_each(Network::heal);
    scene.expect_held(&places)?;
    scene.finish(Judge { wakeup: Duration::from_secs(2), ..Judge::default() }).await
}

/// #41: a latency of 0.15 leases per round trip, with jitter; then everything byte by byte; then a
/// latency of four leases. The round trip shortens the usable lease; late grants are returned.
/// Exclusion, server truth, tokens.
pub(super) async fn latency(run: Run) -> Result<Report> {
    let setup =
        Setup { response_timeout: Duration::from_millis(900), ..Setup::default().proxied() };
    let mut scene = Scene::open(run, setup.patient_on(run.on)).await?;
    scene.play().await?;
    scene.fault("latency");
    let [latency, jitter] = [100, 50].map(Duration::from_millis);
    let far = Conditions { latency, jitter, ..Conditions::default() };
    scene.networks.iter().for_each(|network| network.set(&far));
    let places = scene.stage("staged", 0, Some(1)).await?;
    scene.sleep(2500).await;
    let sliced = Conditions { slices: true, ..Conditions::default() };
    scene.networks.iter().for_each(|network| network.set(&sliced));
    scene.sleep(1500).await;
    scene.expect_held(&places)?;
    let too_far = Conditions { latency: 2 * LEASE, ..Conditions::default() };
    scene.networks.iter().for_each(|network| network.set(&too_far));
    scene.sleep(3500).await;
    scene.networks.iter().for_each(Network::heal);
    // Pending requests still arrive late.
    scene.sleep(1000).await;
    scene.healed();
    // Requests of an etcd client come after its earlier ones, on the same connection.
    let recovery = match run.on {
        Deployment::Etcd => 2 * LEASE,
        _ => Duration::from_secs(3),
    };
    // A fair waiter whose answer is late asks again for what it was handed, which begins the lease
    // anew. The server does that as long as its place in the queue would have lasted.
    let asked_again = scene.setup.queue_timeout;
    let judge = Judge { losses: true, recovery, asked_again, ..Judge::default() };
    // On a quorum, several requests have failed by then.
    scene.finish(Judge { failures: &["Backend(Unavailable)"], ..judge }).await
}

/// #42: a client is cut off in both directions, then in one, then repeatedly for 100 ms. It is told
/// of the loss by its deadline, others take over, and it does not flood the server with
/// connections.
/// Exclusion, server truth; bounded connections.
pub(super) async fn partitioned(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let before = scene.networks[0].accepted();
    let cut = scene.fault("partition");
    let both = deployment::cut();
    scene.networks[0].set(&both);
    let notice = scene.until_lost(&places, cut, 2 * LEASE).await?;
    scene.measure("loss told after the cut", notice, LEASE);
    let takeover = scene.until_taken(&places, cut, 2 * LEASE).await?;
    scene.measure("takeover after the cut", takeover, scene.ends_within() + SLACK);
    scene.networks[0].heal();
    scene.sleep(500).await;
    for one_way in [
        Conditions { cut_to_server: true, ..Conditions::default() },
        Conditions { cut_to_client: true, ..Conditions::default() },
    ] {
        scene.networks[1].set(&one_way);
        scene.sleep(1200).await;
        scene.networks[1].heal();
    }
    for _ in 0..10 {
        scene.networks[0].set(&both);
        scene.sleep(100).await;
        scene.networks[0].heal();
        scene.sleep(100).await;
    }
    let opened = scene.networks[0].accepted() - before;
    scene.expect(opened <= 60, format!("I10: {opened} connections in about 7 s"));
    scene.note(format!("{opened} connections opened by the client that was cut off"));
    scene.healed();
    scene
        .finish(Judge { losses: true, recovery: Duration::from_millis(1500), ..Judge::default() })
        .await
}
