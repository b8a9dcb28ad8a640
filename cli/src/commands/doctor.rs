//! `lockctl doctor`.

use std::{fmt::Write as _, time::Duration};

use lockcore::{
    BackendErrorKind, CycleKind, Diagnosis, Finding, LockError, Locks, Severity, WaitCycle,
};
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    cli::Common,
    exit::{Exit, Failure},
    output::{self, escaped, without_passwords},
    store::StoreUrl,
};

/// The time limit for reading who waits for whom.
const LONGEST_LOOK: Duration = Duration::from_secs(15);

const AFTER_HELP: &str = "\
It looks at version, role, persistence, limits, replicas, clock, latency, rights, messages, locks
that nobody cleans up, the state of a cluster, and who waits for whom. Each finding says what was
seen, why it matters and what to do. docs/OPERATING.md lists all of them.

Nothing stays at the store. On Redis the keys are looked at with SCAN, with pauses, and for at most
5 s at each primary. `unknown` is what the store refuses to show: it may be sound or not.

Exit codes: 0 if there is no problem, 1 if there is one. Advice and what is unknown are no problem;
`sound` in the JSON is false if something is unknown.

Examples:
  lockctl doctor
  lockctl doctor --json | jq -r '.findings[] | select(.severity == \"problem\").id'";

/// Looks whether the store is fit for locks, and says what to do if not.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Everything was looked at, and there is no problem.
    sound: bool,
    findings: Vec<FindingReport>,
}

#[derive(Debug, Serialize)]
struct FindingReport {
    id: &'static str,
    severity: String,
    seen: String,
    why: String,
    what_to_do: String,
}

pub(crate) async fn doctor(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let store = common.store()?;
    let mut diagnosis = store.diagnose().await?;
    look_for_deadlocks(&store, &mut diagnosis).await;
    let report = Report::of(&diagnosis);
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(report.text())?,
    }
    Ok(if diagnosis.has_problems() { Exit::UNFIT } else { Exit::SUCCESS })
}

/// Adds the deadlocks that clients have recorded, or that nobody could look for them.
async fn look_for_deadlocks(store: &StoreUrl, diagnosis: &mut Diagnosis) {
    let store = match store.open().await {
        Ok(store) => store,
        // In a store that was never used, nobody waits.
        Err(refused) if refused.lacks_schema => return,
        Err(refused) => {
            if !diagnosis.has_problems() {
                diagnosis.add(refusal(&refused.failure));
            }
            let seen = format!("the records of clients were not read: {}", refused.failure);
            return diagnosis.add(not_looked(seen, "remove what the error names, and look again"));
        }
    };
    let seen = match timeout(LONGEST_LOOK, deadlocks(&store.locks)).await {
        Ok(Ok(found)) => return found.into_iter().for_each(|finding| diagnosis.add(finding)),
        Ok(Err(error)) => Failure::from(error).to_string(),
        Err(_) => format!("the store did not answer within {LONGEST_LOOK:?}"),
    };
    let advice = "allow this user to read the records of clients, or look again";
    diagnosis.add(not_looked(seen, advice));
}

/// The finding that there may be deadlocks, but nobody could look for them.
fn not_looked(seen: String, advice: &'static str) -> Finding {
    Finding::new("deadlock", Severity::Unknown, seen)
        .because("it is not known whether clients wait for each other for ever")
        .to_do(advice)
}

/// The finding that the store refuses clients, for a reason that no other check has found.
fn refusal(failure: &Failure) -> Finding {
    Finding::new("refused", Severity::Problem, failure.to_string())
        .because("a client of this version cannot connect, and so no lock can be acquired")
        .to_do("remove what the error names; if it names an address, look whether it answers")
}

async fn deadlocks(locks: &Locks) -> Result<Vec<Finding>, LockError> {
    let waits = match locks.waits().await {
        Err(LockError::Backend(error)) if error.kind() == BackendErrorKind::Unsupported => {
            return Ok(Vec::new());
        }
        waits => waits?,
    };
    let cycles = waits.cycles().iter().filter(|cycle| cycle.kind() != CycleKind::Passing);
    let finding = |cycle: &WaitCycle| match cycle.kind() {
        CycleKind::Deadlock => Finding::new("deadlock", Severity::Problem, cycle.to_string())
            .because("they wait for each other, and nobody gets any further")
            .to_do(
                "stop one of these processes now; acquire locks in the same order everywhere, or \
                 together with `multi_lock`, or with a time limit",
            ),
        _ => Finding::new("deadlock", Severity::Unknown, cycle.to_string())
            .because(
                "it is one unless a task does several things side by side, or has given its guard \
                 to another task",
            )
            .to_do("look whether these processes get any further; if not, stop one of them"),
    };
    let mut found: Vec<Finding> = cycles.map(finding).collect();
    if found.is_empty() && waits.is_partial() {
        let seen = "there are more records of clients than one look reads, or a client that seems \
                    to be in a deadlock does not confirm it";
        found.push(
            Finding::new("deadlock", Severity::Unknown, seen)
                .because("it is not known whether some of them wait for each other for ever")
                .to_do(
                    "look at who waits with `lockctl top`, and whether these processes are there",
                ),
        );
    }
    Ok(found)
}

impl Report {
    fn of(diagnosis: &Diagnosis) -> Self {
        let findings = diagnosis.findings().iter().map(FindingReport::of).collect();
        Self { sound: diagnosis.is_sound(), findings }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for FindingReport { id, severity, seen, why, what_to_do } in &self.findings {
            let _ = writeln!(text, "{severity} {id}");
            for (title, said) in [("seen", seen), ("why", why), ("do", what_to_do)] {
                if !said.is_empty() {
                    let _ = writeln!(text, "  {title:<5} {}", escaped(said));
                }
            }
            text.push('\n');
        }
        text + &self.summary() + "\n"
    }

    /// The findings, in a few words.
    fn summary(&self) -> String {
        if self.findings.is_empty() {
            return "sound: nothing was found".to_owned();
        }
        let count = |severity: Severity| {
            let severity = severity.to_string();
            self.findings.iter().filter(|finding| finding.severity == severity).count()
        };
        let (problems, unknown) = (count(Severity::Problem), count(Severity::Unknown));
        let plural = if problems == 1 { "" } else { "s" };
        let advice = self.findings.len() - problems - unknown;
        let counts = format!("{problems} problem{plural}, {unknown} unknown, {advice} advice");
        if self.sound { format!("sound: {counts}") } else { counts }
    }
}

impl FindingReport {
    fn of(finding: &Finding) -> Self {
        Self {
            id: finding.id(),
            severity: finding.severity().to_string(),
            seen: without_passwords(finding.seen()),
            why: finding.reason().to_owned(),
            what_to_do: finding.advice().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_tells_cannot_act_on_the_terminal() {
        let mut diagnosis = Diagnosis::new();
        assert_eq!(Report::of(&diagnosis).text(), "sound: nothing was found\n");
        let hostile = "host has `a\u{1b}[2J\r\nb`";
        diagnosis
            .add(Finding::new("endless", Severity::Problem, hostile).because("why").to_do("do it"));
        diagnosis.add(Finding::new("config", Severity::Unknown, "refused"));
        let text = Report::of(&diagnosis).text();
        let expected = "problem endless\n  seen  host has `a\\u{1b}[2J\\r\\nb`\n  why   why\n  \
                        do    do it\n\nunknown config\n  seen  refused\n\n\
                        1 problem, 1 unknown, 0 advice\n";
        assert_eq!(text, expected);
    }
}
