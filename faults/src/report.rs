//! [`Report`]: what came of one fault; and the table of all.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use crate::protocol::Kind;

/// A time that was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) what: String,
    /// `None`: it did not happen.
    pub(crate) took: Option<Duration>,
    pub(crate) bound: Duration,
    /// What this machine was late by itself, which is allowed on top.
    pub(crate) stall: Duration,
}

/// What came of one fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) number: u32,
    pub(crate) title: &'static str,
    pub(crate) seed: u64,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) grants: usize,
    /// Commands of clients for each acquisition.
    pub(crate) commands: f64,
    pub(crate) losses: usize,
    pub(crate) lost_updates: usize,
    pub(crate) stale_writes: usize,
    /// Which checks were made.
    pub(crate) checked: Vec<String>,
    pub(crate) findings: Vec<String>,
    pub(crate) measures: Vec<Measure>,
    pub(crate) failures: BTreeMap<String, usize>,
    pub(crate) notes: Vec<String>,
    pub(crate) stall: Duration,
    pub(crate) took: Duration,
    /// Why it could not be made here.
    pub(crate) impossible: Option<String>,
}

impl Report {
    pub(crate) fn new(seed: u64, kinds: &[Kind]) -> Self {
        Self { seed, kinds: kinds.to_vec(), ..Self::default() }
    }

    /// A fault that cannot be made on this machine.
    pub(crate) fn impossible(seed: u64, why: impl Into<String>) -> Self {
        Self { seed, impossible: Some(why.into()), ..Self::default() }
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

    /// What people see when a fault is done.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let verdict = match (&self.impossible, self.findings.is_empty()) {
            (Some(_), _) => "cannot be made",
            (None, true) => "ok",
            (None, false) => "FAILED",
        };
        let _ = write!(
            text,
            "{verdict:>8} #{:<2} {} (seed {}): {} grants, {} losses, {:.1} commands each, {:.1} s",
            self.number,
            self.title,
            self.seed,
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

    fn row(&self) -> String {
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
            self.seed,
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

/// The table of a run of everything.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::from(HEAD);
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    let _ = writeln!(
        text,
        "Last run: {} faults, {} grants, {} holds lost (as their faults have it), {} writes turned away by their token, **{} violations**.\n",
        reports.len(),
        sum(|report| report.grants),
        sum(|report| report.losses),
        sum(|report| report.stale_writes),
        sum(|report| report.findings.len())
    );
    text.push_str("| # | fault | kinds | seed | grants | lost | checks | violations | measured (bound) |\n|---|---|---|---|---|---|---|---|---|\n");
    for report in reports {
        text.push_str(&report.row());
        text.push('\n');
    }
    text
}

const HEAD: &str = "# The fault battery\n
Written by `./scripts/faults`; do not edit. Numbers are those of the table of faults that the battery was made from. Several client
processes use locks of every kind on one Redis server while a fault is injected; what all of them saw is checked afterwards: exclusion
by belief, fencing tokens, lost updates at the resource, beliefs against what the server had (`MONITOR`), lost wake-ups, unknown
outcomes, and what is left behind. *lost* counts holds that were lost and whose holders were told, which is right where the fault makes
it so. A bound is exceeded only if it is by more than what the machine itself was late by during the fault.

Where it is not what the name says: a power loss (12) is an append-only file whose end is cut off; a server that cannot save (20) has lost its
directory; lost messages (34) are left out by the proxy, since TCP loses none; half-open connections (36, 37) are frozen in the proxy;
a suspended host (45) is the clock of the client, which jumps; the clocks of the server (43) and of clients (44) are moved by a preloaded
library; slow disks (52) and failing calls (53) are made by `strace`. 23 to 30 and 55 to 57 need several servers and are not in this battery.

Run one again with its number and seed: `./scripts/faults run 39 --seed 7`.\n\n";
