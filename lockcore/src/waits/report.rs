//! [`Waits`]: the report of who waits for whom.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    account::Account,
    graph::{Blocker, FoundCycle, Level, Refuted, cycles},
    record::{ClientRecord, HoldRecord, WaitRecord},
};

/// The report of who waits for whom at a store, from [`Locks::waits`](crate::Locks::waits).
#[derive(Clone, Debug, Default)]
pub struct Waits {
    clients: Vec<Arc<ClientInfo>>,
    waiting: Vec<Waiting>,
    cycles: Vec<WaitCycle>,
    omitted: u64,
    unreadable: usize,
    is_partial: bool,
}

impl Waits {
    /// The clients that have a record, in the order of their ids. A client writes one when it has
    /// held or waited for about a second.
    #[must_use]
    pub fn clients(&self) -> &[Arc<ClientInfo>] {
        &self.clients
    }

    /// The client that a holder on the wire belongs to, as returned by
    /// [`Holder::owner`](crate::Holder::owner). `None` for a named owner, for a client of other
    /// software, and for a client that has no record.
    #[must_use]
    pub fn client_of(&self, wire_owner: &str) -> Option<&ClientInfo> {
        let (id, _) = wire_owner.split_once(':')?;
        let at = self.clients.binary_search_by(|client| client.id.as_str().cmp(id)).ok()?;
        Some(&self.clients[at])
    }

    /// The acquisitions that have waited for more than 1.5 s. For each client, those that may be in
    /// a cycle come first, the oldest of these first.
    #[must_use]
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// The cycles of waits. Each was looked at twice, more than a second apart, and each client in
    /// it has written its record in between. The most certain ones come first; no acquisition is in
    /// two of them.
    #[must_use]
    pub fn cycles(&self) -> &[WaitCycle] {
        &self.cycles
    }

    /// The number of long waits that the records had no room for. Waits that cannot be in a cycle
    /// are left out first.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// The number of records that could not be read: of a later version of this library, or not
    /// written by it.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        self.unreadable
    }

    /// Returns `true` if there was more data than one report reads: at most 10,000 records, of 64
    /// MiB together, and at most 1,000 locks of possible cycles, which the store is asked about.
    /// Clients, waits and cycles may be missing then. It is also `true` if there may be a cycle
    /// that one of its clients did not confirm in time, because the client has crashed or cannot
    /// write its record.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }
}

/// A client's description of itself.
///
/// The host and the program may be any text, but without control characters, and without characters
/// that change the direction of text or take no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    id: String,
    host: String,
    program: String,
    pid: u32,
    version: String,
    since: SystemTime,
}

impl ClientInfo {
    /// The id, with which the owners of its holds begin on the wire.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name of the host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The name of the program.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The version of lockcore.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The time when the client was made, by the clock of its host.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.since
    }
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, process {}, on {}", self.program, self.pid, self.host)
    }
}

/// An acquisition that has waited for more than 1.5 s.
#[derive(Clone, Debug)]
pub struct Waiting {
    client: Arc<ClientInfo>,
    record: WaitRecord,
    holds: Vec<HeldBeside>,
    waited: Duration,
}

impl Waiting {
    /// The client that waits.
    #[must_use]
    pub fn client(&self) -> &Arc<ClientInfo> {
        &self.client
    }

    /// The full name of the lock. It may have any characters but NUL: escape it before it is
    /// written to a terminal.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.record.lock
    }

    /// The mode: `exclusive`, `fair`, `read`, `write` or `permit`, and possibly others in later
    /// versions.
    #[must_use]
    pub fn mode(&self) -> &str {
        &self.record.mode
    }

    /// The owner: the name of a [named](crate::Owner::named) owner, or a text that identifies it
    /// within its process, such as `#12`.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.record.owner
    }

    /// Returns `true` if the owner has a name, so that it is the same one in all clients.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.record.named
    }

    /// The call site of the acquisition, as file and line.
    #[must_use]
    pub fn site(&self) -> &str {
        &self.record.site
    }

    /// How long it has waited, as exactly as the clocks of the hosts agree.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns `true` if it gives up by itself after a time, as
    /// [`acquire_timeout`](crate::Lock::acquire_timeout) does. A time limit around the future is
    /// not known to this library.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.record.limited
    }

    /// The holds of the same owner or the same task meanwhile, in the same client.
    #[must_use]
    pub fn holds(&self) -> &[HeldBeside] {
        &self.holds
    }

    /// The number of further holds that there was no room for.
    #[must_use]
    pub fn omitted_holds(&self) -> u64 {
        self.record.omitted
    }
}

/// A hold of an owner, or of a task, that waits for something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBeside {
    record: HoldRecord,
    held_for: Duration,
}

