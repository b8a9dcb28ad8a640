//! [`Within`]: work with a recorder within which this thread does no more of the same.
//!
//! A recorder may use locks. What it does is measured as well, and that must not go on without end.

use std::{cell::Cell, thread::LocalKey};

thread_local! {
    static IS_REPORTING: Cell<bool> = const { Cell::new(false) };
    static IS_REGISTERING: Cell<bool> = const { Cell::new(false) };
}

/// Exists while this thread does such work, for any client.
pub(super) struct Within(&'static LocalKey<Cell<bool>>);

impl Within {
    /// Begins to report measurements. `None` if this thread does so already.
    pub(super) fn report() -> Option<Self> {
        Self::begin(&IS_REPORTING)
    }

    /// Begins to register metrics. `None` if this thread does so already.
    pub(super) fn registration() -> Option<Self> {
        Self::begin(&IS_REGISTERING)
    }

    fn begin(mark: &'static LocalKey<Cell<bool>>) -> Option<Self> {
        // Not made before it is certain, because dropping it would take the mark away.
        (!mark.replace(true)).then(|| Self(mark))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
