//! The one background task of a client: what is due, and cleanups.

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, JoinSet},
};

use super::{Client, calendar::Calendar, cleanup::Cleanup, tally::OwnedCounting};
use crate::{LockError, LockName, time::Clock};

/// How soon after waking up a host notices that it slept. Timers do not count the time asleep.
const SUSPENSION_CHECK: Duration = Duration::from_secs(1);

/// The way to the background task. The task ends with the client.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// The task that runs, if one does: it ends with its runtime. Short critical sections without
    /// awaits.
    running: Mutex<Option<Running>>,
}

/// A cleanup on its way. It keeps the client until it is done, and `close()` waits for it.
#[derive(Debug)]
struct Submitted {
    client: Arc<Client>,
    cleanup: Cleanup,
    counting: OwnedCounting,
}

#[derive(Debug)]
struct Running {
    cleanups: UnboundedSender<Submitted>,
    task: JoinHandle<()>,
}

impl Background {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Makes sure that the background task runs, on the current runtime if it has to be started.
    ///
    /// # Errors
    /// [`LockError::NoRuntime`] if it does not run, and there is no runtime to run it on.
    pub(super) fn ensure_running(self: &Arc<Self>, lock: &LockName) -> Result<(), LockError> {
        match self.start() {
            true => Ok(()),
            false => Err(LockError::NoRuntime { lock: lock.clone() }),
        }
    }

    /// Starts the background task unless it runs. Returns `false` if there is no runtime for it.
    fn start(self: &Arc<Self>) -> bool {
        let mut running = self.background.running();
        if running.as_ref().is_some_and(|running| !running.cleanups.is_closed()) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        let (cleanups, receiver) = unbounded_channel();
        let (client, calendar) = (Arc::downgrade(self), self.calendar.clone());
        let task = runtime.spawn(serve(client, calendar, self.clock.clone(), receiver));
        *running = Some(Running { cleanups, task });
        true
    }

    /// Has the background carry out a cleanup. Works outside of a runtime as long as the one that
    /// the task runs on is there.
    pub(super) fn submit(self: &Arc<Self>, cleanup: Cleanup) {
        if self.is_abandoned() {
            return;
        }
        self.start();
        let counting = match cleanup {
            Cleanup::LeaveCondition(_) => self.leaving.count_owned(),
            _ => self.pending_releases.count_owned(),
        };
        let submitted = Submitted { client: self.clone(), cleanup, counting };
        let unsent = match self.background.running().as_ref() {
            None => Some(submitted),
            Some(running) => running.cleanups.send(submitted).err().map(|unsent| unsent.0),
        };
        // Dropped when nothing is locked: it wakes others, who may come here.
        if unsent.is_some() {
            tracing::warn!("no runtime to release a lock on; it is free when its lease ends");
        }
    }

    /// Lets the background task end when its cleanups are done. A later cleanup starts another one.
    pub(super) fn dismiss_background(&self) {
        let running = self.background.running().take();
        drop(running);
    }

    /// Stops the background task at once, with everything that it does.
    pub(super) fn stop_background(&self) {
        let running = self.background.running().take();
        if let Some(running) = running {
            running.task.abort();
        }
    }
}

async fn serve(
    client: Weak<Client>,
    calendar: Arc<Calendar>,
    clock: Clock,
    mut cleanups: UnboundedReceiver<Submitted>,
) {
    // Renewals end with this task: nothing is held any more.
    let mut renewals = JoinSet::new();
    let mut work = JoinSet::new();
    let mut suspended = clock.suspended();
    loop {
        tokio::select! {
            biased;
            () = next_due(&calendar, &clock) => {
                let Some(client) = client.upgrade() else { break };
                if clock.suspended() > suspended {
                    suspended = clock.suspended();
                    client.look_at_all();
                }
                client.look_at_due(&mut renewals);
            }
            submitted = cleanups.recv() => match submitted {
                Some(Submitted { client, cleanup, counting }) => {
                    work.spawn(async move {
                        client.carry_out_cleanup(cleanup).await;
                        drop(counting);
                    });
                }
                // All handles and guards are gone, and everything that they left is on its way.
                None => break,
            },
            () = calendar.earlier() => {}
            Some(_) = work.join_next() => {}
            Some(_) = renewals.join_next() => {}
        }
    }
    while work.join_next().await.is_some() {}
}

/// Resolves when a lane is due, and now and then while there is one.
async fn next_due(calendar: &Calendar, clock: &Clock) {
    match calendar.look_next(clock.now().after(SUSPENSION_CHECK)) {
        None => pending().await,
        Some(moment) => clock.sleep_until(moment).await,
    }
}
