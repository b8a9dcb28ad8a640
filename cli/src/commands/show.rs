//! `lockctl show`.

use std::{fmt::Write as _, time::Duration};

use lockcore::{BackendErrorKind, Holder, LockError, LockState, Locks, Mode};
use serde::Serialize;

use crate::{
    cli::Common,
    exit::{Exit, Failure},
    output::{self, Table, escaped},
};

const AFTER_HELP: &str = "\
What a store cannot tell is left out: the fencing token of a hold, and who waits for a lock that is
not fair. A nested hold without a request of its own is known to its process only.

Examples:
  lockctl show nightly
  lockctl show nightly --json | jq -r '.holders[].owner'";

/// Shows one name: its kind, holders, queue, permits and what is left of the lease.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The name of the lock.
    name: String,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// All that a store tells about a name.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: String,
    /// `null` while the name is not in use.
    kind: Option<&'static str>,
    held: bool,
    /// The longest lease. `null` if nobody holds the name, or without an end.
    lease_left_seconds: Option<f64>,
    pub(crate) holders: Vec<HolderReport>,
    /// The waiters for a fair lock, and a writer that keeps new readers out; the next one first.
    queue: Vec<String>,
    permits: Option<PermitsReport>,
    /// The count of a latch that is not open.
    latch: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(crate) struct HolderReport {
    pub(crate) owner: String,
    mode: String,
    /// How often the owner has entered, or the number of its permits.
    count: u32,
}

#[derive(Debug, Serialize)]
struct PermitsReport {
    available: u32,
    /// `null` if the store does not know.
    total: Option<u32>,
}

pub(crate) async fn show(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let locks = common.store()?.connect().await?.build()?;
    let report = Report::of(&locks, &args.name).await?;
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(report.text())?,
    }
    Ok(Exit::SUCCESS)
}

impl Report {
    pub(crate) async fn of(locks: &Locks, name: &str) -> Result<Self, Failure> {
        let state = locks.lock(name).state().await;
        // A latch has no holders. On some stores, asking for them says that the name is something
        // else.
        let asks_for_latch = match &state {
            Ok(state) => !state.is_held() && state.available().is_none(),
            Err(error) => is_of_other_kind(error),
        };
        let latch = if asks_for_latch { latch(locks, name).await? } else { None };
        let state = match state {
            Err(_) if latch.is_some() => LockState::free(),
            state => state?,
        };
        Ok(Self::new(name, &state, latch))
    }

    fn new(name: &str, state: &LockState, latch: Option<u32>) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind(state, latch),
            held: state.is_held(),
            lease_left_seconds: state.remaining().as_ref().map(Duration::as_secs_f64),
            holders: state.holders().iter().map(HolderReport::new).collect(),
            queue: state.waiters().to_vec(),
            permits: state
                .available()
                .map(|available| PermitsReport { available, total: state.limit() }),
            latch,
        }
    }

    fn text(&self) -> String {
        let mut facts = Table::default();
        facts.row(["name", &self.name]);
        facts.row(["kind", self.kind.unwrap_or("none: the name is not in use")]);
        let lease = match (self.held, self.lease_left_seconds) {
            (false, _) => "not held".to_owned(),
            (true, Some(seconds)) => format!("held, {seconds:.1} s left of the lease"),
            (true, None) => "held, without a lease".to_owned(),
        };
        facts.row(["state", &lease]);
        if let Some(PermitsReport { available, total }) = &self.permits {
            let total = total.map_or("an unknown number".to_owned(), |total| total.to_string());
            facts.row(["permits", &format!("{available} of {total} available")]);
        }
        if let Some(count) = self.latch {
            facts.row(["latch", &format!("closed, count {count}")]);
        }
        let mut text = facts.to_string();
        if !self.holders.is_empty() {
            let _ = write!(text, "\n{}", self.holder_table());
        }
        if !self.queue.is_empty() {
            text += "\nwaiting, the next one first\n";
            for waiter in &self.queue {
                let _ = writeln!(text, "  {}", escaped(waiter));
            }
        }
        text
    }

    fn holder_table(&self) -> Table {
        let mut table = Table::default();
        table.row(["HOLDER", "MODE", "COUNT"]);
        for HolderReport { owner, mode, count } in &self.holders {
            table.row([owner, mode, &count.to_string()]);
        }
        table
    }

    /// The holders in a few words, for messages.
    pub(crate) fn holders_in_words(&self) -> String {
        let words: Vec<String> = self
            .holders
            .iter()
            .map(|holder| format!("{} ({})", holder.owner, holder.mode))
            .collect();
        words.join(", ")
    }
}

impl HolderReport {
    fn new(holder: &Holder) -> Self {
        let count = match holder.mode() {
            Mode::Permit { count, .. } => count,
            _ => holder.hold_count(),
        };
        Self { owner: holder.owner().to_owned(), mode: holder.mode().to_string(), count }
    }
}

fn kind(state: &LockState, latch: Option<u32>) -> Option<&'static str> {
    if latch.is_some() {
        return Some("latch");
    }
    if state.available().is_some() {
        return Some("semaphore");
    }
    match state.holders().first().map(Holder::mode) {
        Some(Mode::Fair) => Some("fair lock"),
        Some(Mode::Exclusive) if !state.waiters().is_empty() => Some("fair lock"),
        Some(Mode::Exclusive) => Some("lock"),
        Some(Mode::Read | Mode::Write) => Some("read-write lock"),
        Some(Mode::Permit { .. }) => Some("semaphore"),
        None if !state.waiters().is_empty() => Some("fair or read-write lock"),
        _ => None,
    }
}

/// The count of a latch, if the name is one and not open.
async fn latch(locks: &Locks, name: &str) -> Result<Option<u32>, Failure> {
    match locks.latch(name).count().await {
        Ok(0) | Err(LockError::Unsupported { .. }) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(error) if is_of_other_kind(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_of_other_kind(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::WrongType)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_tells_cannot_act_on_the_terminal() {
        let holders = vec![Holder::new("a\u{1b}[2J:1", Mode::Exclusive, 2)];
        let state = LockState::held(holders, Some(Duration::from_secs(12)))
            .with_waiters(vec!["b\u{9b}:2".to_owned()]);
        let report = Report::new("x\u{7}", &state, None);
        let text = report.text();
        assert!(
            !text.chars().any(|character| character.is_control() && character != '\n'),
            "{text}"
        );
        assert!(text.contains("a\\u{1b}[2J:1") && text.contains("12.0 s left"), "{text}");
        assert_eq!(report.kind, Some("fair lock"));
    }
}
