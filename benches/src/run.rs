//! [`Plan`] and [`Stage`]: what a scenario runs in.

use std::{future::Future, pin::Pin, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    error::Result,
    measure::{
        load::{Load, Span},
        server::Server,
        stats::{median, ratio},
    },
    report::{BETTER_RSLOCK, RATIO, Record, Report},
    subjects::{Ability, Names, Subject},
    worker::Worker,
};

/// The lease of holds where leases do not matter.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A scenario: one file in `scenarios/`.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// One sentence.
    pub(crate) about: &'static str,
    pub(crate) run: Run,
}

type Run = for<'a> fn(&'a mut Stage<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) is_quick: bool,
    pub(crate) has_redisson: bool,
}

impl Plan {
    /// The first in a quick run, the second in a full one.
    pub(crate) fn either<T>(self, quick: T, full: T) -> T {
        if self.is_quick { quick } else { full }
    }

    pub(crate) fn rounds(self) -> usize {
        self.either(3, 5)
    }

    /// Of one subject in one round.
    pub(crate) fn span(self) -> Span {
        let [warm_up, measured] = self.either([100, 400], [500, 2000]).map(Duration::from_millis);
        Span { warm_up, measured }
    }

    /// In a sentence.
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

/// Where a scenario takes place.
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

    /// The subjects that can do all of this. It is noted why the others cannot.
    pub(crate) fn subjects(&mut self, abilities: &[Ability]) -> Vec<Subject> {
        let mut able = Vec::new();
        for subject in Subject::ALL {
            let reason = abilities.iter().find_map(|ability| subject.cannot(*ability));
            match reason {
                Some(reason) => self.left_out(subject, reason),
                None if subject == Subject::Redisson && !self.plan.has_redisson => {
                    self.left_out(subject, "asked for with `--redisson`");
                }
                None => able.push(subject),
            }
        }
        able
    }

    /// Notes that a subject has no part, and why.
    pub(crate) fn left_out(&mut self, subject: Subject, reason: &str) {
        self.report.leave_out(self.scenario, subject.name(), reason);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.report.note(self.scenario, note.into());
    }

    /// Says what is being done.
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

    /// A worker for each subject, on what is behind this URL.
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

    /// Notes what failed under a load. The tasks have gone on.
    pub(crate) fn failures(&mut self, subject: Subject, load: &Load) {
        if let Some(reason) = &load.reason {
            let name = subject.name();
            self.note(format!(
                "{name}: {} operations failed in a round, the first with: {reason}",
                load.failures
            ));
        }
    }

    /// Whether a subject has done it. That somebody else's library could not is a result, and noted; that lockcore could not is an
    /// error.
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

    /// Has a worker carry out a load of the plan's length in a round.
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

    /// Says which subject's turn it is.
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

    /// How many times as much as something else lockcore's figure is.
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

    /// The same, and how lockcore's compares with each of the others, by the rounds, `others` taken together where rslock has two
    /// settings. More is better.
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

    /// How many times as good as Redisson's a figure is of which less is better, if both have one.
    pub(crate) fn less_than_redisson(
        &mut self,
        metric: &str,
        ours: f64,
        theirs: Option<f64>,
    ) -> Result<()> {
        match theirs {
            Some(theirs) => {
                self.against(&format!("{metric}, less is more"), ratio(theirs, ours), "Redisson")
            }
            None => Ok(()),
        }
    }
}

/// What was measured of each subject in each round.
#[derive(Debug)]
pub(crate) struct Samples<T>(Vec<(Subject, Vec<T>)>);

impl<T> Samples<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, subject: Subject, sample: T) {
        match self.0.iter_mut().find(|(of, _)| *of == subject) {
            Some((_, samples)) => samples.push(sample),
            None => self.0.push((subject, vec![sample])),
        }
    }

    /// In the order in which they are always named.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let has = |subject: &Subject| self.0.iter().any(|(of, _)| of == subject);
        Subject::ALL.into_iter().filter(has).collect()
    }

    pub(crate) fn of(&self, subject: Subject) -> &[T] {
        self.0.iter().find(|(of, _)| *of == subject).map_or(&[], |(_, samples)| samples)
    }

    pub(crate) fn median(&self, subject: Subject, of: impl Fn(&T) -> f64) -> f64 {
        median(&self.of(subject).iter().map(of).collect::<Vec<_>>())
    }

    /// The median of what lockcore's is of the best of these in the same round.
    pub(crate) fn ratio(&self, others: &[Subject], of: impl Fn(&T) -> f64) -> f64 {
        let rounds = self.of(Subject::Lockcore).iter().enumerate().map(|(round, ours)| {
            let best = others
                .iter()
                .filter_map(|other| self.of(*other).get(round))
                .map(&of)
                .fold(0.0, f64::max);
            ratio(of(ours), best)
        });
        median(&rounds.collect::<Vec<_>>())
    }
}

/// Each round begins with another.
pub(crate) fn rotate<T>(subjects: &mut [T]) {
    if !subjects.is_empty() {
        subjects.rotate_left(1);
    }
}

/// The bar at the bottom of the terminal, nothing where there is none.
pub(crate) fn progress_bar(scenarios: usize) -> Result<ProgressBar> {
    let bar = ProgressBar::new(scenarios as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")?);
    bar.enable_steady_tick(Duration::from_millis(250));
    Ok(bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round_and_against_the_better_setting() {
        let mut samples = Samples::new();
        for (ours, slow, fast) in [(10.0, 1.0, 2.0), (30.0, 3.0, 1.0), (80.0, 1.0, 20.0)] {
            samples.add(Subject::Rslock, slow);
            samples.add(Subject::Lockcore, ours);
            samples.add(Subject::RslockFast, fast);
        }
        let ratio = samples.ratio(&[Subject::Rslock, Subject::RslockFast], |sample| *sample);
        assert!((ratio - 5.0).abs() < 1e-9, "{ratio}");
        assert_eq!(samples.subjects()[0], Subject::Lockcore);
    }
}
