//! [`foreign`]: runs code that belongs to the user.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code: a waker, a log subscriber, or data attached to a span. A panic ends here,
/// because the caller has work left that others rely on, such as giving a hold back. The panic hook
/// has reported the panic by then.
pub(super) fn foreign(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}
