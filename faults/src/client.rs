//! A client process: tasks that acquire, hold and release, and log what they observe.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{Clock, Lock, LockError, LockGuard, Locks, Owner};
use lockcore_testkit::{EventLog, Share, What, monotonic, span};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::watch,
    task::JoinSet,
};

use crate::{
    protocol::{Answer, ClientConfig, Kind, Order, PERMITS, Place, Result, failure},
    resource::ResourceClient,
    rng::Random,
};

/// How often a holder checks whether it still holds.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// The log filter of a client: warnings, and the events that explain the loss of a hold.
const SAID: &str = "warn,lockcore::client::report=debug,lockcore_postgres=debug";

/// Threads of a client's runtime.
const THREADS: usize = 2;

/// Runs a client process until it is told to end, or its input ends.
pub(crate) fn run(config: &str) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(SAID)
        .init();
    let config: ClientConfig = serde_json::from_str(config)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    let ended = runtime.block_on(async { tokio::spawn(serve(config)).await });
    // Standard input is read by a thread that cannot be ended.
    runtime.shutdown_background();
    ended?
}

/// The state that the tasks of a client share.
struct Session {
    config: ClientConfig,
    locks: Locks,
    log: EventLog,
    resource: ResourceClient,
    resting: watch::Sender<bool>,
    /// How many ns the host has been suspended, by the lease clock.
    suspended: Arc<AtomicU64>,
}

/// A hold that is kept on order, by a separate task.
struct Kept {
    name: String,
    give_up: tokio::sync::oneshot::Sender<()>,
    given_up: tokio::task::JoinHandle<Option<String>>,
}

async fn serve(config: ClientConfig) -> Result<()> {
    let locks = config.store.connect(&config.connecting).await?;
    let suspended: Arc<AtomicU64> = Arc::default();
    let host = Clock::system();
    let clock = Clock::with_suspension({
        let suspended = suspended.clone();
        move || Duration::from_nanos(suspended.load(Ordering::SeqCst))
    });
    let locks = locks
        .clock(if config.can_suspend { clock } else { host })
        .retry_for(config.retry_for)
        .queue_timeout(config.queue_timeout)
        .build()?;
    let session = Arc::new(Session {
        log: EventLog::open(&config.log, &config.client)?,
        resource: ResourceClient::new(config.resource.clone()),
        locks,
        suspended,
        resting: watch::Sender::new(true),
        config,
    });
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let mut tasks = JoinSet::new();
    let mut kept = Vec::new();
    answer(&Answer::Done)?;
    while let Some(line) = orders.next_line().await? {
        let order = serde_json::from_str(&line)?;
        let is_last = matches!(order, Order::Exit);
        let done = session.obey(order, &mut tasks, &mut kept).await;
        answer(&done.unwrap_or_else(|error| Answer::Failed(error.to_string())))?;
        if is_last {
            break;
        }
    }
    Ok(())
}

fn answer(answer: &Answer) -> Result<()> {
    println!("{}", serde_json::to_string(answer)?);
    Ok(())
}

impl Session {
    async fn obey(
        self: &Arc<Self>,
        order: Order,
        tasks: &mut JoinSet<()>,
        kept: &mut Vec<Kept>,
    ) -> Result<Answer> {
        match order {
            Order::Play => {
                self.resting.send_replace(false);
                for number in 0..self.config.tasks {
                    tasks.spawn(self.clone().play(number));
                }
            }
            Order::Rest => {
                self.resting.send_replace(true);
                while let Some(ended) = tasks.join_next().await {
                    ended?;
                }
            }
            Order::Hold(place) => kept.push(self.clone().keep(place).await?),
            Order::Wait(place) => {
                tasks.spawn(self.clone().wait(place));
            }
            Order::Release => {
                let mut released = Vec::new();
                for hold in kept.drain(..) {
                    let _ = hold.give_up.send(());
                    released.push((hold.name, hold.given_up.await?));
                }
                return Ok(Answer::Released(released));
            }
            Order::Block(time) => {
                for _ in 0..THREADS {
                    tokio::spawn(async move { std::thread::sleep(time) });
                }
            }
            Order::Suspend(time) => {
                self.suspended.fetch_add(span(time), Ordering::SeqCst);
            }
            Order::Vitals => return vitals(),
            Order::Exit => self.locks.close().await?,
        }
        Ok(Answer::Done)
    }

