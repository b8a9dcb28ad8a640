//! Three instances of a worker, one of which pulls data while the others stand by. It is killed, and another takes over when
//! its lease ends; that one is stopped in good order, and the next takes over at once.
//!
//! ```text
//! cargo run --example singleton
//! cargo run --example singleton -- --redis redis://127.0.0.1:6379
//! ```

use std::{convert::Infallible, process::ExitCode, sync::Arc, thread::JoinHandle, time::Duration};

use lockcore::{FencingToken, LockError};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    runtime,
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep},
};

/// How long a hold outlives an instance that has died, and with that the longest interruption.
const LEASE: Duration = Duration::from_secs(2);
/// What a busy machine may add to it.
const GRACE: Duration = Duration::from_secs(1);
/// How often data is pulled.
const PERIOD: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("singleton", singleton).await
}

async fn singleton(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "Three instances of a worker with a lease of {LEASE:?}, one of which pulls data; the lock is kept {store}"
    ));
    let observer = store.client().await?.build()?;
    let (report, mut pulls) = mpsc::unbounded_channel();
    let start = |name| Instance::start(name, &store, &report);
    let mut instances = vec![start("one")?, start("two")?, start("three")?];

    story.chapter("1. One pulls, the others stand by");
    let first = next_pull(&mut pulls, |_| true).await?;
    story.tell(first.instance, format_args!("pulls data, with token {}", first.token));
    let held_for = first.at + LEASE * 3 / 2;
    let later = next_pull(&mut pulls, |pull| pull.at > held_for).await?;
    story.tell(later.instance, "still does after one and a half leases: its lease is renewed");
    claim(later.token == first.token, "a lease is renewed while its holder works")?;

    story.chapter("2. It is killed, without a chance to release anything");
    let left = observer.lock("pull").state().await?.remaining().ok_or("the lock should be held")?;
    let killed = Instant::now();
    take(&mut instances, first.instance)?.kill()?;
    story.tell(
        first.instance,
        format_args!("is killed; its lease has {} ms to go", left.as_millis()),
    );
    let second = next_pull(&mut pulls, |pull| pull.instance != first.instance).await?;
    let took = second.at - killed;
    story.tell(second.instance, format_args!("takes over, with token {}", second.token));
    story.add(format_args!(
        "takeover after {} ms; the lease is {} ms",
        took.as_millis(),
        LEASE.as_millis()
    ));
    claim(second.token > first.token, "the successor has the greater token")?;
    claim(took + PERIOD >= left, "nobody enters before the lease of the dead instance has ended")?;
    claim(took <= LEASE + GRACE, "another instance takes over when the lease ends")?;

    story.chapter("3. Its successor is stopped in good order");
    let stopped = Instant::now();
    take(&mut instances, second.instance)?.stop()?;
    story.tell(second.instance, "is stopped, and releases the lock");
    let third = next_pull(&mut pulls, |pull| pull.token > second.token).await?;
    let took = third.at.saturating_duration_since(stopped);
    story.tell(third.instance, format_args!("takes over, with token {}", third.token));
    story.add(format_args!("takeover after {} ms", took.as_millis()));
    claim(took < LEASE / 2, "a release lets the next one in at once")?;

    take(&mut instances, third.instance)?.stop()?;
    claim(!observer.lock("pull").state().await?.is_held(), "when all have gone, the lock is free")?;
    observer.close().await?;
    Ok(())
}

/// One instance after it has started to pull.
#[derive(Debug)]
struct Pull {
    instance: &'static str,
    token: FencingToken,
    at: Instant,
}

/// Waits for a pull like that. Tokens never fall: whoever comes later has the greater one.
async fn next_pull(
    pulls: &mut mpsc::UnboundedReceiver<Pull>,
    wanted: impl Fn(&Pull) -> bool,
) -> Result<Pull, Failure> {
    let search = async {
        let mut greatest = None;
        while let Some(pull) = pulls.recv().await {
            claim(Some(pull.token) >= greatest, "only the newest holder pulls")?;
            greatest = Some(pull.token);
            if wanted(&pull) {
                return Ok(pull);
            }
        }
        Err("all instances have gone".into())
    };
    tokio::time::timeout(LEASE + GRACE * 4, search).await.map_err(|_| "nobody pulls any more")?
}

fn take(instances: &mut Vec<Instance>, name: &str) -> Result<Instance, Failure> {
    let at =
        instances.iter().position(|instance| instance.name == name).ok_or("no such instance")?;
    Ok(instances.swap_remove(at))
}

/// An instance of the worker: a thread with a runtime and a client of its own stands in for a process.
struct Instance {
    name: &'static str,
    stop: Arc<Notify>,
    /// Dropped to kill it.
    lifeline: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Instance {
    fn start(
        name: &'static str,
        store: &Store,
        report: &mpsc::UnboundedSender<Pull>,
    ) -> Result<Self, Failure> {
        let (lifeline, death) = oneshot::channel::<()>();
        let stop = Arc::new(Notify::new());
        let work = work(name, store.clone(), report.clone(), stop.clone());
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || {
            let work = runtime.spawn(work);
            // When this returns because of the death, nothing on the runtime runs any more: not the work, not the
            // renewals, and not the release that the guard wants when it is dropped.
            runtime.block_on(async {
                tokio::select! {
                    done = work => done?,
                    _ = death => Ok(()),
                }
            })
        });
        Ok(Self { name, stop, lifeline, thread })
    }

    fn kill(self) -> Result<(), Failure> {
        drop(self.lifeline);
        self.thread.join().map_err(|_| "the instance panicked")?
    }

    fn stop(self) -> Result<(), Failure> {
        self.stop.notify_one();
        self.thread.join().map_err(|_| "the instance panicked")?
    }
}

/// What every instance does: waits for the lock, and pulls while it has it, until it is stopped.
async fn work(
    name: &'static str,
    store: Store,
    report: mpsc::UnboundedSender<Pull>,
    stop: Arc<Notify>,
) -> Result<(), Failure> {
    let locks = store.client().await?.lease(LEASE).build()?;
    let lock = locks.lock("pull");
    loop {
        let (report, stop) = (report.clone(), stop.clone());
        let pulls = lock.run(async move |guard| {
            let pulls = pull_for_ever(name, guard.token(), &report);
            tokio::select! {
                never = pulls => match never {},
                () = stop.notified() => {}
            }
        });
        match pulls.await {
            // Stopped, and the lock is released: `run` returns when that is confirmed.
            Ok(()) => break,
            // Another instance has the lock by now, or will: stand by.
            Err(LockError::Lost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(locks.close().await?)
}

async fn pull_for_ever(
    instance: &'static str,
    token: FencingToken,
    report: &mpsc::UnboundedSender<Pull>,
) -> Infallible {
    loop {
        // If nobody wants the report any more, the example is about to end.
        let _ = report.send(Pull { instance, token, at: Instant::now() });
        sleep(PERIOD).await;
    }
}
