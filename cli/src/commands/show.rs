//! `lockctl show`.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{StoredEntry, StoredKind},
};
use serde::Serialize;

use crate::{
    cli::Common,
    clients::{Clients, Who},
    exit::{Exit, Failure},
    output::{self, Table},
    pace::Pace,
    report::{PermitsReport, Report},
    store::Store,
};

const AFTER_HELP: &str = "\
Host, program and process id are shown of clients that have told them. A nested hold without a
request of its own is known to its process only, and those without a place in a queue are shown when
they have waited for a few seconds.

The last token is that of the holder while the name is held by one. The last table has the keys or
rows that the store keeps of the name. Its NUMBER is the token of a hold, or how many wait, are
available or are counted. PostgreSQL lists the conditions that somebody waits for. Redis can only
look for those that --condition names, because it would have to look at all keys otherwise.

Examples:
  lockctl show nightly
  lockctl show orders --condition not-empty --condition not-full
  lockctl show nightly --json | jq -r '.holders[].owner'";

/// Shows one name: its kind, holders, tokens, queue, permits, conditions and what is stored of it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The name of the lock.
    name: String,
    /// Looks for this condition of the lock as well. May be given several times.
    #[arg(long, value_name = "NAME")]
    condition: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn show(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let name = LockName::new(args.name.as_str())?;
    let store = common.store()?.open().await?;
    let mut report = Report::of(&*store.backend, &name).await?;
    if report.kind.is_some() {
        report.identify(&Clients::read(&store, &mut Pace::new(0)).await?);
    }
    let conditions = args.condition.iter().map(|name| LockName::new(name.as_str()));
    let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
    let shown = Shown::new(report, storage(&store, &name, &conditions).await?);
    match args.json {
        true => output::print_json(&shown)?,
        false => output::print(text(&shown))?,
    }
    Ok(Exit::SUCCESS)
}

/// The store's data about the name. [`None`] if it cannot tell, or this user may not ask.
async fn storage(
    store: &Store,
    name: &LockName,
    conditions: &[LockName],
) -> Result<Option<Vec<StoredEntry>>, BackendError> {
    let Some(directory) = store.backend.directory() else { return Ok(None) };
    match Pace::new(0).in_time(directory.storage(name, conditions)).await {
        Ok(entries) => Ok(Some(entries)),
        Err(error) if error.kind() == BackendErrorKind::Unsupported => Ok(None),
        // The holders are known by now, and are shown all the same.
        Err(error) => {
            output::tell(format_args!("what is stored is left out: {}", Failure::from(error)));
            Ok(None)
        }
    }
}

/// Everything that is known about a name.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    report: Report,
    /// The last fencing token that was given. `null` if the store does not keep it.
    last_token: Option<u64>,
    /// The conditions that somebody waits for.
    conditions: Vec<ConditionReport>,
    /// `null` if the store cannot tell.
    storage: Option<Vec<StoredReport>>,
}

#[derive(Debug, Serialize)]
struct ConditionReport {
    name: String,
    waiters: u64,
}

/// A key or row.
#[derive(Debug, Serialize)]
struct StoredReport {
    key: String,
    kind: String,
    number: Option<u64>,
    /// `null` if it has no end.
    left_seconds: Option<f64>,
}

impl Shown {
    fn new(report: Report, storage: Option<Vec<StoredEntry>>) -> Self {
        let entries = || storage.iter().flatten();
        // A hold has the token that it was granted with.
        let has_token =
            |kind: &StoredKind| matches!(kind, StoredKind::LastToken | StoredKind::Hold);
        let tokens = entries().filter(|entry| has_token(&entry.kind));
        let last_token = tokens.filter_map(|entry| entry.number).max();
        let condition = |entry: &StoredEntry| match (&entry.kind, entry.number) {
            (StoredKind::Condition(name), Some(waiters)) if waiters > 0 => {
                Some(ConditionReport { name: name.as_str().to_owned(), waiters })
            }
            _ => None,
        };
        let conditions = entries().filter_map(condition).collect();
        let storage = storage.map(|entries| entries.iter().map(StoredReport::new).collect());
        Self { report, last_token, conditions, storage }
    }
}

impl StoredReport {
    fn new(entry: &StoredEntry) -> Self {
        Self {
            key: entry.key.clone(),
            kind: entry.kind.to_string(),
            number: entry.number,
            left_seconds: entry.left.as_ref().map(Duration::as_secs_f64),
        }
    }
}

