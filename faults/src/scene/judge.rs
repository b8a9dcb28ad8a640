//! [`Judge`]: the requirements on a run, and how they are checked at its end.

use std::time::{Duration, Instant};

use lockcore_testkit::{
    Event, Operations, What,
    checks::{self, Finding, ServerTruth, Vitals, Waits},
};

use super::{
    SECRET, SLACK, Scene,
    losses::{Loss, losses},
};
use crate::{
    deployment::Deployment,
    protocol::{Order, Result},
    report::Report,
};

/// The maximum number of commands per acquisition: attempts, subscriptions, renewals, the release.
const COMMANDS: u64 = 12;

/// The tasks of an etcd connection, which its library spawns.
const TASKS: usize = 3;

/// The requirements on a run. The default is everything.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// `true` if beliefs must exclude each other: not if the server lost its data.
    pub(crate) exclusion: bool,
    /// `true` if beliefs must match the server.
    pub(crate) truth: bool,
    /// The time limit to acquire a free lock, outside of the fault.
    pub(crate) wakeup: Duration,
    /// The time limit of the recovery after the fault.
    pub(crate) recovery: Duration,
    /// `true` if holds may be lost.
    pub(crate) losses: bool,
    /// The failures that clients may see, besides those that are always allowed.
    pub(crate) failures: &'static [&'static str],
    /// The failures that are always allowed: timeouts and broken connections, but not where other
    /// servers stand in for one.
    pub(crate) always_failures: &'static [&'static str],
    /// The time limit for telling the holder of a forgotten lock after another client got it;
    /// `None` if it is not checked.
    pub(crate) told: Option<Duration>,
    /// `true` if this run must lose updates.
    pub(crate) must_lose_updates: bool,
    /// How much longer than its lease a hold of a fair lock may last that no client knows of.
    pub(crate) asked_again: Duration,
    /// The maximum growth of the clients' memory, in kB.
    pub(crate) growth: usize,
    /// The commands that clients may send because of what the fault does to their connections.
    pub(crate) commands: u64,
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
            always_failures: &["Backend(Timeout)", "Backend(Connection)", "Lost"],
            told: None,
            must_lose_updates: false,
            asked_again: Duration::ZERO,
            growth: 16_000,
            commands: 0,
        }
    }
}

impl Scene {
    /// Lets the clients work on for a while after the fault, makes them rest, checks for leftovers,
    /// ends them, and checks the logs.
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
            let pressure = self.pressure.since();
            self.note(format!(
                "this machine was late by {late:?} at most{pressure}; logs: {directory}"
            ));
        }
        Ok(self.report)
    }

    /// After a failed release, leftovers may exist for a lease and a little longer.
    async fn look_for_leftovers(&mut self, growth: usize) -> Result<()> {
        let start = Instant::now();
        let (before, limit) = (self.expected_vitals(), self.ends_within() + Duration::from_secs(2));
        loop {
            let after = self.vitals().await?;
            let findings = checks::leftovers(&before, &after, growth);
            if findings.is_empty() || start.elapsed() > limit {
                self.measure("quiescence", Some(start.elapsed()), limit);
                self.add(findings);
                return Ok(());
            }
            self.sleep(100).await;
        }
    }

    /// Killed clients have nothing left.
    fn expected_vitals(&self) -> Vitals {
        let running = self.clients.iter().filter(|client| client.is_running()).count();
        let share = |all: usize| all * running / self.setup.clients.max(1);
        // A client connects to another etcd member when it has to use that one.
        let others = running * (self.on.in_turn() as usize - 1);
        // A client has one stream, which it may have lost and not needed again before the fault.
        let streams = if self.on == Deployment::Etcd { running } else { 0 };
        Vitals {
            connections: share(self.before.connections).max(streams),
            tasks: share(self.before.tasks) + running + others * TASKS,
            descriptors: share(self.before.descriptors) + running + others,
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
            commands <= self.on.requests() as u64 * COMMANDS * asked + 500 + judge.commands,
            format!("I10: clients sent {commands} commands for {asked} acquisitions"),
        );
        self.report.stale_writes = checks::stale_writes(&events);
        self.report.lost_updates = checks::lost_updates(&events).len();
        let slack = self.stall.longest() + SLACK;
        let known = if judge.truth { self.known() } else { None };
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
            |name| self.unknown_ends_within(name, judge.asked_again),
            slack,
        ));
        let (lease, grace) = (self.ends_within(), judge.recovery);
        // The place of a dead client may end that much later as well.
        let within = judge.wakeup + self.on.late() + slack;
        let waits = Waits { lease, within, grace };
        let mut late = checks::wakeups(&operations, &events, waits);
        // A stranded lock is not free, although everybody has released it.
        late.retain(|finding| {
            !self.stranded.iter().any(|name| finding.message.starts_with(&format!("`{name}`:")))
        });
        findings.extend(late);
        self.add(findings);
        if let Some(told) = judge.told {
            self.look_for_forgotten(&operations, told + slack);
        }
        self.look_for_failures(judge, &events);
        self.look_for_losses(judge, &operations)?;
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

    /// The holds of the servers, and since when they are known: `None` if one of them was killed.
    fn known(&self) -> Option<(ServerTruth, u64)> {
        let since = self.monitors.iter().map(|monitor| monitor.since).max()?;
        let mut known = ServerTruth::default();
        for monitor in &self.monitors {
            if !monitor.is_whole() {
                return None;
            }
            for hold in monitor.truth().holds() {
                known.add(&hold.name, &hold.owner, hold.from, hold.to);
            }
        }
        Some((known, since))
    }

    fn look_for_failures(&mut self, judge: &Judge, events: &[Event]) {
        for event in events {
            if let What::Failed { kind, .. } | What::NotReleased { kind, .. } = &event.what {
                let kind = kind.as_str();
                *self.report.failures.entry(kind.into()).or_default() += 1;
                let known = [judge.always_failures, judge.failures, self.on.failures()];
                if !known.iter().any(|kinds| kinds.contains(&kind)) {
                    self.report.findings.push(format!("I9 failures: {} saw {kind}", event.client));
                }
            }
        }
    }

    fn look_for_losses(&mut self, judge: &Judge, operations: &Operations) -> Result<()> {
        let lost = losses(operations);
        self.report.losses = lost.len();
        if judge.losses {
            return Ok(());
        }
        let (excused, lost): (Vec<_>, Vec<_>) =
            lost.into_iter().partition(|loss| self.stood_still(loss.told));
        if let Some(Loss { name, .. }) = lost.first() {
            self.finding(format!("I4 losses: {} holds were lost, of `{name}` first", lost.len()));
        }
        if !excused.is_empty() {
            self.note(format!("{} holds lost while this machine stood still", excused.len()));
        }
        self.explain(&lost)?;
        self.explain(&excused)
    }

    fn add(&mut self, findings: Vec<Finding>) {
        self.report.findings.extend(findings.iter().map(Finding::to_string));
    }
}
