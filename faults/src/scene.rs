//! [`Scene`]: a server, a resource, clients and perhaps a bad network, for one fault; and the judgement at its end.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore_testkit::{
    EventLog, Operations, Proxy, RedisServer, What,
    checks::{self, Finding, Vitals, Waits},
    monotonic, span,
};
use redis::aio::MultiplexedConnection;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::{
    monitor::Monitor,
    process::{ClientProcess, signal_process},
    protocol::{Answer, ClientConfig, Kind, Order, Place, Result, failure},
    report::{Measure, Report},
    resource::Resource,
    rng::Random,
};

/// The lease of all locks.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How long a client waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);
/// When a hold is renewed.
pub(crate) const RENEWAL: Duration = Duration::from_millis(667);
/// How many commands an acquisition may cost: attempts, subscriptions, renewals, the release.
const COMMANDS: u64 = 12;
/// What processes on a busy machine are late by, beyond what was measured.
pub(crate) const SLACK: Duration = Duration::from_millis(100);

/// What a scene begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) names: usize,
    pub(crate) clients: usize,
    pub(crate) tasks: usize,
    pub(crate) hold_ms: (u64, u64),
    pub(crate) server: Vec<String>,
    pub(crate) server_environment: Vec<(String, String)>,
    pub(crate) client_environment: Vec<(String, String)>,
    pub(crate) user: String,
    pub(crate) proxied: bool,
    pub(crate) fenced: bool,
    pub(crate) careless: bool,
    pub(crate) allow_eviction: bool,
    pub(crate) can_suspend: bool,
    pub(crate) long_holds: bool,
    pub(crate) retry_for: Duration,
    pub(crate) response_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kinds: Kind::ALL.to_vec(),
            names: 3,
            clients: 4,
            tasks: 16,
            hold_ms: (5, 60),
            server: Vec::new(),
            server_environment: Vec::new(),
            client_environment: Vec::new(),
            user: String::new(),
            proxied: false,
            fenced: true,
            careless: false,
            allow_eviction: false,
            can_suspend: false,
            long_holds: false,
            retry_for: Duration::from_secs(5),
            response_timeout: TIMEOUT,
        }
    }
}

impl Setup {
    pub(crate) fn server(mut self, options: &[&str]) -> Self {
        self.server.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// The server keeps what it has been told.
    pub(crate) fn durable(self) -> Self {
        self.server(&["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// There is a network that can be made bad, and some stay inside for long.
    pub(crate) fn proxied(self) -> Self {
        Self { proxied: true, long_holds: true, ..self }
    }

    /// Nobody looks at tokens: exclusion alone has to prevent lost updates.
    pub(crate) fn unfenced(self) -> Self {
        Self { fenced: false, ..self }
    }
}

/// What is asked of a run at its end. By default all.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// Whether beliefs must exclude each other: not if the server lost what it knew.
    pub(crate) exclusion: bool,
    /// Whether beliefs must be true at the server.
    pub(crate) truth: bool,
    /// Within what time a free lock must be had, outside of the fault.
    pub(crate) wakeup: Duration,
    /// How long after the fault recovery may take.
    pub(crate) recovery: Duration,
    /// Whether holds may be lost.
    pub(crate) losses: bool,
    /// Which failures clients may see, besides time-outs and broken connections.
    pub(crate) failures: &'static [&'static str],
    /// Whether lost updates are what this run is about: there must be some.
    pub(crate) must_lose_updates: bool,
    /// How much memory clients may take more than in the beginning, in kB.
    pub(crate) growth: usize,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            exclusion: true,
            truth: true,
            wakeup: Duration::from_secs(1),
            recovery: Duration::from_secs(1),
            losses: false,
            failures: &[],
            must_lose_updates: false,
            growth: 16_000,
        }
    }
}

