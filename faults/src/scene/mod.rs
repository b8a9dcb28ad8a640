//! [`Scene`]: servers, a resource, clients and perhaps a faulty network, for one fault; and the
//! checks at its end.

mod forgotten;
mod judge;
mod losses;
mod pause;
mod pressure;
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

use self::pressure::Pressure;
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
    protocol::{ClientConfig, Kind, Order, Place, Result, failure},
    report::{Measure, Report, Run},
    resource::Resource,
    rng::Random,
    store::Connecting,
};

/// The lease of all locks, except where holds must outlive a failover.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The lease where holds must outlive a failover: twice as long as it takes.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(8);
/// How long a client waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);
/// The age at which a hold is renewed.
pub(crate) const RENEWAL: Duration = Duration::from_millis(667);
/// How long every second client keeps unwanted locks.
const LINGER: Duration = Duration::from_millis(20);
/// The delay of processes on a busy machine, beyond what was measured.
pub(crate) const SLACK: Duration = Duration::from_millis(100);

/// Everything that one fault needs.
pub(crate) struct Scene {
    pub(crate) setup: Setup,
    pub(crate) random: Random,
    pub(crate) on: Deployment,
    pub(crate) servers: Servers,
    /// The network of each client, in a scene with a faulty one.
    pub(crate) networks: Vec<Network>,
    pub(crate) clients: Vec<ClientProcess>,
    pub(crate) log: EventLog,
    pub(crate) report: Report,
    /// A connection that stays open, for times without new ones; to Redis only.
    admin: Option<MultiplexedConnection>,
    directory: PathBuf,
    monitors: Vec<Monitor>,
    _resource: Resource,
    before: Vitals,
    stall: Stall,
    pressure: Pressure,
    seed: u64,
    healed: Option<u64>,
    /// The names of locks whose release only an old primary knew.
    stranded: BTreeSet<String>,
}

impl Scene {
    /// Starts everything, and takes the vitals when all connections exist and nobody does anything.
    pub(crate) async fn open(run: Run, mut setup: Setup) -> Result<Self> {
        let kinds = setup.kinds.len();
        setup.kinds.retain(|kind| run.on.kinds().contains(kind));
        // With fewer locks, there would be times when each of them is held for long.
        setup.long_holds &= setup.kinds.len() == kinds;
        setup.response_timeout *= run.on.in_turn();
        setup.tasks = setup.tasks.min(run.on.tasks());
        let directory = lockcore_testkit::scratch().join(format!(
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
            pressure: Pressure::now(),
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
        // A waiter that is soon woken has not connected to every member.
        let all = 2 * MEMBERS * scene.clients.len();
        while run.on == Deployment::Quorum && scene.client_connections().await? < all {
            scene.warm_up().await?;
        }
        scene.before = scene.vitals().await?;
        Ok(scene)
    }

    /// One more client process, with its own network if the scene has a faulty one.
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
                // Clients that keep locks and clients that do not must work together.
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

    /// The time limit for the end of a dead client's holds.
    pub(crate) fn ends_within(&self) -> Duration {
        self.setup.lease + self.on.late()
    }

    /// The time limit for the end of a hold of the lock `name` that no client knows of. If the lock is
    /// fair, it may last longer by `asked_again`.
    pub(crate) fn unknown_ends_within(&self, name: &str, asked_again: Duration) -> Duration {
        match name.contains(Kind::Fair.short()) {
            true => self.ends_within() + asked_again,
            false => self.ends_within(),
        }
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

    /// Makes every client acquire, wait and be woken, so that all connections and tasks exist.
    async fn warm_up(&mut self) -> Result<()> {
        for index in 0..self.clients.len() {
            let other = (index + 1) % self.clients.len();
            let mut places = self.staged(&format!("warm{index}"));
            if self.on == Deployment::Cluster {
                // These are all at one primary; the clients must connect to all others as well.
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

    /// Makes all clients work.
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

    /// Logs that a fault begins.
    pub(crate) fn fault(&self, what: impl Into<String>) -> u64 {
        let t = monotonic();
        self.log.at(t, 0, What::Fault { what: what.into() });
        t
    }

    /// Kills the server that clients use. It takes a while to die, so it may have served for some
    /// time after the fault began. Everything until its end may be lost with it, so that time is
    /// logged as well, and returned.
    pub(crate) fn kill_server(&mut self, what: &str) -> u64 {
        self.fault(what);
        self.servers.current().kill();
        self.fault("it is down")
    }

    /// Logs that the fault has ended.
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

    /// Sends the server a command, on the connection that stays open.
    pub(crate) async fn tell(&self, command: &[&str]) -> Result<redis::Value> {
        let mut request = redis::Cmd::new();
        for part in command {
            request.arg(part);
        }
        Ok(request.query_async(&mut self.admin()?).await?)
    }

    /// Reopens that connection, after the server was restarted.
    pub(crate) async fn renew_admin(&mut self) -> Result<()> {
        self.admin = admin_of(&self.servers).await?;
        Ok(())
    }

    fn admin(&self) -> Result<MultiplexedConnection> {
        self.admin.clone().ok_or_else(|| failure("this is no Redis"))
    }

    /// The number of connections made to this server so far.
    pub(crate) async fn connections_so_far(&self) -> Result<u64> {
        let told =
            redis::cmd("INFO").arg("stats").query_async::<String>(&mut self.admin()?).await?;
        let count = told.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }

    /// The number of commands that clients have sent so far.
    pub(crate) async fn commands_so_far(&self) -> u64 {
        self.servers.commands().await
    }

    /// Records a measured time, which must not exceed `bound` and the delay of the machine itself.
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

    /// Fails the fault if a condition does not hold.
    pub(crate) fn expect(&mut self, holds: bool, message: impl Into<String>) {
        if !holds {
            self.finding(message);
        }
    }
}

/// Monitors of the servers, where the data of one server is authoritative.
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

/// The name of such connections, which tells them from those of clients.
const ADMIN: &str = "battery";

/// The password of faults with authentication.
pub(crate) const SECRET: &str = "canary-7f3a91";

/// Returns `true` if a line of `CLIENT LIST` is of none of these: the battery's query, its monitor
/// and its own connection, a Sentinel, a replica, a primary, a node that sends keys.
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
