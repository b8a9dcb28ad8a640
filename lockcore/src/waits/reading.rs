//! [`Reading`]: the records of all clients, and what follows from them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    account::Account,
    graph::{Blocker, FoundCycle, Level, Refuted, cycles},
    record::{ClientRecord, HoldRecord, WaitRecord},
    report::{ClientInfo, HeldBeside, WaitCycle, WaitLink, Waiting, Waits},
};

/// Owners, each with the id of its client, unless it is named.
type BusyOwners = HashSet<(Option<String>, String)>;

/// The owners with several of these waits. One that waits for something else as well, in another
/// task, may release its locks there.
fn busy_owners<'a>(waits: impl Iterator<Item = (&'a String, &'a WaitRecord)>) -> BusyOwners {
    let mut waits_of = HashMap::<_, HashSet<_>>::new();
    for (id, wait) in waits {
        waits_of.entry(wait.owner_in(id)).or_default().insert(wait.key(id));
    }
    let busy = waits_of.into_iter().filter(|(_, waits)| waits.len() > 1);
    busy.map(|((client, owner), _)| (client.map(str::to_owned), owner.to_owned())).collect()
}

/// The records of a store, read at one time.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    records: BTreeMap<String, ClientRecord>,
    unreadable: usize,
    /// The client that reads. Its own record is up to date.
    own: Option<String>,
    /// The owners that wait for several things, including what this reading left out.
    busy: BusyOwners,
    /// Set if there was more data than was read.
    pub(crate) is_partial: bool,
}

impl Reading {
    /// Adds a record. The last one of a client counts.
    pub(crate) fn add(&mut self, id: String, record: Option<ClientRecord>) {
        match record {
            Some(record) => drop(self.records.insert(id, record)),
            None => self.unreadable += 1,
        }
    }

    /// Adds the own record of the client that reads.
    pub(crate) fn add_own(&mut self, id: &str, record: ClientRecord) {
        self.own = Some(id.to_owned());
        self.add(id.to_owned(), Some(record));
    }

