//! The local layer: how an acquisition gets its hold. Nested, it enters the one that its owner has; else it queues, and the first in
//! each queue talks to the backend.

pub(crate) mod acquisition;
mod read_write;
pub(crate) mod retry;
pub(crate) mod seats;
mod task;
pub(crate) mod waiters;
mod waiting;

pub(crate) use self::task::TaskKey;
