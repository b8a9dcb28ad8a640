//! [`Report`]: everything that a store reports about a name.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, Holder, LockName, LockState, Mode, backend::Backend,
};
use serde::Serialize;

use crate::{
    clients::{Clients, Wait, Who},
    exit::with_sources,
    output,
};

/// Everything that a store reports about a name.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: String,
    /// `null` while the name is not in use.
    pub(crate) kind: Option<&'static str>,
    pub(crate) held: bool,
    /// The longest lease. `null` if nobody holds the name, or without an end.
    pub(crate) lease_left_seconds: Option<f64>,
    pub(crate) holders: Vec<HolderReport>,
    /// The waiters for a fair lock, and a writer that keeps new readers out; the next one first.
    pub(crate) queue: Vec<WaiterReport>,
    /// The recorded waits of some seconds, with a place in the queue or without; the longest first.
    pub(crate) waiting: Vec<Wait>,
    /// The number of waiters, as far as it is known.
    pub(crate) waiters: usize,
    pub(crate) permits: Option<PermitsReport>,
    /// The count of a latch that is not open.
    pub(crate) latch: Option<u32>,
    /// The error if nothing else is known about the name, or `null`.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct HolderReport {
    pub(crate) owner: String,
    pub(crate) mode: String,
    /// How often the owner has entered, or the number of its permits.
    pub(crate) count: u32,
    /// Its process. `null` if it has no record.
    pub(crate) client: Option<Who>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct WaiterReport {
    pub(crate) owner: String,
    pub(crate) client: Option<Who>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PermitsReport {
    pub(crate) available: u32,
    /// `null` if the store does not know.
    pub(crate) total: Option<u32>,
}

impl Report {
    /// Asks `backend`, once or twice.
    pub(crate) async fn of(backend: &dyn Backend, name: &LockName) -> Result<Self, BackendError> {
        let state = backend.inspect(name).await;
        // A latch has no holders. On some stores, asking for them reports that the name is of
        // another kind.
        let asks_for_latch = match &state {
            Ok(state) => !state.is_held() && state.available().is_none(),
            Err(error) => error.kind() == BackendErrorKind::WrongType,
        };
        let latch = if asks_for_latch { latch(backend, name).await? } else { None };
        let state = match state {
            Err(_) if latch.is_some() => LockState::free(),
            state => state?,
        };
        Ok(Self::new(name.as_str(), &state, latch))
    }

    pub(crate) fn new(name: &str, state: &LockState, latch: Option<u32>) -> Self {
        let waiter = |owner: &String| WaiterReport { owner: owner.clone(), client: None };
        Self {
            name: name.to_owned(),
            kind: kind(state, latch),
            held: state.is_held(),
            lease_left_seconds: state.remaining().as_ref().map(Duration::as_secs_f64),
            holders: state.holders().iter().map(HolderReport::new).collect(),
            queue: state.waiters().iter().map(waiter).collect(),
            waiting: Vec::new(),
            waiters: state.waiters().len(),
            permits: state
                .available()
                .map(|available| PermitsReport { available, total: state.limit() }),
            latch,
            error: None,
        }
    }

    /// A name whose state the store refused to report.
    pub(crate) fn unreadable(name: &str, error: &BackendError) -> Self {
        let error = output::without_passwords(&with_sources(error));
        Self { error: Some(error), ..Self::new(name, &LockState::free(), None) }
    }

    /// Adds the processes of the owners, and the waits.
    pub(crate) fn identify(&mut self, clients: &Clients) {
        for HolderReport { owner, client, .. } in &mut self.holders {
            *client = clients.who(owner);
        }
        for WaiterReport { owner, client } in &mut self.queue {
            *client = clients.who(owner);
        }
        self.waiting = clients.waits(&self.name);
        // It is unknown which of the waits have the places.
        self.waiters = self.queue.len().max(self.waiting.len());
    }

    /// The first holder in a few words, and how many others there are.
    pub(crate) fn holder_in_short(&self) -> Option<String> {
        let first = self.holders.first()?;
        let words = first.in_short();
        match self.holders.len() {
            1 => Some(words),
            several => Some(format!("{words} +{}", several - 1)),
        }
    }

    /// How often the holders have entered, permits out of all of them, or the count of a latch.
    pub(crate) fn count(&self) -> Option<String> {
        let held = self.holders.iter().map(|holder| u64::from(holder.count)).sum::<u64>();
        match (&self.permits, self.latch) {
            (Some(PermitsReport { total: Some(total), .. }), _) => Some(format!("{held}/{total}")),
            (Some(_), _) => Some(format!("{held}/?")),
            (None, Some(count)) => Some(count.to_string()),
            (None, None) => self.held.then(|| held.to_string()),
        }
    }

    /// The same in at most 11 characters.
    pub(crate) fn count_in_short(&self) -> Option<String> {
        let count = self.count()?;
        let short = |number: &str| number.parse().map_or(number.to_owned(), short_number);
        Some(count.split('/').map(short).collect::<Vec<_>>().join("/"))
    }

    /// The holders in a few words, which change if another owner has the name.
    pub(crate) fn holders_in_words(&self) -> String {
        self.holders.iter().map(HolderReport::in_words).collect::<Vec<_>>().join(", ")
    }

    /// The holders with their processes, as far as these are known.
    pub(crate) fn holders_and_processes(&self) -> String {
        let words = |holder: &HolderReport| match process(holder.client.as_ref()) {
            Some(process) => format!("{} of {process}", holder.in_words()),
            None => holder.in_words(),
        };
        self.holders.iter().map(words).collect::<Vec<_>>().join(", ")
    }
}

impl HolderReport {
    fn new(holder: &Holder) -> Self {
        let count = match holder.mode() {
            Mode::Permit { count, .. } => count,
            _ => holder.hold_count(),
        };
        let (owner, mode) = (holder.owner().to_owned(), holder.mode().to_string());
        Self { owner, mode, count, client: None }
    }

    /// The owner and its mode.
    fn in_words(&self) -> String {
        format!("{} ({})", self.owner, self.mode)
    }

    /// The process if it is known, the owner on the wire if not.
    pub(crate) fn in_short(&self) -> String {
        in_short(&self.owner, self.client.as_ref())
    }
}

/// A number in at most five characters, rounded down.
pub(crate) fn short_number(number: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut number = number;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    // One digit less leaves room for the unit.
    while number >= if unit == Some(&"") { 100_000 } else { 10_000 } {
        number /= 1000;
        unit = units.next();
    }
    format!("{number}{}", unit.copied().unwrap_or_default())
}

/// The process if it is known, the owner on the wire if not.
pub(crate) fn in_short(owner: &str, client: Option<&Who>) -> String {
    process(client).unwrap_or(owner.to_owned())
}

/// The process, if anything is known about it.
fn process(client: Option<&Who>) -> Option<String> {
    client.map(ToString::to_string).filter(|who| !who.is_empty())
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
async fn latch(backend: &dyn Backend, name: &LockName) -> Result<Option<u32>, BackendError> {
    let Some(latches) = backend.latches() else { return Ok(None) };
    match latches.count(name).await {
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(error) if cannot_be_a_latch(error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// On a cluster, some names are refused for latches.
fn cannot_be_a_latch(kind: BackendErrorKind) -> bool {
    use BackendErrorKind::{Configuration, Unsupported, WrongType};
    matches!(kind, Configuration | Unsupported | WrongType)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_have_at_most_five_characters() {
        for (number, shown) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (9_999_999, "9999k"),
            (10_000_000, "10M"),
            (u64::from(u32::MAX), "4294M"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(short_number(number), shown);
        }
        let seats = LockState::free().with_permits(5, Some(u32::MAX));
        assert_eq!(Report::new("a", &seats, None).count_in_short().unwrap(), "0/4294M");
    }
}
