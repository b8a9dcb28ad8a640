//! [`Lane`], and its [`Cell`] while something is going on in it.

use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::entry::Entry;
use crate::{LockName, Mode, Owner, mode::Kind};

/// Where acquisitions of one client queue for each other: one lane for a name and what it is used as; but for fair locks one for each
/// owner, since it is the backend that keeps the order of all, and each of them has to ask for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    name: LockName,
    kind: Kind,
    pub(super) owner: Option<Owner>,
}

impl Lane {
    pub(crate) fn new(name: &LockName, mode: Mode, owner: &Owner) -> Self {
        let owner = (mode == Mode::Fair).then(|| owner.clone());
        Self { name: name.clone(), kind: mode.kind(), owner }
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    /// Where `owner` has its holds of a lock if it acquired them fairly here and not there, or the other way round.
    pub(super) fn other(&self, owner: &Owner) -> Option<Self> {
        let owner = self.owner.is_none().then(|| owner.clone());
        (self.kind == Kind::Lock).then(|| Self { name: self.name.clone(), kind: self.kind, owner })
    }
}

/// What is going on in a lane. Those who have to do with it keep it, and need not look for it in the map each time.
pub(crate) struct Cell {
    pub(super) lane: Lane,
    /// Short critical sections without awaits, hence not tokio's mutex. Taken before a lock of the map, and never inside of one.
    entry: Mutex<Entry>,
}

impl Cell {
    pub(super) fn new(lane: Lane) -> Arc<Self> {
        Arc::new(Self { lane, entry: Mutex::default() })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.lane.name
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Entry> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the entry, or changes it in a way that leaves it in use.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Entry) -> T) -> T {
        Self::work_in(self.lock(), work)
    }

    /// Works in an entry that is locked, unlocks it, and wakes who was signalled.
    pub(super) fn work_in<T>(
        mut entry: MutexGuard<'_, Entry>,
        work: impl FnOnce(&mut Entry) -> T,
    ) -> T {
        let result = work(&mut entry);
        let signalled = entry.take_signalled();
        drop(entry);
        signalled.wake();
        result
    }
}

/// A cell as the key of a map in which it is found by its lane.
#[derive(Debug)]
pub(super) struct ByLane(pub(super) Arc<Cell>);

impl Borrow<Lane> for ByLane {
    fn borrow(&self) -> &Lane {
        &self.0.lane
    }
}

impl PartialEq for ByLane {
    fn eq(&self, other: &Self) -> bool {
        self.0.lane == other.0.lane
    }
}

impl Eq for ByLane {}

impl Hash for ByLane {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.lane.hash(state);
    }
}

impl fmt::Debug for Cell {
    /// Without the entry, in which there are holds that know their cell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cell").field(&self.lane).finish()
    }
}
