//! The one background task of a client: renewals, and releases that nobody waits for.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, JoinSet},
};

use crate::{
    leases::hold::Hold,
    leases::release::{ReleaseWork, store_count},
    leases::renewal,
    store::Store,
    sync::condition::Leaving,
};

/// How soon after waking up a host notices that it slept. Timers do not count the time asleep.
const SUSPENSION_CHECK: Duration = Duration::from_secs(1);

/// Work that is to be done without its originator.
#[derive(Debug)]
pub(crate) enum Job {
    Release(ReleaseWork),
    /// See [`store_count`].
    StoreCount(Arc<Hold>),
    Leave(Leaving),
}

/// The way to the background task. The task ends when this is dropped and its work is done.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// The task that runs, if one does: it ends with its runtime. Short critical sections without awaits.
    running: Mutex<Option<Running>>,
    /// Whether all work is forgotten, for good.
    abandoned: AtomicBool,
}

#[derive(Debug)]
struct Running {
    jobs: UnboundedSender<Job>,
    task: JoinHandle<()>,
}

impl Background {
    /// Makes sure that the task runs. Cheap when it does; needs a runtime when it does not.
    pub(crate) fn ensure_running(&self, store: &Arc<Store>) {
        let mut running = self.running();
        if self.is_abandoned() {
            return;
        }
        if running.as_ref().is_some_and(|running| !running.jobs.is_closed()) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (jobs, receiver) = unbounded_channel();
        let task = runtime.spawn(serve(store.clone(), receiver));
        *running = Some(Running { jobs, task });
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over `job`. Works outside of a runtime as long as the one that the task runs on is there.
    pub(crate) fn submit(&self, store: &Arc<Store>, job: Job) {
        self.ensure_running(store);
        if self.is_abandoned() {
            return;
        }
        if self.running().as_ref().is_none_or(|running| running.jobs.send(job).is_err()) {
            tracing::warn!("no runtime to release a lock on; it is free when its lease ends");
        }
    }

    /// Lets the task end when its work is done, and waits for that. A later job starts a new one.
    pub(crate) async fn finish(&self) {
        let running = self.running().take();
        if let Some(Running { jobs, task }) = running {
            drop(jobs);
            // An error means that its runtime is gone, and its work with it.
            let _ = task.await;
        }
    }
}

impl Background {
    /// Ends the task in the middle of its work, and forgets what is handed over later.
    pub(crate) fn abandon(&self) {
        let mut running = self.running();
        self.abandoned.store(true, Ordering::SeqCst);
        if let Some(Running { task, .. }) = running.take() {
            task.abort();
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }
}

async fn serve(store: Arc<Store>, mut jobs: UnboundedReceiver<Job>) {
    let mut work = JoinSet::new();
    let mut suspended = store.clock.suspended();
    loop {
        tokio::select! {
            biased;
            () = next_due(&store) => {
                if store.clock.suspended() > suspended {
                    suspended = store.clock.suspended();
                    renewal::check_all(&store);
                }
                let (unclaimed, renewals) = renewal::collect(&store);
                for release in unclaimed {
                    work.spawn(carry_out(store.clone(), Job::Release(release)));
                }
                for batch in renewals {
                    work.spawn(batch);
                }
            }
            job = jobs.recv() => match job {
                Some(job) => { work.spawn(carry_out(store.clone(), job)); }
                None => break,
            },
            () = store.schedule.earlier.notified() => {}
            Some(_) = work.join_next() => {}
        }
    }
    // All handles and guards are gone, or the client is closed: what is left are releases.
    for parked in store.names.all_parked() {
        if let Some(release) = ReleaseWork::of_parked(&store, &parked, store.clock.now()) {
            work.spawn(carry_out(store.clone(), Job::Release(release)));
        }
    }
    while work.join_next().await.is_some() {}
}

async fn carry_out(store: Arc<Store>, job: Job) {
    match job {
        Job::Release(work) => work.carry_out(&store).await,
        Job::StoreCount(hold) => store_count(&store, &hold).await,
        Job::Leave(leaving) => leaving.carry_out(&store).await,
    }
}

/// Resolves when a hold is due, and now and then while there is one.
async fn next_due(store: &Store) {
    match store.schedule.look_next(store.clock.now().after(SUSPENSION_CHECK)) {
        None => pending().await,
        Some(moment) => store.clock.sleep_until(moment).await,
    }
}
