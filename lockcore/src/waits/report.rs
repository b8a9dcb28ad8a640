//! [`Waits`]: the report of who waits for whom.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    graph::Level,
    record::{HoldRecord, WaitRecord},
};

/// The report of who waits for whom at a store, from [`Locks::waits`](crate::Locks::waits).
#[derive(Clone, Debug, Default)]
pub struct Waits {
    pub(super) clients: Vec<Arc<ClientInfo>>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) cycles: Vec<WaitCycle>,
    pub(super) omitted: u64,
    pub(super) unreadable: usize,
    pub(super) is_partial: bool,
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
    pub(super) id: String,
    pub(super) host: String,
    pub(super) program: String,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) since: SystemTime,
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
    pub(super) client: Arc<ClientInfo>,
    pub(super) record: WaitRecord,
    pub(super) holds: Vec<HeldBeside>,
    pub(super) waited: Duration,
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
    pub(super) record: HoldRecord,
    pub(super) held_for: Duration,
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
    pub(super) links: Vec<WaitLink>,
    pub(super) kind: CycleKind,
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
    pub(super) waiting: Waiting,
    pub(super) blocked_by: Option<HeldBeside>,
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
