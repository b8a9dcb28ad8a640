//! [`Operations`]: the events of a log, grouped by acquisition.

use std::collections::BTreeMap;

use crate::{Event, Share, What};

/// An acquisition, from the request to its end.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The name of the process.
    pub client: String,
    /// The number of the acquisition in its process.
    pub op: u64,
    /// The name of the lock.
    pub name: String,
    /// How the hold can be shared.
    pub share: Share,
    /// The number of the acquisition that it is nested in.
    pub nested_in: Option<u64>,
    /// When the acquisition began.
    pub asked: u64,
    /// When it was granted, and the token.
    pub granted: Option<(u64, u64)>,
    /// The owner at the store, once granted.
    pub owner: String,
    /// When the owner checked the hold, and the deadline that it knew then.
    pub looked: Vec<(u64, u64)>,
    /// When the owner began to release.
    pub left: Option<u64>,
    /// When the owner was told of the loss.
    pub lost: Option<u64>,
    /// How it ended, and when.
    pub end: Option<(u64, Ending)>,
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It was certainly not granted.
    Refused,
    /// It is unknown whether it was granted.
    Unknown,
    /// It was released, and the release was confirmed.
    Released,
    /// It was lost, or the release was not confirmed: the store may have the hold until its lease
    /// ends.
    Unconfirmed,
    /// Its guard was dropped, and released in the background.
    Dropped,
    /// Its process was killed.
    Killed,
}

/// A time during which an owner believed to hold a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief<'a> {
    /// The owner.
    pub owner: &'a str,
    /// The token of the hold.
    pub token: u64,
    /// How the hold can be shared.
    pub share: Share,
    /// The start of the belief.
    pub from: u64,
    /// The end of the belief.
    pub to: u64,
}

/// All acquisitions of a run.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    all: Vec<Operation>,
}

impl Operations {
    /// Groups the events by acquisition. The processes may come in any order, but the events of
    /// each process must be in their own order.
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

    /// All acquisitions, in the order in which they were requested.
    #[must_use]
    pub fn all(&self) -> &[Operation] {
        &self.all
    }

    /// The acquisitions that were granted.
    pub fn granted(&self) -> impl Iterator<Item = &Operation> {
        self.all.iter().filter(|operation| operation.granted.is_some())
    }

    /// The acquisitions by the name of the lock, in the order in which they were requested.
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
            // It is undone in the background, like the release of a dropped guard.
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

    /// The times during which the owner was sure of its hold: from each check until the deadline
    /// that it knew then, or until it left or was told of the loss.
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
