//! [`TaskKey`]: identifies the running task, for the warning about a task that waits for itself.

use std::thread::ThreadId;

/// A tokio task, or the thread that blocks on a future outside of any task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TaskKey {
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl TaskKey {
    pub(crate) fn current() -> Self {
        tokio::task::try_id().map_or_else(|| Self::Thread(std::thread::current().id()), Self::Task)
    }
}