    /// The number of records, readable or not.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.unreadable
    }

    /// All waits, with the ids of their clients.
    fn waits(&self) -> impl Iterator<Item = (&String, &WaitRecord)> {
        self.records.iter().flat_map(|(id, record)| record.waits.iter().map(move |wait| (id, wait)))
    }

    /// The cycles in which nothing is refuted by the store's account.
    pub(crate) fn cycles(&self, account: &Account) -> Vec<Candidate> {
        let waits: Vec<(&String, &WaitRecord)> = self.waits().collect();
        let refuted = Refuted {
            hold: &|hold| account.refutes_hold(hold),
            place: &|wait| account.refutes_place(waits[wait].0, waits[wait].1),
        };
        let found = cycles(&waits.iter().map(|(_, wait)| *wait).collect::<Vec<_>>(), &refuted);
        let busy = busy_owners(self.waits());
        let waits_once = |at: usize| {
            let (id, wait) = waits[at];
            let (client, owner) = wait.owner_in(id);
            let owner = (client.map(str::to_owned), owner.to_owned());
            !busy.contains(&owner) && !self.busy.contains(&owner)
        };
        let candidate = |FoundCycle { links, mut level }: FoundCycle| {
            if level == Level::Owners && !links.iter().all(|(wait, _)| waits_once(*wait)) {
                level = Level::Tasks;
            }
            let links = links.into_iter().map(|(wait, by)| {
                let (id, wait) = waits[wait];
                let hold = match by {
                    Blocker::Hold(keeper, hold) => Some(waits[keeper].1.holds[hold].clone()),
                    Blocker::Place => None,
                };
                (id.clone(), wait.clone(), hold)
            });
            Candidate { links: links.collect(), level }
        };
        let mut candidates: Vec<_> = found.into_iter().map(candidate).collect();
        candidates.sort_by_key(|candidate| candidate.level);
        candidates
    }

    /// The waits, and holds beside them, that were in `first` already.
    pub(crate) fn also_in(&self, first: &Self) -> Self {
        let waits: HashSet<_> = first.waits().map(|(id, wait)| wait.key(id)).collect();
        let holds = first.waits();
        let holds: HashSet<_> =
            holds.flat_map(|(id, wait)| wait.holds.iter().map(move |hold| hold.key(id))).collect();
        let busy = busy_owners(self.waits().chain(first.waits()));
        let mut both = Self { own: self.own.clone(), busy, ..Self::default() };
        for (id, record) in &self.records {
            let there = record.waits.iter().filter(|wait| waits.contains(&wait.key(id)));
            let there = there.cloned().map(|mut wait| {
                wait.holds.retain(|hold| holds.contains(&hold.key(id)));
                wait
            });
            both.records.insert(id.clone(), record.with(there.collect(), 0));
        }
        both
    }

    /// Keeps the records of clients that have looked at themselves since `first` was read.
    pub(crate) fn retain_confirmed(&mut self, first: &Self) {
        let own = self.own.clone();
        self.records.retain(|id, record| {
            own.as_ref() == Some(id)
                || first.records.get(id).is_some_and(|before| record.is_later_than(before))
        });
    }

    /// The report, with the cycles that were confirmed. `now` is in milliseconds of Unix time.
    pub(crate) fn report(self, cycles: Vec<Candidate>, now: u64) -> Waits {
        let Self { unreadable, is_partial, .. } = self;
        let mut waits = Waits { unreadable, is_partial, ..Waits::default() };
        for (id, record) in self.records {
            waits.omitted = waits.omitted.saturating_add(record.omitted);
            let ClientRecord { host, program, pid, version, since, waits: records, .. } = record;
            let since = SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_millis(since))
                .unwrap_or(SystemTime::UNIX_EPOCH);
            let client = Arc::new(ClientInfo { id, host, program, pid, version, since });
            let waiting = records.into_iter().map(|record| waiting(&client, record, now));
            waits.waiting.extend(waiting);
            waits.clients.push(client);
        }
        let cycle = |Candidate { links, level }: Candidate| {
            let link = |(id, record, hold): (String, WaitRecord, Option<HoldRecord>)| {
                let at = waits.clients.binary_search_by(|client| client.id.cmp(&id)).ok()?;
                let waiting = waiting(&waits.clients[at], record, now);
                Some(WaitLink { waiting, blocked_by: hold.map(|hold| beside(hold, now)) })
            };
            let links = links.into_iter().map(link).collect::<Option<_>>()?;
            Some(WaitCycle { links, kind: level.into() })
        };
        waits.cycles = cycles.into_iter().filter_map(cycle).collect();
        waits
    }
}

/// A possible cycle: the clients and waits, and the hold that blocks each, unless a place in a
/// queue does.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) links: Vec<(String, WaitRecord, Option<HoldRecord>)>,
    level: Level,
}

impl Candidate {
    /// The locks that the store has to be asked about.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|(_, wait, _)| wait.lock.as_str())
    }

    /// Returns `true` if the store was asked about all of them, and refutes nothing.
    pub(crate) fn is_confirmed(&self, account: &Account) -> bool {
        let nexts = self.links.iter().cycle().skip(1);
        self.links.iter().zip(nexts).all(|((_, wait, hold), (id, next, _))| {
            let is_refuted = match hold {
                Some(hold) => account.refutes_hold(hold),
                None => account.refutes_place(id, next),
            };
            account.knows(&wait.lock) && !is_refuted
        })
    }

    /// The numbers of its waits, which distinguish it from other cycles of one client.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.links.iter().map(|(_, wait, _)| wait.number).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn waiting(client: &Arc<ClientInfo>, mut record: WaitRecord, now: u64) -> Waiting {
    let waited = Duration::from_millis(now.saturating_sub(record.since));
    let holds = std::mem::take(&mut record.holds);
    let holds = holds.into_iter().map(|hold| beside(hold, now)).collect();
    Waiting { client: client.clone(), record, holds, waited }
}

fn beside(record: HoldRecord, now: u64) -> HeldBeside {
    let held_for = Duration::from_millis(now.saturating_sub(record.since));
    HeldBeside { record, held_for }
}