impl HeldBeside {
    /// The full name of the lock. See [`Waiting::lock`].
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.record.lock
    }

    /// The mode. See [`Waiting::mode`].
    #[must_use]
    pub fn mode(&self) -> &str {
        &self.record.mode
    }

    /// The holder on the wire.
    #[must_use]
    pub fn wire_owner(&self) -> &str {
        &self.record.wire
    }

    /// The call site of its acquisition, as file and line.
    #[must_use]
    pub fn site(&self) -> &str {
        &self.record.site
    }

    /// How long it has been held, as exactly as the clocks of the hosts agree.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.held_for
    }

    /// Returns `true` if the lease is renewed, so that the hold does not end by itself.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.record.renewed
    }

    /// Returns `true` if the hold belongs to another owner than the acquisition that waits, and was
    /// acquired by the same task. The guard may be elsewhere by now, so this is weaker evidence.
    #[must_use]
    pub fn is_by_task(&self) -> bool {
        self.record.task
    }
}

/// A cycle of acquisitions, each of which waits for the next one.
///
/// The text form is one line for people, with the names escaped.
#[derive(Clone, Debug)]
pub struct WaitCycle {
    links: Vec<WaitLink>,
    kind: CycleKind,
}

impl WaitCycle {
    /// The acquisitions. Each waits for a hold of the next one, or for the next one to get in
    /// first, and the last one waits for the first.
    #[must_use]
    pub fn links(&self) -> &[WaitLink] {
        &self.links
    }

    /// The meaning of the cycle.
    #[must_use]
    pub fn kind(&self) -> CycleKind {
        self.kind
    }
}

/// An acquisition in a [`WaitCycle`].
#[derive(Clone, Debug)]
pub struct WaitLink {
    waiting: Waiting,
    blocked_by: Option<HeldBeside>,
}

impl WaitLink {
    /// The acquisition that waits.
    #[must_use]
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The hold that is in its way. It belongs to the next acquisition of the cycle. `None` if that
    /// acquisition holds nothing that is in the way, but is a writer that waits for the same lock
    /// and keeps new readers out.
    #[must_use]
    pub fn blocked_by(&self) -> Option<&HeldBeside> {
        self.blocked_by.as_ref()
    }
}

/// The meaning of a [`WaitCycle`], from the most certain to the least.
///
/// Even a deadlock may be ended from outside of the locks: by a time limit around a future, or by
/// another task of the same owner that drops the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CycleKind {
    /// Each acquisition waits for an owner that is itself in the cycle, nobody has a time limit,
    /// and all holds are renewed: nothing here ends by itself.
    Deadlock,
    /// As a deadlock, but some hold is only known to be acquired by the task that waits, under
    /// another owner: it is a deadlock unless the guard was moved to another task. Or some owner
    /// waits elsewhere as well, in another task, which may release its hold.
    Probable,
    /// The cycle ends by itself: some acquisition has a time limit, or some hold has a fixed lease.
    Passing,
}

impl fmt::Display for CycleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "a deadlock",
            Self::Probable => "probably a deadlock",
            Self::Passing => "a cycle of waiting that ends by itself",
        })
    }
}

impl fmt::Display for WaitCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind)?;
        for (at, WaitLink { waiting, blocked_by }) in self.links.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            let next = &self.links[(at + 1) % self.links.len()].waiting;
            write!(
                f,
                "{separator}owner {} ({}) waits for `{}` ({}) at {}, ",
                waiting.owner(),
                waiting.client,
                waiting.lock().escape_debug(),
                waiting.mode(),
                waiting.site(),
            )?;
            let (owner, client) = (next.owner(), &next.client);
            match blocked_by {
                Some(hold) => {
                    write!(f, "which owner {owner} ({client}) holds since {}", hold.site())?;
                }
                None => write!(f, "behind owner {owner} ({client}), who waits to write")?,
            }
        }
        Ok(())
    }
}

impl From<Level> for CycleKind {
    fn from(level: Level) -> Self {
        match level {
            Level::Owners => Self::Deadlock,
            Level::Tasks => Self::Probable,
            Level::Any => Self::Passing,
        }
    }
}

/// The records of a store, read at one time.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    records: BTreeMap<String, ClientRecord>,
    unreadable: usize,
    /// The client that reads. Its own record is up to date.
    own: Option<String>,
    /// The owners that wait for several things, including what this reading left out.
    busy: HashSet<(Option<String>, String)>,
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
        let busy = self.busy_owners(self);
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

    /// The owners with several waits, here and in `other` together. One that waits for something
    /// else as well, in another task, may release its locks there.
    fn busy_owners(&self, other: &Self) -> HashSet<(Option<String>, String)> {
        let mut waits = HashMap::<_, HashSet<_>>::new();
        for (id, wait) in self.waits().chain(other.waits()) {
            waits.entry(wait.owner_in(id)).or_default().insert(wait.key(id));
        }
        let busy = waits.into_iter().filter(|(_, waits)| waits.len() > 1);
        busy.map(|((client, owner), _)| (client.map(str::to_owned), owner.to_owned())).collect()
    }

    /// The waits, and holds beside them, that were in `first` already.
    pub(crate) fn also_in(&self, first: &Self) -> Self {
        let waits: HashSet<_> = first.waits().map(|(id, wait)| wait.key(id)).collect();
        let holds = first.waits();
        let holds: HashSet<_> =
            holds.flat_map(|(id, wait)| wait.holds.iter().map(move |hold| hold.key(id))).collect();
        let busy = self.busy_owners(first);
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
