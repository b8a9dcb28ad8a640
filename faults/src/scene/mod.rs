//! [`Scene`]: servers, a resource, clients and perhaps a bad network, for one fault; and the judgement at its end.

mod forgotten;
mod judge;
mod pause;
mod setup;
mod staging;
mod stall;
mod stranded;
mod vitals;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use lockcore_testkit::{EventLog, RedisServer, What, checks::Vitals, monotonic};
use redis::aio::MultiplexedConnection;
use rustix::process::Signal;

pub(crate) use self::{
    judge::Judge,
    setup::Setup,
    stall::Stall,
    vitals::{end_command_connections, is_of_lock},
};
use crate::{
    deployment::{Deployment, MEMBERS, Network, Servers},
    monitor::Monitor,
    process::ClientProcess,
    protocol::{ClientConfig, Order, Place, Result, failure},
    report::{Measure, Report, Run},
    resource::Resource,
    rng::Random,
    store::Connecting,
};

/// The lease of all locks, but where holds are to outlive a failover.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The lease where holds are to outlive a failover: twice as long as it takes.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(8);
/// How long a client waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);
/// When a hold is renewed.
pub(crate) const RENEWAL: Duration = Duration::from_millis(667);
/// For how long every second client keeps locks that nobody waits for.
const LINGER: Duration = Duration::from_millis(20);
/// What processes on a busy machine are late by, beyond what was measured.
pub(crate) const SLACK: Duration = Duration::from_millis(100);

/// Everything that one fault needs.
pub(crate) struct Scene {
    pub(crate) setup: Setup,
    pub(crate) random: Random,
    pub(crate) on: Deployment,
    pub(crate) servers: Servers,
    /// The network of each client, in a scene that has a bad one.
    pub(crate) networks: Vec<Network>,
    pub(crate) clients: Vec<ClientProcess>,
    pub(crate) log: EventLog,
    pub(crate) report: Report,
    /// A connection that stays open, for when there are no new ones; to Redis only.
    admin: Option<MultiplexedConnection>,
    directory: PathBuf,
    monitors: Vec<Monitor>,
    _resource: Resource,
    before: Vitals,
    stall: Stall,
    seed: u64,
    healed: Option<u64>,
    /// Names of locks that only an old primary knew to be released.
    stranded: BTreeSet<String>,
}

impl Scene {
    /// Starts everything, and takes the vitals when all connections are there and nobody does anything.
    pub(crate) async fn open(run: Run, mut setup: Setup) -> Result<Self> {
        let kinds = setup.kinds.len();
        setup.kinds.retain(|kind| run.on.kinds().contains(kind));
        // With fewer locks, there would be times when each of them is held for long.
        setup.long_holds &= setup.kinds.len() == kinds;
        setup.response_timeout *= run.on.in_turn();
        setup.tasks = setup.tasks.min(run.on.tasks());
        let directory = std::env::temp_dir().join(format!(
            "lockcore-faults-{}-{:x}",
            std::process::id(),
            unique()
        ));
        std::fs::create_dir_all(&directory)?;
        let servers = Servers::start(run.on, &setup.servers).await?;
        let resource = Resource::start(
            &directory.join("resource"),
            EventLog::open(&directory.join("resource.jsonl"), "resource")?,
            setup.fenced,
        )?;
        let monitors = monitors(run.on, &servers).await?;
        let admin = admin_of(&servers).await?;
        let mut scene = Self {
            random: Random::new(run.seed),
            log: EventLog::open(&directory.join("rig.jsonl"), "rig")?,
            report: Report::new(run, &setup.kinds),
            networks: Vec::new(),
            clients: Vec::new(),
            monitors,
            admin,
            _resource: resource,
            before: Vitals::default(),
            stall: Stall::start(),
            healed: None,
            stranded: BTreeSet::new(),
            on: run.on,
            servers,
            directory,
            seed: run.seed,
            setup,
        };
        for _ in 0..scene.setup.clients {
            scene.add_client().await?;
        }
        scene.warm_up().await?;
        // A waiter that is soon woken has not got to every member.
        let all = 2 * MEMBERS * scene.clients.len();
        while run.on == Deployment::Quorum && scene.client_connections().await? < all {
            scene.warm_up().await?;
        }
        scene.before = scene.vitals().await?;
        Ok(scene)
    }

