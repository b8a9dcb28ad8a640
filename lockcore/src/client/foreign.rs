//! [`foreign`]: code that belongs to the user.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the user: a waker, a log subscriber, or what hangs on a span. If it panics, that
/// ends here: whoever calls it has work left that others rely on, be it to give a hold back. The
/// panic hook has reported the panic by then.
pub(super) fn foreign(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}
