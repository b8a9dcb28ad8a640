//! [`Report`]: the result of one fault.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use crate::{deployment::Deployment, protocol::Kind};

/// The parameters to repeat a run with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) on: Deployment,
}

/// A measured time.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) what: String,
    /// `None` if it did not happen.
    pub(crate) took: Option<Duration>,
    pub(crate) bound: Duration,
    /// The delay of the machine itself, which is allowed on top.
    pub(crate) stall: Duration,
}

/// The result of one fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) number: u32,
    pub(crate) title: &'static str,
    pub(crate) run: Run,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) grants: usize,
    /// Commands of clients for each acquisition.
    pub(crate) commands: f64,
    pub(crate) losses: usize,
    pub(crate) lost_updates: usize,
    pub(crate) stale_writes: usize,
    /// The checks that were made.
    pub(crate) checked: Vec<String>,
    pub(crate) findings: Vec<String>,
    pub(crate) measures: Vec<Measure>,
    pub(crate) failures: BTreeMap<String, usize>,
    pub(crate) notes: Vec<String>,
    pub(crate) stall: Duration,
    pub(crate) took: Duration,
    /// Why the fault is impossible on this machine or deployment.
    pub(crate) impossible: Option<String>,
}

impl Report {
    pub(crate) fn new(run: Run, kinds: &[Kind]) -> Self {
        Self { run, kinds: kinds.to_vec(), ..Self::default() }
    }

    /// A fault that is impossible.
    pub(crate) fn impossible(run: Run, why: impl Into<String>) -> Self {
        Self { run, impossible: Some(why.into()), ..Self::default() }
    }

    pub(crate) fn measure(&mut self, measure: Measure) {
        let Measure { what, took, bound, stall } = &measure;
        match took {
            None => self.findings.push(format!("{what}: it did not happen, {bound:?} was allowed")),
            Some(took) if *took > *bound + *stall => self.findings.push(format!(
                "{what}: it took {took:?}, {bound:?} was allowed, and this machine was late by {stall:?} at most"
            )),
            Some(_) => {}
        }
        self.measures.push(measure);
    }

    /// The output when a fault is done.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let verdict = match (&self.impossible, self.findings.is_empty()) {
            (Some(_), _) => "cannot be made",
            (None, true) => "ok",
            (None, false) => "FAILED",
        };
        let _ = write!(
            text,
            "{verdict:>8} #{:<2} {} ({}, seed {}): {} grants, {} losses, {:.1} commands each, {:.1} s",
            self.number,
            self.title,
            self.run.on,
            self.run.seed,
            self.grants,
            self.losses,
            self.commands,
            self.took.as_secs_f64()
        );
        for measure in &self.measures {
            let _ = write!(text, "; {}", shown(measure));
        }
        for finding in self.findings.iter().take(12) {
            let _ = write!(text, "\n           {finding}");
        }
        for note in self.impossible.iter().chain(&self.notes) {
            let _ = write!(text, "\n           ({note})");
        }
        text
    }

    /// The row of the fault in the table.
    pub(crate) fn row(&self) -> String {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.short()).collect();
        let verdict = match (&self.impossible, self.findings.len()) {
            (Some(why), _) => format!("cannot be made here: {why}"),
            (None, 0) => "0".into(),
            (None, count) => format!("**{count}**"),
        };
        let measures: Vec<_> =
            self.measures.iter().map(shown).chain(self.notes.iter().cloned()).collect();
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {verdict} | {} |",
            self.number,
            self.title,
            kinds.join(", "),
            self.run.seed,
            self.grants,
            self.losses,
            self.checked.join(" "),
            measures.join("; ").replace('|', "/")
        )
    }
}

fn shown(measure: &Measure) -> String {
    let ms = |time: Duration| time.as_millis();
    match measure.took {
        Some(took) => format!("{} {} ms (≤ {})", measure.what, ms(took), ms(measure.bound)),
        None => format!("{} never (≤ {} ms)", measure.what, ms(measure.bound)),
    }
}