/// Everything that one fault needs.
pub(crate) struct Scene {
    pub(crate) setup: Setup,
    pub(crate) random: Random,
    pub(crate) server: RedisServer,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) clients: Vec<ClientProcess>,
    pub(crate) log: EventLog,
    pub(crate) report: Report,
    /// A connection that stays open, for when there are no new ones.
    pub(crate) admin: MultiplexedConnection,
    directory: PathBuf,
    monitor: Option<Monitor>,
    _resource: Resource,
    before: Vitals,
    stall: Stall,
    seed: u64,
    healed: Option<u64>,
}

impl Scene {
    /// Starts everything, and takes the vitals when all connections are there and nobody does anything.
    pub(crate) async fn open(seed: u64, setup: Setup) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!(
            "lockcore-faults-{}-{:x}",
            std::process::id(),
            unique()
        ));
        std::fs::create_dir_all(&directory)?;
        let options: Vec<&str> = setup.server.iter().map(String::as_str).collect();
        let server = RedisServer::try_start_with_environment(&options, &setup.server_environment)?;
        let resource = Resource::start(
            &directory.join("resource"),
            EventLog::open(&directory.join("resource.jsonl"), "resource")?,
            setup.fenced,
        )?;
        let monitor = Monitor::start(server.port()).await?;
        let admin = admin(&server.url()).await?;
        let mut scene = Self {
            random: Random::new(seed),
            log: EventLog::open(&directory.join("rig.jsonl"), "rig")?,
            report: Report::new(seed, &setup.kinds),
            proxies: Vec::new(),
            clients: Vec::new(),
            monitor: Some(monitor),
            admin,
            _resource: resource,
            before: Vitals::default(),
            stall: Stall::start(),
            healed: None,
            server,
            directory,
            seed,
            setup,
        };
        for _ in 0..scene.setup.clients {
            scene.add_client().await?;
        }
        scene.warm_up().await?;
        scene.before = scene.vitals().await?;
        Ok(scene)
    }

    /// One more client process, with a network of its own if the scene has a bad one.
    pub(crate) async fn add_client(&mut self) -> Result<usize> {
        let number = self.clients.len();
        let client = format!("client{number}");
        let mut port = self.server.port();
        if self.setup.proxied {
            let proxy = Proxy::start(port).await?;
            port = proxy.port();
            self.proxies.push(proxy);
        }
        let config = ClientConfig {
            url: format!("redis://{}127.0.0.1:{port}", self.setup.user),
            lease: LEASE,
            response_timeout: self.setup.response_timeout,
            connect_timeout: Duration::from_millis(500),
            retry_for: self.setup.retry_for,
            queue_timeout: Duration::from_secs(1),
            allow_eviction: self.setup.allow_eviction,
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
        self.clients.push(ClientProcess::start(config, &self.setup.client_environment).await?);
        Ok(number)
    }

    fn places(&self) -> Vec<Place> {
        let kinds = self.setup.kinds.iter();
        kinds
            .flat_map(|kind| {
                (0..self.setup.names)
                    .map(|number| Place { kind: *kind, name: format!("{}{number}", kind.short()) })
            })
            .collect()
    }

    /// A lock of each kind that is used for one purpose only.
    pub(crate) fn staged(&self, purpose: &str) -> Vec<Place> {
        let kinds = self.setup.kinds.iter();
        kinds
            .map(|kind| Place { kind: *kind, name: format!("{purpose}-{}", kind.short()) })
            .collect()
    }

    /// Every client acquires, waits and is woken, so that all connections and tasks are there.
    async fn warm_up(&mut self) -> Result<()> {
        for index in 0..self.clients.len() {
            let other = (index + 1) % self.clients.len();
            for place in self.staged(&format!("warm{index}")) {
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

    /// Has `holder` hold a lock of each kind, and `waiter` wait for them.
    pub(crate) async fn stage(
        &mut self,
        purpose: &str,
        holder: usize,
        waiter: Option<usize>,
    ) -> Result<Vec<Place>> {
        let places = self.staged(purpose);
        for place in &places {
            self.clients[holder].order(Order::Hold(place.clone())).await?;
            if let Some(waiter) = waiter {
                self.clients[waiter].order(Order::Wait(place.clone())).await?;
            }
        }
        self.sleep(100).await;
        Ok(places)
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

    pub(crate) fn signal_server(&self, signal: Signal) -> Result<()> {
        signal_process(Some(self.server.pid()), signal)
    }

    /// Tells the server something, on the connection that stays open.
    pub(crate) async fn tell(&self, command: &[&str]) -> Result<redis::Value> {
        let mut request = redis::Cmd::new();
        for part in command {
            request.arg(part);
        }
        Ok(request.query_async(&mut self.admin.clone()).await?)
    }

    /// Opens that connection again, after the server was started anew.
    pub(crate) async fn renew_admin(&mut self) -> Result<()> {
        self.admin = admin(&self.server.url()).await?;
        Ok(())
    }

    /// Releases what is staged with a client, and says which failures there were.
    pub(crate) async fn release(&mut self, index: usize) -> Result<Vec<(String, Option<String>)>> {
        match self.clients[index].order(Order::Release).await? {
            Answer::Released(released) => Ok(released),
            answer => Err(failure(format!("not an answer to a release: {answer:?}"))),
        }
    }

    /// Releases what is staged with a client, which must go well.
    pub(crate) async fn release_well(&mut self, index: usize) -> Result<()> {
        for (name, failure) in self.release(index).await? {
            if let Some(failure) = failure {
                self.finding(format!("the release of `{name}` failed: {failure}"));
            }
        }
        Ok(())
    }

    /// Fails if somebody was told of the loss of these places.
    pub(crate) fn expect_held(&mut self, places: &[Place]) -> Result<()> {
        let operations = Operations::of(&self.events()?);
        let lost = operations.granted().filter(|operation| operation.lost.is_some());
        let of_places =
            lost.filter(|operation| places.iter().any(|place| place.name == operation.name));
        let names: Vec<_> = of_places.map(|operation| operation.name.clone()).collect();
        self.expect(
            names.is_empty(),
            format!("I1: holds were lost that should have been kept: {names:?}"),
        );
        Ok(())
    }

    /// How many connections this server has been asked for so far.
    pub(crate) async fn connections_so_far(&self) -> Result<u64> {
        let told =
            redis::cmd("INFO").arg("stats").query_async::<String>(&mut self.admin.clone()).await?;
        let count = told.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }

    /// How many commands clients have sent so far.
    pub(crate) async fn commands_so_far(&self) -> u64 {
        self.server.client_commands().await
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

    /// All that has been written down so far.
    pub(crate) fn events(&self) -> Result<Vec<lockcore_testkit::Event>> {
        let mut events = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                events.extend(EventLog::read(&path)?);
            }
        }
        Ok(events)
    }

    /// How long after `t` each of the places was taken over, the longest.
    pub(crate) fn takeover(&self, places: &[Place], t: u64) -> Result<Option<Duration>> {
        let operations = Operations::of(&self.events()?);
        let all: Option<Vec<_>> = places
            .iter()
            .map(|place| checks::takeover_after(&operations, &place.name, t))
            .collect();
        Ok(all.and_then(|all| all.into_iter().max()))
    }

    /// How long after `t` the holders of the places were told of the loss, the longest.
    pub(crate) fn loss_notice(&self, places: &[Place], t: u64) -> Result<Option<Duration>> {
        let operations = Operations::of(&self.events()?);
        let told = places.iter().map(|place| {
            let mut of_place =
                operations.granted().filter(|operation| operation.name == place.name);
            of_place
                .find_map(|operation| operation.lost)
                .map(|lost| Duration::from_nanos(lost.saturating_sub(t)))
        });
        Ok(told.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()))
    }

    /// Waits until every holder of the places was told of the loss.
    pub(crate) async fn until_lost(
        &self,
        places: &[Place],
        t: u64,
        at_most: Duration,
    ) -> Result<Option<Duration>> {
        self.until_known(at_most, || self.loss_notice(places, t)).await
    }

    /// Waits until every place was taken over.
    pub(crate) async fn until_taken(
        &self,
        places: &[Place],
        t: u64,
        at_most: Duration,
    ) -> Result<Option<Duration>> {
        self.until_known(at_most, || self.takeover(places, t)).await
    }

    /// Looks into the logs until they have the answer.
    async fn until_known(
        &self,
        at_most: Duration,
        look: impl Fn() -> Result<Option<Duration>>,
    ) -> Result<Option<Duration>> {
        let start = Instant::now();
        loop {
            let known = look()?;
            if known.is_some() || start.elapsed() > at_most {
                return Ok(known);
            }
            self.sleep(50).await;
        }
    }

    /// The server asks nobody but the clients, the rig and the monitor.
    async fn client_connections(&self) -> Result<usize> {
        let list: String = self.server.try_query(&["CLIENT", "LIST"]).await?;
        Ok(list.lines().filter(is_of_client).count())
    }

    /// Connections of clients, by their ids.
    pub(crate) async fn client_ids(&self, kind: &str) -> Result<Vec<String>> {
        let list: String = self.server.try_query(&["CLIENT", "LIST", "TYPE", kind]).await?;
        let lines =
            list.lines().filter(|line| !line.contains("cmd=client") && !line.contains("flags=O"));
        Ok(lines
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned))
            .collect())
    }

    async fn vitals(&mut self) -> Result<Vitals> {
        let mut vitals = Vitals::default();
        for client in self.clients.iter_mut().filter(|client| client.is_running()) {
            if let Answer::Vitals { tasks, descriptors, memory, .. } =
                client.order(Order::Vitals).await?
            {
                vitals.tasks += tasks;
                vitals.descriptors += descriptors;
                vitals.memory += memory;
            }
        }
        let keys: Vec<String> = self.server.try_query(&["KEYS", "*"]).await?;
        for key in keys {
            let ttl: i64 = self.server.try_query(&["PTTL", &key]).await?;
            if ttl == -1 {
                vitals.endless_keys.push(key.clone());
            }
            if ttl != -2 && is_of_lock(&key) && !self.is_free_semaphore(&key).await? {
                vitals.lock_keys.push(key);
            }
        }
        vitals.channels = self.server.try_query(&["PUBSUB", "CHANNELS"]).await?;
        vitals.connections = self.client_connections().await?;
        Ok(vitals)
    }

    /// A semaphore leaves its number and its book for a day: all permits have to be there, or come back with the next who asks.
    async fn is_free_semaphore(&self, key: &str) -> Result<bool> {
        let [book, times] = [key.strip_prefix("lockcore_permits:{"), key.strip_prefix('{')];
        let name = book.and_then(|name| name.strip_suffix('}'));
        let name = name.or(times.and_then(|name| name.strip_suffix("}:timeout"))).unwrap_or(key);
        if !name.contains("sem") {
            return Ok(false);
        }
        let number: Option<i64> = self.server.try_query(&["GET", name]).await?;
        let [seconds, micros]: [i64; 2] = self.server.try_query(&["TIME"]).await?;
        let now = (seconds * 1000 + micros / 1000).to_string();
        let times = format!("{{{name}}}:timeout");
        let ended: i64 = self.server.try_query(&["ZCOUNT", &times, "-inf", &now]).await?;
        // Without a number nothing that is left of it means anything.
        Ok(number.is_none_or(|number| number + ended == i64::from(crate::protocol::PERMITS)))
    }

    /// Lets the clients work on for a while after the fault, has them rest, looks at what is left, ends them, and judges what
    /// was seen.
    pub(crate) async fn finish(mut self, judge: Judge) -> Result<Report> {
        if self.healed.is_none() {
            self.healed();
        }
        self.sleep(1500).await;
        for client in self.clients.iter_mut().filter(|client| client.is_running()) {
            client.order(Order::Release).await?;
            client.order(Order::Rest).await?;
        }
        let commands = self.commands_so_far().await;
        self.look_for_leftovers(judge.growth).await?;
        self.end_clients().await?;
        self.judge(&judge, commands)?;
        self.report.stall = self.stall.longest();
        if self.report.findings.is_empty() {
            std::fs::remove_dir_all(&self.directory)?;
        } else {
            let (directory, late) = (self.directory.display(), self.report.stall);
            self.note(format!("this machine was late by {late:?} at most; logs: {directory}"));
        }
        Ok(self.report)
    }

    /// What is left may be there for a lease after a failed release, and a little longer.
    async fn look_for_leftovers(&mut self, growth: usize) -> Result<()> {
        let start = Instant::now();
        let before = self.expected_vitals();
        loop {
            let after = self.vitals().await?;
            let findings = checks::leftovers(&before, &after, growth);
            if findings.is_empty() || start.elapsed() > LEASE + Duration::from_secs(2) {
                self.measure("quiescence", Some(start.elapsed()), LEASE + Duration::from_secs(2));
                self.add(findings);
                return Ok(());
            }
            self.sleep(100).await;
        }
    }

    /// Clients that were killed have nothing any more.
    fn expected_vitals(&self) -> Vitals {
        let running = self.clients.iter().filter(|client| client.is_running()).count();
        let share = |all: usize| all * running / self.setup.clients.max(1);
        Vitals {
            connections: share(self.before.connections),
            tasks: share(self.before.tasks) + running,
            descriptors: share(self.before.descriptors) + running,
            memory: share(self.before.memory),
            ..Vitals::default()
        }
    }

    async fn end_clients(&mut self) -> Result<()> {
        let mut findings = Vec::new();
        for client in &mut self.clients {
            if client.is_running() {
                client.order(Order::Exit).await?;
                if !client.ended().await? {
                    findings.push(format!("{} ended badly", client.name()));
                }
            }
            let said = std::fs::read_to_string(&client.said)?;
            if let Some(line) = said.lines().find(|line| line.contains("panicked")) {
                findings.push(format!("{} panicked: {line}", client.name()));
            }
            if said.contains(SECRET) {
                findings.push(format!("{} told the password", client.name()));
            }
        }
        let start = Instant::now();
        while self.client_connections().await? > 0 && start.elapsed() < Duration::from_secs(2) {
            self.sleep(20).await;
        }
        if self.client_connections().await? > 0 {
            findings.push("connections outlive their clients".into());
        }
        self.report.findings.extend(findings);
        Ok(())
    }

    fn judge(&mut self, judge: &Judge, commands: u64) -> Result<()> {
        let events = self.events()?;
        let operations = Operations::of(&events);
        self.report.grants = operations.granted().count();
        let asked = operations.all().len() as u64;
        self.report.commands = commands as f64 / asked.max(1) as f64;
        self.expect(
            commands <= COMMANDS * asked + 500,
            format!("I10: clients sent {commands} commands for {asked} acquisitions"),
        );
        self.report.stale_writes = checks::stale_writes(&events);
        self.report.lost_updates = checks::lost_updates(&events).len();
        let slack = self.stall.longest() + SLACK;
        let truth = self.monitor.as_ref().filter(|monitor| judge.truth && monitor.is_whole());
        let known = truth.map(|monitor| (monitor.truth(), monitor.since));
        self.report.checked = ["C2", "C3", "C5", "C6", "C7"].map(str::to_owned).to_vec();
        self.report.checked.extend(judge.exclusion.then(|| "C1".into()));
        self.report.checked.extend(known.is_some().then(|| "C4".into()));
        self.report.checked.sort();
        let mut findings =
            checks::tokens(&operations, if self.setup.fenced { &events } else { &[] });
        if judge.exclusion {
            findings.extend(checks::exclusion(&operations));
        }
        if judge.must_lose_updates {
            let found = self.report.lost_updates > 0;
            self.expect(
                found,
                "C3 lost updates: none were found though nothing prevents them; the check sees nothing",
            );
        } else if judge.exclusion || self.setup.fenced {
            findings.extend(checks::lost_updates(&events));
        }
        if let Some((truth, since)) = &known {
            findings.extend(checks::truth(&operations, truth, *since, Duration::from_millis(5)));
        }
        findings.extend(checks::outcomes(
            &operations,
            &events,
            known.as_ref().map(|(truth, _)| truth),
            LEASE,
            slack,
        ));
        let waits = Waits { lease: LEASE, within: judge.wakeup + slack, grace: judge.recovery };
        findings.extend(checks::wakeups(&operations, &events, waits));
        self.add(findings);
        self.look_for_failures(judge, &events);
        self.look_for_losses(judge, &operations);
        if let Some(healed) = self.healed {
            let grants =
                operations.granted().filter_map(|operation| operation.granted).map(|(t, _)| t);
            let first =
                grants.filter(|t| *t > healed).min().map(|t| Duration::from_nanos(t - healed));
            if self.setup.tasks > 0 {
                self.measure("recovery", first, judge.recovery);
            }
        }
        Ok(())
    }

    fn look_for_failures(&mut self, judge: &Judge, events: &[lockcore_testkit::Event]) {
        let always = ["Backend(Timeout)", "Backend(Connection)", "Lost"];
        for event in events {
            if let What::Failed { kind, .. } | What::NotReleased { kind, .. } = &event.what {
                let kind = kind.as_str();
                *self.report.failures.entry(kind.into()).or_default() += 1;
                if !always.contains(&kind) && !judge.failures.contains(&kind) {
                    self.report.findings.push(format!("I9 failures: {} saw {kind}", event.client));
                }
            }
        }
    }

    fn look_for_losses(&mut self, judge: &Judge, operations: &Operations) {
        let lost: Vec<_> =
            operations.granted().filter(|operation| operation.lost.is_some()).collect();
        self.report.losses = lost.len();
        if let (false, Some(first)) = (judge.losses, lost.first()) {
            let message =
                format!("I4 losses: {} holds were lost, of `{}` first", lost.len(), first.name);
            self.report.findings.push(message);
        }
    }

    fn add(&mut self, findings: Vec<Finding>) {
        self.report.findings.extend(findings.iter().map(Finding::to_string));
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

/// All but tokens, which go by themselves, and what belongs to the battery.
fn is_of_lock(key: &str) -> bool {
    !key.starts_with("redisson_lock_token:") && !key.starts_with("battery:")
}

/// Whether a line of `CLIENT LIST` is neither the battery's question nor its monitor nor its own connection.
fn is_of_client(line: &&str) -> bool {
    ["cmd=client", "flags=O", " name=battery"].iter().all(|other| !line.contains(other))
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Measures by how much this process was late itself: the machine's part in what clients were late by.
#[derive(Debug)]
struct Stall {
    longest: Arc<AtomicU64>,
    measuring: JoinHandle<()>,
}

impl Stall {
    fn start() -> Self {
        let longest: Arc<AtomicU64> = Arc::default();
        let measuring = tokio::spawn({
            let longest = longest.clone();
            async move {
                loop {
                    let nap = Duration::from_millis(5);
                    let start = Instant::now();
                    tokio::time::sleep(nap).await;
                    longest.fetch_max(span(start.elapsed().saturating_sub(nap)), Ordering::Relaxed);
                }
            }
        });
        Self { longest, measuring }
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.measuring.abort();
    }
}
