//! [`Plan`] and [`Stage`]: the environment of a scenario.

use std::{future::Future, pin::Pin, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    error::Result,
    measure::{
        load::{Load, Span},
        samples::Samples,
        server::Server,
        stats::{float, ratio},
    },
    report::{BEST_PEER, BETTER_RSLOCK, RATIO, Record, Report},
    subjects::{Ability, Names, Runtime, Subject},
    worker::Worker,
};

/// The lease of holds where leases do not matter.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A scenario: one file in `scenarios/`.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// One sentence about it.
    pub(crate) about: &'static str,
    pub(crate) run: Run,
}

type Run = for<'a> fn(&'a mut Stage<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) is_quick: bool,
    pub(crate) has_redisson: bool,
    pub(crate) has_go: bool,
    /// See [`in_parts`](Self::in_parts).
    parts: u32,
}

impl Plan {
    pub(crate) fn new(is_quick: bool, has_redisson: bool, has_go: bool) -> Self {
        Self { is_quick, has_redisson, has_go, parts: 1 }
    }

    /// The same plan with so many times the rounds, each of which is that much shorter. If the
    /// machine is not always equally fast, it is more alike for the subjects of a short round.
    pub(crate) fn in_parts(self, parts: u32) -> Self {
        Self { parts, ..self }
    }

    /// The flag that a subject needs to take part, if it needs one.
    fn flag_for(self, subject: Subject) -> Option<&'static str> {
        match subject.runtime() {
            Runtime::Java if !self.has_redisson => Some("asked for with `--redisson`"),
            Runtime::Go if !self.has_go => Some("asked for with `--go`"),
            _ => None,
        }
    }

    /// The first value in a quick run, the second in a full one.
    pub(crate) fn either<T>(self, quick: T, full: T) -> T {
        if self.is_quick { quick } else { full }
    }

    pub(crate) fn rounds(self) -> usize {
        let parts = usize::try_from(self.parts).unwrap_or(1);
        parts * self.either(3, 5)
    }

    /// The duration for one subject in one round.
    pub(crate) fn span(self) -> Span {
        let [warm_up, measured] =
            self.either([100, 400], [500, 2000]).map(|ms| Duration::from_millis(ms) / self.parts);
        Span { warm_up, measured }
    }

    /// A sentence about the plan.
    pub(crate) fn describe(self) -> String {
        let kind = self.either("A run with `--quick`", "A full run");
        let Span { warm_up, measured } = self.span();
        format!(
            "{kind}: {} rounds of {measured:?} after {warm_up:?} of warm-up, lockcore {}, {}.",
            self.rounds(),
            env!("CARGO_PKG_VERSION"),
            if cfg!(debug_assertions) {
                "a debug build: the figures mean nothing"
            } else {
                "a release build"
            },
        )
    }
}

/// A load, and the server's processor time per pair, in seconds.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) load: Load,
    pub(crate) server_time: f64,
}

