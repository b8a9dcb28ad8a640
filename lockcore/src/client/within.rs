//! [`Within`]: marks that this thread reports, so that it does not begin again.
//!
//! A recorder may use locks. What it does is measured as well, and must not be reported within the
//! same report.

use std::cell::Cell;

thread_local! {
    static IS_REPORTING: Cell<bool> = const { Cell::new(false) };
}

/// Exists while this thread reports, for any client.
pub(super) struct Within(());

impl Within {
    /// `None` if this thread reports already.
    pub(super) fn report() -> Option<Self> {
        // Not made before that is certain, because dropping it takes the mark away.
        (!IS_REPORTING.replace(true)).then(|| Self(()))
    }

    /// Returns `true` if this thread reports.
    pub(super) fn is_reporting() -> bool {
        IS_REPORTING.get()
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        IS_REPORTING.set(false);
    }
}
