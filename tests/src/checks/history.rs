//! [`Operations`]: the events of a log, put together by acquisition.

use std::collections::BTreeMap;

use crate::{Event, Share, What};

/// An acquisition, from asking to its end.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The process.
    pub client: String,
    /// Its number there.
    pub op: u64,
    /// The lock.
    pub name: String,
    /// How it is shared.
    pub share: Share,
    /// The acquisition that it is nested in.
    pub nested_in: Option<u64>,
    /// When it began.
    pub asked: u64,
    /// When it was granted, and the token.
    pub granted: Option<(u64, u64)>,
    /// The owner at the store, once granted.
    pub owner: String,
    /// When the holder looked, and until when it believed to hold then.
    pub looked: Vec<(u64, u64)>,
    /// When the holder left, and believed no longer.
    pub left: Option<u64>,
    /// When it was told of the loss.
    pub lost: Option<u64>,
    /// How it ended, and when.
    pub end: Option<(u64, Ending)>,
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It was not granted, certainly.
    Refused,
    /// Whether it was granted is not known to anybody.
    Unknown,
    /// It was released, and this was confirmed.
    Released,
    /// It was lost, or the release was not confirmed: the store may have it until its lease ends.
    Unconfirmed,
    /// Its guard was dropped, and released in the background.
    Dropped,
    /// Its process was killed.
    Killed,
}

/// A time during which somebody believed to hold a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief<'a> {
    /// Who.
    pub owner: &'a str,
    /// With which token.
    pub token: u64,
    /// How it is shared.
    pub share: Share,
    /// From when.
    pub from: u64,
    /// To when.
    pub to: u64,
}

/// All acquisitions of a run.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    all: Vec<Operation>,
}

impl Operations {
    /// Puts the events together. They may be in any order of processes, but each process's own must be in theirs.
    #[must_use]
    pub fn of(events: &[Event]) -> Self {
        let mut all: BTreeMap<(&str, u64), Operation> = BTreeMap::new();
        let mut killed: BTreeMap<&str, u64> = BTreeMap::new();
        for event in events {
            let key = (event.client.as_str(), event.op);
            if let What::Asked { name, share, nested_in } = &event.what {
                all.insert(key, Operation::new(event, name, *share, *nested_in));
            } else if event.what == What::Killed {
                killed.insert(&event.client, event.t);
            } else if let Some(operation) = all.get_mut(&key) {
                operation.add(event);
            }
        }
        let mut all: Vec<_> = all.into_values().collect();
        for operation in &mut all {
            if let (None, Some(t)) = (operation.end, killed.get(operation.client.as_str())) {
                operation.end = Some((*t, Ending::Killed));
                operation.left.get_or_insert(*t);
            }
        }
        all.sort_by_key(|operation| operation.asked);
        Self { all }
    }

    /// All of them, in the order in which they were asked for.
    #[must_use]
    pub fn all(&self) -> &[Operation] {
        &self.all
    }

    /// Those that were granted.
    pub fn granted(&self) -> impl Iterator<Item = &Operation> {
        self.all.iter().filter(|operation| operation.granted.is_some())
    }

    /// By the name of the lock, in the order in which they were asked for.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&str, Vec<&Operation>> {
        let mut names: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.all {
            names.entry(&operation.name).or_default().push(operation);
        }
        names
    }
}

impl Operation {
    fn new(event: &Event, name: &str, share: Share, nested_in: Option<u64>) -> Self {
        Self {
            client: event.client.clone(),
            op: event.op,
            name: name.into(),
            share,
            nested_in,
            asked: event.t,
            granted: None,
            owner: String::new(),
            looked: Vec::new(),
            left: None,
            lost: None,
            end: None,
        }
    }

    fn add(&mut self, event: &Event) {
        let mut end = |ending| {
            self.end.get_or_insert((event.t, ending));
        };
        match &event.what {
            What::Granted { token, owner, until } => {
                self.granted = Some((event.t, *token));
                self.owner.clone_from(owner);
                self.looked.push((event.t, *until));
            }
            What::Held { until } => self.looked.push((event.t, *until)),
            What::Refused | What::Failed { unknown: false, .. } => end(Ending::Refused),
            What::Failed { unknown: true, .. } => end(Ending::Unknown),
            // It is undone in the background as a guard is that was dropped.
            What::Cancelled => end(Ending::Dropped),
            What::Released => end(Ending::Released),
            What::NotReleased { .. } => end(Ending::Unconfirmed),
            What::Dropped => {
                end(Ending::Dropped);
                self.left.get_or_insert(event.t);
            }
            What::Leaving => {
                self.left.get_or_insert(event.t);
            }
            What::Lost { .. } => {
                self.lost.get_or_insert(event.t);
            }
            _ => {}
        }
    }

    /// When the holder was sure to hold: whenever it looked, until the deadline that it knew then, or until it left or was told
    /// of the loss.
    #[must_use]
    pub fn beliefs(&self) -> Vec<Belief<'_>> {
        let Some((_, token)) = self.granted else { return Vec::new() };
        let stop = self.left.unwrap_or(u64::MAX).min(self.lost.unwrap_or(u64::MAX));
        let mut beliefs: Vec<Belief<'_>> = Vec::new();
        for &(from, until) in &self.looked {
            let to = until.min(stop);
            match beliefs.last_mut() {
                Some(last) if from <= last.to => last.to = last.to.max(to),
                _ if from < to => {
                    beliefs.push(Belief { owner: &self.owner, token, share: self.share, from, to });
                }
                _ => {}
            }
        }
        beliefs
    }
}
