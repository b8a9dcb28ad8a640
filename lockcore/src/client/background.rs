//! The one background task of a client, and the way to it.

use std::{
    future::Future,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

/// Work that has to be done although nobody waits for it.
pub(super) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the task does: it looks after a client, and does the jobs that come.
pub(super) type Serve<C> = fn(Weak<C>, UnboundedReceiver<Job>) -> Job;

/// The background task. It ends with the client, or with its runtime.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// The way to the task that runs, if one does. Short critical sections without awaits.
    running: Mutex<Option<(UnboundedSender<Job>, JoinHandle<()>)>>,
}

impl Background {
    fn running(&self) -> MutexGuard<'_, Option<(UnboundedSender<Job>, JoinHandle<()>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task unless it runs, on the current runtime. Returns `false` if there is none.
    pub(super) fn start(&self, task: impl FnOnce(UnboundedReceiver<Job>) -> Job) -> bool {
        let mut running = self.running();
        if running.as_ref().is_some_and(|(jobs, _)| !jobs.is_closed()) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        let (jobs, receiver) = unbounded_channel();
        *running = Some((jobs, runtime.spawn(task(receiver))));
        true
    }

    /// Has the task do `job`. Gives it back if no task runs.
    pub(super) fn send(&self, job: Job) -> Result<(), Job> {
        match self.running().as_ref() {
            None => Err(job),
            Some((jobs, _)) => jobs.send(job).map_err(|unsent| unsent.0),
        }
    }

    /// Lets the task end when its jobs are done. A later job starts another one.
    pub(super) fn dismiss(&self) {
        let running = self.running().take();
        drop(running);
    }

    /// Stops the task at once, with everything that it does.
    pub(super) fn stop(&self) {
        let running = self.running().take();
        if let Some((_, task)) = running {
            task.abort();
        }
    }
}
