//! [`LockState`] and [`Holder`]: the result of an inspection.

use std::time::Duration;

use crate::Mode;

/// The holders of a lock, as the backend has them stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    holders: Vec<Holder>,
    remaining: Option<Duration>,
    waiters: Vec<String>,
    available: Option<u32>,
    limit: Option<u32>,
}

impl LockState {
    /// The state of a free lock.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// The state of a lock with these holders. `remaining` is the rest of the lease, or `None` if
    /// it has no end.
    #[must_use]
    pub fn held(holders: Vec<Holder>, remaining: Option<Duration>) -> Self {
        Self { holders, remaining, ..Self::default() }
    }

    /// Adds the waiters by their identity on the wire, the next one first.
    #[must_use]
    pub fn with_waiters(mut self, waiters: Vec<String>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Adds the number of permits that can be taken, and the number of permits that there are.
    #[must_use]
    pub fn with_permits(mut self, available: u32, limit: Option<u32>) -> Self {
        self.available = Some(available);
        self.limit = limit;
        self
    }

    /// Returns `true` if the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// The holders of the lock.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// The waiters by their identity on the wire, the next one first, as far as the backend knows
    /// them. It knows the waiters for a fair lock, and the writer that keeps new readers out.
    #[must_use]
    pub fn waiters(&self) -> &[String] {
        &self.waiters
    }

    /// The number of permits that can be taken now. `None` if the name is not in use as a
    /// semaphore.
    #[must_use]
    pub fn available(&self) -> Option<u32> {
        self.available
    }

    /// The number of permits, taken or not. `None` if the name is not in use as a semaphore, or if
    /// the number is not stored.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// The rest of the lease, or of the longest one if there are several. `None` if the lock is
    /// free, or has no lease because other software has written it.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The holder called `owner` on the wire, in a mode like `mode`.
    pub(crate) fn holder(&self, owner: &str, mode: Mode) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.owner == owner && holder.mode.is_held_as(mode))
    }

    /// Like [`holder`](Self::holder), for changes.
    pub(crate) fn holder_mut(&mut self, owner: &str, mode: Mode) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.owner == owner && holder.mode.is_held_as(mode))
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    owner: String,
    mode: Mode,
    hold_count: u32,
}

impl Holder {
    /// A holder as stored.
    #[must_use]
    pub fn new(owner: impl Into<String>, mode: Mode, hold_count: u32) -> Self {
        Self { owner: owner.into(), mode, hold_count }
    }

    /// The identity on the wire: `<client uuid>:<number>`, or the name of a named owner. Compare it
    /// with [`LockGuard::wire_owner`](crate::LockGuard::wire_owner), or use
    /// [`LockState::holder_of`].
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The way in which the lock is held. For permits, it contains their number.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The hold count: how often the owner has entered. Always 1 for permits. Nested acquisitions
    /// that needed no round trip are known only to the client that made them; other clients do not
    /// see them.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.hold_count
    }

    pub(crate) fn set_hold_count(&mut self, count: u32) {
        self.hold_count = count;
    }
}