fn text(shown: &Shown) -> String {
    let report = &shown.report;
    let mut text = facts(shown).to_string();
    if !report.holders.is_empty() {
        let mut table = Table::default();
        table.row(["HOLDER", "MODE", "COUNT", "HOST", "PROGRAM", "PID"]);
        for holder in &report.holders {
            let [host, program, pid] = cells(holder.client.as_ref());
            table.row([
                &holder.owner,
                &holder.mode,
                &holder.count.to_string(),
                &host,
                &program,
                &pid,
            ]);
        }
        text += &format!("\n{table}");
    }
    if !report.queue.is_empty() {
        let mut table = Table::default();
        table.row(["PLACE", "WAITER", "HOST", "PROGRAM", "PID"]);
        for (at, waiter) in report.queue.iter().enumerate() {
            let [host, program, pid] = cells(waiter.client.as_ref());
            table.row([&(at + 1).to_string(), &waiter.owner, &host, &program, &pid]);
        }
        text += &format!("\n{table}");
    }
    if !report.waiting.is_empty() {
        let mut table = Table::default();
        table.row(["WAITING FOR", "MODE", "HOST", "PROGRAM", "PID", "AT"]);
        for wait in &report.waiting {
            let [host, program, pid] = cells(Some(&wait.client));
            let seconds = format!("{:.0} s", wait.seconds);
            table.row([&seconds, &wait.mode, &host, &program, &pid, &wait.site]);
        }
        text += &format!("\n{table}");
    }
    if let Some(storage) = shown.storage.as_ref().filter(|storage| !storage.is_empty()) {
        text += &format!("\n{}", stored(storage));
    }
    text
}

fn stored(storage: &[StoredReport]) -> Table {
    let mut table = Table::default();
    table.row(["STORED", "FOR", "NUMBER", "TIME TO LIVE"]);
    for StoredReport { key, kind, number, left_seconds } in storage {
        let number = number.map_or("-".to_owned(), |number| number.to_string());
        let left = left_seconds.map_or("no end".to_owned(), |left| format!("{left:.1} s"));
        table.row([key, kind, &number, &left]);
    }
    table
}

fn facts(shown: &Shown) -> Table {
    let report = &shown.report;
    let mut facts = Table::default();
    facts.row(["name", &report.name]);
    facts.row(["kind", report.kind.unwrap_or("none: the name is not in use")]);
    let lease = match (report.held, report.lease_left_seconds) {
        (false, _) => "not held".to_owned(),
        (true, Some(seconds)) => format!("held, {seconds:.1} s left of the lease"),
        (true, None) => "held, without a lease".to_owned(),
    };
    facts.row(["state", &lease]);
    if let Some(PermitsReport { available, total }) = &report.permits {
        let total = total.map_or("an unknown number".to_owned(), |total| total.to_string());
        facts.row(["permits", &format!("{available} of {total} available")]);
    }
    if let Some(count) = report.latch {
        facts.row(["latch", &format!("closed, count {count}")]);
    }
    if let Some(token) = shown.last_token {
        facts.row(["last token", &token.to_string()]);
    }
    for ConditionReport { name, waiters } in &shown.conditions {
        facts.row(["condition", &format!("{name}: {waiters} wait")]);
    }
    facts
}

/// Host, program and process id.
fn cells(client: Option<&Who>) -> [String; 3] {
    let or_dash = |text: Option<&String>| text.map_or("-".to_owned(), Clone::clone);
    let pid = client.and_then(|who| who.pid).map(|pid| pid.to_string());
    [
        or_dash(client.and_then(|who| who.host.as_ref())),
        or_dash(client.and_then(|who| who.program.as_ref())),
        or_dash(pid.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use lockcore::{Holder, LockState, Mode};

    use super::*;

    #[test]
    fn what_the_store_tells_cannot_act_on_the_terminal() {
        let holders = vec![Holder::new("a\u{1b}[2J:1", Mode::Exclusive, 2)];
        let state = LockState::held(holders, Some(Duration::from_secs(12)))
            .with_waiters(vec!["b\u{9b}:2".to_owned()]);
        let condition = StoredKind::Condition(LockName::new("ready").unwrap());
        let storage = vec![
            StoredEntry::new("lock\u{9b}2J", StoredKind::Hold)
                .with_left(Some(Duration::from_secs(12))),
            StoredEntry::new("token", StoredKind::LastToken).with_number(Some(17)),
            StoredEntry::new("waiters", condition).with_number(Some(3)),
        ];
        let shown = Shown::new(Report::new("x\u{7}", &state, None), Some(storage));
        let text = text(&shown);
        assert!(
            !text.chars().any(|character| character.is_control() && character != '\n'),
            "{text}"
        );
        assert!(text.contains("a\\u{1b}[2J:1") && text.contains("12.0 s left"), "{text}");
        assert_eq!(shown.report.kind, Some("fair lock"));
        for line in [
            "last token  17",
            "condition   ready: 3 wait",
            "STORED        FOR              NUMBER  TIME TO LIVE",
            "lock\\u{9b}2J  hold             -       12.0 s",
            "token         last token       17      no end",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        assert_eq!(shown.last_token, Some(17));
    }
}