/// The environment of a scenario.
pub(crate) struct Stage<'a> {
    pub(crate) plan: Plan,
    scenario: &'static str,
    report: &'a mut Report,
    progress: &'a ProgressBar,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        plan: Plan,
        scenario: &'static str,
        report: &'a mut Report,
        progress: &'a ProgressBar,
    ) -> Self {
        Self { plan, scenario, report, progress }
    }

    /// The subjects with all of these abilities. The report notes why the others lack them. The
    /// fair lock takes part only where a scenario says so.
    pub(crate) fn subjects(&mut self, abilities: &[Ability]) -> Vec<Subject> {
        let mut able = Vec::new();
        let others = |subject: &Subject| *subject != Subject::LockcoreFair;
        for subject in Subject::ALL.into_iter().filter(others) {
            let cannot = abilities.iter().find_map(|ability| subject.cannot(*ability));
            match cannot.or_else(|| self.plan.flag_for(subject)) {
                Some(reason) => self.left_out(subject, reason),
                None => able.push(subject),
            }
        }
        able
    }

    /// Notes that a subject does not take part, and why.
    pub(crate) fn left_out(&mut self, subject: Subject, reason: &str) {
        self.report.leave_out(self.scenario, subject.name(), reason);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.report.note(self.scenario, note.into());
    }

    /// Shows the current step.
    pub(crate) fn step(&self, what: &str) {
        self.progress.set_message(format!("{}: {what}", self.scenario));
        self.progress.tick();
    }

    /// A worker for each subject.
    pub(crate) async fn workers(
        &self,
        subjects: &[Subject],
        server: &Server,
        lease: Duration,
    ) -> Result<Vec<(Subject, Worker)>> {
        self.workers_at(subjects, &server.url(), lease).await
    }

    /// A worker for each subject, on the store at this URL.
    pub(crate) async fn workers_at(
        &self,
        subjects: &[Subject],
        url: &str,
        lease: Duration,
    ) -> Result<Vec<(Subject, Worker)>> {
        let mut workers = Vec::new();
        for subject in subjects {
            self.step(&format!("{} starts", subject.name()));
            workers.push((*subject, Worker::start(*subject, url, lease).await?));
        }
        Ok(workers)
    }

    /// Notes the failures under a load. The tasks have continued.
    pub(crate) fn failures(&mut self, subject: Subject, load: &Load) {
        if let Some(reason) = &load.reason {
            let name = subject.name();
            self.note(format!(
                "{name}: {} operations failed in a round, the first with: {reason}",
                load.failures
            ));
        }
    }

    /// Returns the result, or `None` if the subject failed. The failure of another library is a
    /// result, which is noted; that of lockcore is an error.
    pub(crate) fn done<T>(&mut self, subject: Subject, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if subject != Subject::Lockcore => {
                self.left_out(subject, &format!("it was tried and failed: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a worker carry out a load of the plan's duration in a round.
    pub(crate) async fn load(
        &mut self,
        (subject, worker): &mut (Subject, Worker),
        round: usize,
        names: Names,
        tasks: usize,
    ) -> Result<Load> {
        self.turn(*subject, round);
        let load = worker.load(names, tasks, self.plan.span()).await?;
        self.failures(*subject, &load);
        Ok(load)
    }

    /// The same, with the processor time of the server. Nothing else uses the server meanwhile.
    pub(crate) async fn served(
        &mut self,
        worker: &mut (Subject, Worker),
        server: &Server,
        round: usize,
        names: Names,
        tasks: usize,
    ) -> Result<Served> {
        let before = server.processor_time()?;
        let load = self.load(worker, round, names, tasks).await?;
        let used = server.processor_time()?.saturating_sub(before);
        let server_time = ratio(used.as_secs_f64(), float(load.all_pairs));
        Ok(Served { load, server_time })
    }

    /// Shows which subject is being measured.
    pub(crate) fn turn(&self, subject: Subject, round: usize) {
        self.step(&format!("{}, round {} of {}", subject.name(), round + 1, self.plan.rounds()));
    }

    pub(crate) fn value(
        &mut self,
        subject: impl Into<String>,
        metric: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Result<()> {
        self.record(subject.into(), metric.into(), value, unit, None)
    }

    /// Records lockcore's figure as a multiple of another one.
    pub(crate) fn against(&mut self, metric: &str, value: f64, against: &str) -> Result<()> {
        self.record(
            Subject::Lockcore.name().into(),
            metric.into(),
            value,
            RATIO,
            Some(against.into()),
        )
    }

    fn record(
        &mut self,
        subject: String,
        metric: String,
        value: f64,
        unit: &'static str,
        against: Option<String>,
    ) -> Result<()> {
        self.report.add(Record { scenario: self.scenario, subject, metric, value, unit, against })
    }

    /// The median of a metric for each subject.
    pub(crate) fn values<T>(
        &mut self,
        samples: &Samples<T>,
        metric: &str,
        unit: &'static str,
        of: impl Fn(&T) -> f64,
    ) -> Result<()> {
        for subject in samples.subjects() {
            self.value(subject.name(), metric, samples.median(subject, &of), unit)?;
        }
        Ok(())
    }

    /// The same, and the ratios of lockcore's figure to each of the others by round, with `others`
    /// combined where rslock has two settings. More is better.
    pub(crate) fn compare<T>(
        &mut self,
        samples: &Samples<T>,
        metric: &str,
        unit: &'static str,
        of: impl Fn(&T) -> f64,
    ) -> Result<()> {
        self.values(samples, metric, unit, &of)?;
        let settings = [Subject::Rslock, Subject::RslockFast];
        let has_both = settings.iter().all(|setting| samples.subjects().contains(setting));
        if has_both {
            self.against(metric, samples.ratio(&settings, &of), BETTER_RSLOCK)?;
        }
        for subject in samples.subjects() {
            if subject != Subject::Lockcore && !(has_both && settings.contains(&subject)) {
                self.against(metric, samples.ratio(&[subject], &of), subject.name())?;
            }
        }
        Ok(())
    }

    /// The same for pairs per second, and against the peer with the most.
    pub(crate) fn compare_with_best<T>(
        &mut self,
        samples: &Samples<T>,
        metric: &str,
        of: impl Fn(&T) -> f64,
    ) -> Result<()> {
        self.compare(samples, metric, "1/s", &of)?;
        let peers = samples.subjects().into_iter().filter(|subject| subject.is_peer());
        let best = samples.ratio(&peers.collect::<Vec<_>>(), &of);
        self.against(metric, best, BEST_PEER)
    }

    /// The server's processor time per pair, and lockcore's as a multiple of rslock's.
    pub(crate) fn server_time(&mut self, samples: &Samples<Served>, metric: &str) -> Result<()> {
        let of = |served: &Served| served.server_time * 1e6;
        self.values(samples, metric, "us", of)?;
        self.note("server time: processor time of all threads of the redis-server, for a pair");
        if !samples.of(Subject::Rslock).is_empty() {
            self.against(metric, samples.ratio(&[Subject::Rslock], of), Subject::Rslock.name())?;
        }
        Ok(())
    }

    /// The advantage over a peer for a figure of which less is better, if both have one.
    pub(crate) fn less_than(
        &mut self,
        peer: Subject,
        metric: &str,
        ours: f64,
        theirs: Option<f64>,
    ) -> Result<()> {
        let metric = format!("{metric}, less is more");
        theirs.map_or(Ok(()), |theirs| self.against(&metric, ratio(theirs, ours), peer.name()))
    }
}

/// Rotates the subjects, so that each round begins with another one.
pub(crate) fn rotate<T>(subjects: &mut [T]) {
    if !subjects.is_empty() {
        subjects.rotate_left(1);
    }
}

/// The progress bar at the bottom of the terminal, hidden where there is no terminal.
pub(crate) fn progress_bar(scenarios: usize) -> Result<ProgressBar> {
    let bar = ProgressBar::new(scenarios as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")?);
    bar.enable_steady_tick(Duration::from_millis(250));
    Ok(bar)
}
