//! What the tests of a process share while any of them uses it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The value that is in use, or a new one. It is dropped with its last user.
pub(crate) fn shared<T, E>(
    slot: &Mutex<Weak<T>>,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<Arc<T>, E> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = slot.upgrade() {
        return Ok(value);
    }
    let value = Arc::new(make()?);
    *slot = Arc::downgrade(&value);
    Ok(value)
}