    /// One more client process, with a network of its own if the scene has a bad one.
    pub(crate) async fn add_client(&mut self) -> Result<usize> {
        let number = self.clients.len();
        let client = format!("client{number}");
        let mut environment = self.setup.client_environment.clone();
        let mut store = self.servers.store(&self.setup.user);
        if self.setup.proxied {
            let (network, entrance) = self.servers.network(&self.setup.user).await?;
            environment.extend(network.environment());
            self.networks.push(network);
            store = entrance;
        }
        let config = ClientConfig {
            store,
            connecting: Connecting {
                response_timeout: self.setup.response_timeout,
                connect_timeout: Duration::from_millis(500),
                allow_eviction: self.setup.allow_eviction,
                lease: self.setup.lease,
                rejoin_after: self.setup.rejoin_after,
                // Those that keep locks and those that do not have to get on with each other.
                linger: self.setup.linger * u32::from(number % 2 == 1),
            },
            retry_for: self.setup.retry_for,
            queue_timeout: self.setup.queue_timeout,
            can_suspend: self.setup.can_suspend,
            long_holds: self.setup.long_holds,
            tasks: self.setup.tasks,
            places: self.places(),
            hold_ms: self.setup.hold_ms,
            careless: self.setup.careless,
            log: self.directory.join(format!("{client}.jsonl")),
            resource: self.directory.join("resource"),
            seed: self.seed,
            client,
        };
        self.clients.push(ClientProcess::start(config, &environment).await?);
        Ok(number)
    }

    /// Within what time the holds of a client that has died end.
    pub(crate) fn ends_within(&self) -> Duration {
        self.setup.lease + self.on.late()
    }

    /// The locks that all clients work on.
    pub(crate) fn places(&self) -> Vec<Place> {
        let kinds = self.setup.kinds.iter();
        kinds
            .flat_map(|kind| {
                (0..self.setup.names)
                    .map(|number| Place { kind: *kind, name: format!("{}{number}", kind.short()) })
            })
            .collect()
    }

