//! The one background task of a client, and the channel to it.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

/// Work that has to be done although nobody waits for it.
pub(super) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The background task. It ends with the client, or with its runtime.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// The channel to the running task, if there is one. Short critical sections without awaits.
    running: Mutex<Option<(UnboundedSender<Job>, JoinHandle<()>)>>,
    /// Set while the task certainly runs. Saves each acquisition from taking the lock.
    is_up: Arc<AtomicBool>,
}

/// Clears the flag when the task ends or is dropped.
struct WhileUp(Arc<AtomicBool>);

impl Drop for WhileUp {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Background {
    fn running(&self) -> MutexGuard<'_, Option<(UnboundedSender<Job>, JoinHandle<()>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `true` while the task certainly runs.
    pub(super) fn up(&self) -> &Arc<AtomicBool> {
        &self.is_up
    }

    /// Returns `true` if the task certainly runs.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    /// Starts the task on the current runtime, unless it runs already. Returns `false` if there is
    /// no runtime, or it has ended.
    pub(super) fn start(&self, task: impl FnOnce(UnboundedReceiver<Job>) -> Job) -> bool {
        if self.is_up() {
            return true;
        }
        let mut running = self.running();
        if running.as_ref().is_some_and(|(jobs, _)| !jobs.is_closed()) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        let (jobs, receiver) = unbounded_channel();
        // Set only here: if the task has just ended, this must not hide it.
        self.is_up.store(true, Ordering::SeqCst);
        let (mut job, up) = (task(receiver), WhileUp(self.is_up.clone()));
        let task = runtime.spawn(async move {
            let _up = up;
            job.as_mut().await;
        });
        // A runtime that has ended takes no tasks.
        let is_up = !jobs.is_closed();
        *running = Some((jobs, task));
        is_up
    }

    /// Hands `job` to the task, or returns it if no task runs.
    pub(super) fn send(&self, job: Job) -> Result<(), Job> {
        match self.running().as_ref() {
            None => Err(job),
            Some((jobs, _)) => jobs.send(job).map_err(|unsent| unsent.0),
        }
    }

    /// Lets the task end when its jobs are done. A later job starts another one.
    pub(super) fn dismiss(&self) {
        let mut running = self.running();
        self.is_up.store(false, Ordering::SeqCst);
        let dismissed = running.take();
        drop(running);
        drop(dismissed);
    }

    /// Stops the task at once, with everything that it does.
    pub(super) fn stop(&self) {
        let mut running = self.running();
        self.is_up.store(false, Ordering::SeqCst);
        let stopped = running.take();
        drop(running);
        if let Some((_, task)) = stopped {
            task.abort();
        }
    }
}
