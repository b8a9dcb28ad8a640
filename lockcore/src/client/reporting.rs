//! [`Reporting`]: a report to a recorder within which this thread makes no other one.

use std::cell::Cell;

thread_local! {
    static IS_REPORTING: Cell<bool> = const { Cell::new(false) };
}

/// Exists while this thread reports to a recorder.
pub(super) struct Reporting;

impl Reporting {
    /// `None` if it does so already, for this client or another one.
    pub(super) fn begin() -> Option<Self> {
        let was_reporting = IS_REPORTING.replace(true);
        (!was_reporting).then_some(Self)
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        IS_REPORTING.set(false);
    }
}