    /// Every client acquires, waits and is woken, so that all connections and tasks are there.
    async fn warm_up(&mut self) -> Result<()> {
        for index in 0..self.clients.len() {
            let other = (index + 1) % self.clients.len();
            let mut places = self.staged(&format!("warm{index}"));
            if self.on == Deployment::Cluster {
                // These are all at one primary; all others are to be known as well.
                places.extend(self.places());
            }
            for place in places {
                self.clients[index].order(Order::Hold(place.clone())).await?;
                if other != index {
                    self.clients[other].order(Order::Wait(place)).await?;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.clients[index].order(Order::Release).await?;
        }
        for client in &mut self.clients {
            client.order(Order::Rest).await?;
        }
        Ok(())
    }

    /// Has all clients work.
    pub(crate) async fn play(&mut self) -> Result<()> {
        for client in &mut self.clients {
            client.order(Order::Play).await?;
        }
        self.sleep(1000).await;
        Ok(())
    }

    pub(crate) async fn sleep(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Writes down that a fault begins.
    pub(crate) fn fault(&self, what: impl Into<String>) -> u64 {
        let t = monotonic();
        self.log.at(t, 0, What::Fault { what: what.into() });
        t
    }

    /// Kills the server that clients use. It may have served for a while after the fault began: it
    /// takes its time to die. What was done by the end of that may be lost with it, so this is
    /// written down as well, and returned.
    pub(crate) fn kill_server(&mut self, what: &str) -> u64 {
        self.fault(what);
        self.servers.current().kill();
        self.fault("it is down")
    }

    /// Writes down that all is well again.
    pub(crate) fn healed(&mut self) -> u64 {
        let t = monotonic();
        self.log.at(t, 0, What::Healed);
        self.healed = Some(t);
        t
    }

    pub(crate) fn stop_client(&mut self, index: usize) -> Result<u64> {
        let t = monotonic();
        self.log.of(t, self.clients[index].name(), 0, What::Stopped);
        self.clients[index].signal(Signal::STOP)?;
        Ok(t)
    }

    pub(crate) fn continue_client(&mut self, index: usize) -> Result<u64> {
        self.clients[index].signal(Signal::CONT)?;
        let t = monotonic();
        self.log.of(t, self.clients[index].name(), 0, What::Continued);
        Ok(t)
    }

    pub(crate) fn kill_client(&mut self, index: usize) -> Result<u64> {
        let t = monotonic();
        self.log.of(t, self.clients[index].name(), 0, What::Killed);
        self.clients[index].signal(Signal::KILL)?;
        Ok(t)
    }

    /// The server that faults of one server act on, if it is Redis.
    pub(crate) fn server(&self) -> Result<&RedisServer> {
        self.servers.server(self.servers.current_index())
    }

    /// Tells the server something, on the connection that stays open.
    pub(crate) async fn tell(&self, command: &[&str]) -> Result<redis::Value> {
        let mut request = redis::Cmd::new();
        for part in command {
            request.arg(part);
        }
        Ok(request.query_async(&mut self.admin()?).await?)
    }

    /// Opens that connection again, after the server was started anew.
    pub(crate) async fn renew_admin(&mut self) -> Result<()> {
        self.admin = admin_of(&self.servers).await?;
        Ok(())
    }

    fn admin(&self) -> Result<MultiplexedConnection> {
        self.admin.clone().ok_or_else(|| failure("this is no Redis"))
    }

    /// How many connections this server has been asked for so far.
    pub(crate) async fn connections_so_far(&self) -> Result<u64> {
        let told =
            redis::cmd("INFO").arg("stats").query_async::<String>(&mut self.admin()?).await?;
        let count = told.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }

    /// How many commands clients have sent so far.
    pub(crate) async fn commands_so_far(&self) -> u64 {
        self.servers.commands().await
    }

    /// Puts a measured time down, which must not be longer than `bound` and what the machine itself was late by.
    pub(crate) fn measure(&mut self, what: &str, took: Option<Duration>, bound: Duration) {
        let stall = self.stall.longest();
        self.report.measure(Measure { what: what.into(), took, bound, stall });
    }

    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.report.notes.push(what.into());
    }

    pub(crate) fn finding(&mut self, message: impl Into<String>) {
        self.report.findings.push(message.into());
    }

    /// Fails the fault if something does not hold.
    pub(crate) fn expect(&mut self, holds: bool, message: impl Into<String>) {
        if !holds {
            self.finding(message);
        }
    }
}

/// What is told to servers, where one server's truth is that of everybody.
async fn monitors(on: Deployment, servers: &Servers) -> Result<Vec<Monitor>> {
    let mut monitors = Vec::new();
    if on.members() == 1 {
        for primary in servers.primaries().await {
            monitors.push(Monitor::start(primary.port()).await?);
        }
    }
    Ok(monitors)
}

async fn admin_of(servers: &Servers) -> Result<Option<MultiplexedConnection>> {
    match servers.server(servers.current_index()) {
        Ok(server) => Ok(Some(admin(&server.url()).await?)),
        Err(_) => Ok(None),
    }
}

/// A connection for orders to a server.
pub(crate) async fn admin(url: &str) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let () = redis::cmd("CLIENT").arg("SETNAME").arg(ADMIN).query_async(&mut connection).await?;
    Ok(connection)
}

/// The name of such connections, which are none of the clients'.
const ADMIN: &str = "battery";

/// The password of faults that have one.
pub(crate) const SECRET: &str = "canary-7f3a91";

/// Whether a line of `CLIENT LIST` is of none of these: the battery's question, its monitor and its
/// own connection, a Sentinel, a replica, a primary, a node that sends keys.
fn is_of_client(line: &&str) -> bool {
    [
        "cmd=client",
        "flags=O",
        " name=battery",
        " name=sentinel-",
        " flags=S",
        " flags=M",
        " cmd=restore",
    ]
    .iter()
    .all(|other| !line.contains(other))
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
