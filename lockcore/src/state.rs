//! [`LockState`]: what inspection reports.

use std::time::Duration;

use crate::Mode;

/// Who holds a lock, as the backend has it stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    holders: Vec<Holder>,
    remaining: Option<Duration>,
    waiters: Vec<String>,
    available: Option<u32>,
    limit: Option<u32>,
}

impl LockState {
    /// The state of a lock that nobody holds.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// The state of a lock with these holders, whose lease runs for `remaining`; `None` if it has no end.
    #[must_use]
    pub fn held(holders: Vec<Holder>, remaining: Option<Duration>) -> Self {
        Self { holders, remaining, ..Self::default() }
    }

    /// Adds who waits, by their identity on the wire, the next one first.
    #[must_use]
    pub fn with_waiters(mut self, waiters: Vec<String>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Adds how many permits can be taken, of how many that there are.
    #[must_use]
    pub fn with_permits(mut self, available: u32, limit: Option<u32>) -> Self {
        self.available = Some(available);
        self.limit = limit;
        self
    }

    /// Whether anybody holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Who holds the lock.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Who waits, the next one first, by their identity on the wire: as far as the backend knows them. It knows those who wait for a fair
    /// lock, and the writer that keeps new readers out.
    #[must_use]
    pub fn waiters(&self) -> &[String] {
        &self.waiters
    }

    /// How many permits of a semaphore can be taken now; `None` if the name is not in use as one.
    #[must_use]
    pub fn available(&self) -> Option<u32> {
        self.available
    }

    /// How many permits a semaphore has, taken or not; `None` if the name is not in use as one, or if that is not stored.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// What is left of the lease, the longest if there are several; `None` if the lock is free, or has no lease, as a lock that others have written.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The hold of `owner` that was acquired in `mode`.
    pub(crate) fn holder(&self, owner: &str, mode: Mode) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.owner == owner && holder.mode.is_held_as(mode))
    }

    /// The hold of `owner` that was acquired in `mode`, to be corrected.
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

    /// The identity on the wire: `<client uuid>:<number>`, or the name of a named owner. Compare with
    /// [`LockGuard::wire_owner`](crate::LockGuard::wire_owner).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How the lock is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often the owner has entered; of permits, whose number is in the mode, 1. Nested acquisitions that needed no round trip are counted where they
    /// were made; other clients see 1 for them.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.hold_count
    }

    pub(crate) fn set_hold_count(&mut self, count: u32) {
        self.hold_count = count;
    }
}