    /// Acquires and releases until the client is told to rest.
    async fn play(self: Arc<Self>, number: usize) {
        let mut random = Random::of(self.config.seed, &format!("{} {number}", self.config.client));
        let mut rest = self.resting.subscribe();
        while !*rest.borrow_and_update() {
            if let Some(place) = random.pick(&self.config.places).cloned() {
                self.once(&place, &mut random).await;
            }
            // Leaves time to others, even where everything is refused at once.
            let pause = random.ms(1, 20);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = rest.changed() => {}
            }
        }
    }

    /// One acquisition, in one of the possible ways, and what follows from it.
    async fn once(&self, place: &Place, random: &mut Random) {
        let share = match place.kind {
            Kind::ReadWrite if random.below(3) > 0 => Share::Read,
            Kind::Semaphore => {
                Share::Permits { count: 1 + u32::from(random.one_in(3)), of: PERMITS }
            }
            _ => Share::Alone,
        };
        let owner = Owner::new();
        let lock = self.lock(place, share).owned_by(&owner);
        let op = self.ask(place, share, None);
        let patience = 3 * self.config.connecting.lease;
        let guard = match random.below(10) {
            0 => self.try_it(op, &lock).await,
            1 => {
                let patience = random.ms(0, 100);
                self.cancel_after(op, lock.acquire(), tokio::time::sleep(patience)).await
            }
            _ => {
                let mut rest = self.resting.subscribe();
                let resting = async move {
                    let _ = rest.wait_for(|rest| *rest).await;
                };
                self.cancel_after(op, lock.acquire_timeout(patience), resting).await
            }
        };
        if let Some(guard) = guard {
            self.inside(op, guard, place, share, &lock, random).await;
        }
    }

    fn lock(&self, place: &Place, share: Share) -> Lock {
        let name = place.name.as_str();
        match (place.kind, share) {
            (Kind::Exclusive, _) => self.locks.lock(name),
            (Kind::Fair, _) => self.locks.fair_lock(name),
            (Kind::ReadWrite, Share::Read) => self.locks.rw_lock(name).read(),
            (Kind::ReadWrite, _) => self.locks.rw_lock(name).write(),
            (Kind::Semaphore, Share::Permits { count, .. }) => {
                self.locks.semaphore(name, PERMITS).permits(count)
            }
            (Kind::Semaphore, _) => self.locks.semaphore(name, PERMITS).permits(1),
        }
    }

    fn ask(&self, place: &Place, share: Share, nested_in: Option<u64>) -> u64 {
        let op = self.log.next_op();
        self.log.now(op, What::Asked { name: place.name.clone(), share, nested_in });
        op
    }

    async fn try_it(&self, op: u64, lock: &Lock) -> Option<LockGuard> {
        match lock.try_acquire().await {
            Ok(Some(guard)) => Some(self.granted(op, guard)),
            Ok(None) => {
                self.log.now(op, What::Refused);
                None
            }
            Err(error) => self.failed(op, &error),
        }
    }

    async fn cancel_after(
        &self,
        op: u64,
        acquire: impl Future<Output = std::result::Result<LockGuard, LockError>>,
        patience: impl Future<Output = ()>,
    ) -> Option<LockGuard> {
        tokio::select! {
            biased;
            acquired = acquire => match acquired {
                Ok(guard) => Some(self.granted(op, guard)),
                Err(error) => self.failed(op, &error),
            },
            () = patience => {
                self.log.now(op, What::Cancelled);
                None
            }
        }
    }

    fn granted(&self, op: u64, guard: LockGuard) -> LockGuard {
        let owner = guard.wire_owner().to_owned();
        // The time is read before the remaining lease, so that a pause in between cannot make the
        // belief longer than it is.
        let t = monotonic();
        let until = t + span(guard.remaining());
        self.log.at(t, op, What::Granted { token: guard.token().into(), owner, until });
        guard
    }

    fn failed(&self, op: u64, error: &LockError) -> Option<LockGuard> {
        use std::error::Error;
        if let LockError::Backend(cause) = error
            && !cause.is_retryable()
        {
            eprintln!(
                "op {op}: {error}: {}",
                cause.source().map(ToString::to_string).unwrap_or_default()
            );
        }
        let what = match error {
            LockError::Timeout { .. } => What::Refused,
            error => What::Failed { kind: kind_of(error), unknown: is_unknown(error) },
        };
        self.log.now(op, what);
        None
    }

    /// Holds the lock: reads, works, perhaps nests, writes, and leaves.
    async fn inside(
        &self,
        op: u64,
        guard: LockGuard,
        place: &Place,
        share: Share,
        lock: &Lock,
        random: &mut Random,
    ) {
        let (name, token) = (place.name.as_str(), u64::from(guard.token()));
        let writes = share == Share::Alone;
        let base = if writes { self.resource.read(name, token).await.ok().flatten() } else { None };
        if writes && random.one_in(4) {
            self.nest(op, place, share, lock).await;
        }
        let stay = if self.config.long_holds && random.one_in(15) {
            2 * self.config.connecting.lease.mul_f64(0.25 + 0.75 * random.below(100) as f64 / 100.0)
        } else {
            random.ms(self.config.hold_ms.0, self.config.hold_ms.1)
        };
        let still_held = self.stay(op, &guard, stay, true).await;
        if let Some(base) = base
            && (self.config.careless || still_held && guard.is_held())
        {
            // Rejecting a stale token is the purpose of the resource.
            let _ = self.resource.write(name, token, base).await;
        }
        if still_held && random.one_in(5) {
            self.log.now(op, What::Dropped);
            drop(guard);
        } else {
            self.log.now(op, What::Leaving);
            self.released(op, guard.release().await);
        }
    }

    /// Stays for `time`, or until the client is told to rest, or until the hold is lost. Returns
    /// `true` if it is still held.
    async fn stay(&self, op: u64, guard: &LockGuard, time: Duration, until_rest: bool) -> bool {
        let start = Instant::now();
        let lost = guard.lost();
        tokio::pin!(lost);
        loop {
            let rest = time.saturating_sub(start.elapsed());
            tokio::select! {
                biased;
                reason = &mut lost => {
                    self.log.now(op, What::Lost { reason: format!("{reason:?}") });
                    return false;
                }
                () = tokio::time::sleep(rest.min(LOOK_EVERY)) => {
                    let t = monotonic();
                    let remaining = guard.remaining();
                    if !remaining.is_zero() {
                        self.log.at(t, op, What::Held { until: t + span(remaining) });
                    }
                    if rest <= LOOK_EVERY || until_rest && *self.resting.borrow() {
                        return true;
                    }
                }
            }
        }
    }

    async fn nest(&self, outer: u64, place: &Place, share: Share, lock: &Lock) {
        let op = self.ask(place, share, Some(outer));
        match lock.acquire().await {
            Ok(guard) => {
                let guard = self.granted(op, guard);
                tokio::task::yield_now().await;
                self.log.now(op, What::Leaving);
                self.released(op, guard.release().await);
            }
            Err(error) => {
                self.failed(op, &error);
            }
        }
    }

    fn released(&self, op: u64, released: std::result::Result<(), LockError>) -> Option<String> {
        match released {
            Ok(()) => {
                self.log.now(op, What::Released);
                None
            }
            Err(error) => {
                let lost = matches!(error, LockError::Lost { .. });
                self.log.now(op, What::NotReleased { kind: kind_of(&error), lost });
                Some(kind_of(&error))
            }
        }
    }

    /// Acquires the lock of `place` as a whole and keeps it, until told otherwise or until it is
    /// lost.
    async fn keep(self: Arc<Self>, place: Place) -> Result<Kept> {
        let share = place.kind.whole();
        let op = self.ask(&place, share, None);
        let acquired = self.lock(&place, share).acquire().await;
        let guard = match acquired {
            Ok(guard) => self.granted(op, guard),
            Err(error) => {
                self.failed(op, &error);
                return Err(failure(error.to_string()));
            }
        };
        let (give_up, mut told) = tokio::sync::oneshot::channel();
        let name = place.name.clone();
        let given_up = tokio::spawn(async move {
            let for_ever = Duration::from_secs(3600);
            tokio::select! {
                biased;
                _ = &mut told => {}
                _ = self.stay(op, &guard, for_ever, false) => {
                    // Lost; the guard is kept until the order comes.
                    let _ = told.await;
                }
            }
            self.log.now(op, What::Leaving);
            self.released(op, guard.release().await)
        });
        Ok(Kept { name, give_up, given_up })
    }

    /// Waits for the lock of `place` as a whole, as long as it takes, and releases it.
    async fn wait(self: Arc<Self>, place: Place) {
        let share = place.kind.whole();
        let op = self.ask(&place, share, None);
        match self.lock(&place, share).acquire().await {
            Ok(guard) => {
                let guard = self.granted(op, guard);
                self.log.now(op, What::Leaving);
                self.released(op, guard.release().await);
            }
            Err(error) => {
                self.failed(op, &error);
            }
        }
    }
}

fn is_unknown(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.is_outcome_unknown())
}

/// The name of an error's kind: `Backend(Timeout)`, `Lost`.
fn kind_of(error: &LockError) -> String {
    match error {
        LockError::Backend(error) => format!("Backend({:?})", error.kind()),
        LockError::Timeout { .. } => "Timeout".into(),
        LockError::Lost { .. } => "Lost".into(),
        LockError::Closed { .. } => "Closed".into(),
        error => format!("{error:?}").chars().take_while(char::is_ascii_alphanumeric).collect(),
    }
}

fn vitals() -> Result<Answer> {
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory =
        resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(Answer::Vitals { tasks, descriptors, memory, wall })
}
