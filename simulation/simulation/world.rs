//! [`World`]: one run, from the seed to the leftovers.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{Clock, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Faults, Faulty};
use tokio::{
    task::JoinSet,
    time::{Instant, advance, sleep, sleep_until, timeout},
};

use crate::{
    actor::Actor,
    beliefs::Beliefs,
    chance::Chance,
    entropy,
    noise::Noise,
    plan::{ClientPlan, LONGEST_LEASE, Member, Plan, Trouble},
    trace::{Outcome, Trace},
    truth::{Observed, Truth},
    waits::Waits,
};

/// The time after the last fault until all its effects are over. The core waits five seconds for an
/// answer.
const AFTERMATH: Duration = Duration::from_secs(9);

/// The time limit of a run after the last fault. A longer wait counts as endless.
const FOR_EVER: Duration = Duration::from_secs(600);

/// The time limit for notified waiters to get the lock, one after the other.
const LATE: Duration = Duration::from_millis(1500);

/// The state that all actors share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) trace: Trace,
    pub(crate) truth: Truth,
    pub(crate) beliefs: Beliefs,
    pub(crate) waits: Waits,
    pub(crate) items: Items,
    pub(crate) facts: Facts,
    calm_since: Mutex<Option<Instant>>,
    /// By client: when it was closed.
    closed_at: Mutex<BTreeMap<usize, Instant>>,
}

/// The expectations that follow from the plan.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) healthy: bool,
    /// `true` if every woken task runs at once.
    pub(crate) is_prompt: bool,
    pub(crate) permits: u32,
    pub(crate) has_named_owners: bool,
    pub(crate) counts_are_exact: bool,
    pub(crate) notifications_are_exact: bool,
    pub(crate) queue_timeout: Duration,
}

/// The items that producers hand to consumers, the number of waiting consumers, and the number of
/// count-downs that actors have started.
#[derive(Debug, Default)]
pub(crate) struct Items(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    items: u32,
    waiting: u32,
    notified: u32,
    count_downs: u32,
}

impl Items {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self) {
        self.counts().items += 1;
    }

    pub(crate) fn take(&self) -> bool {
        let mut counts = self.counts();
        let taken = counts.items > 0;
        counts.items -= u32::from(taken);
        taken
    }

    /// Records that a consumer waits for an item, until the result is dropped.
    pub(crate) fn wait(&self) -> impl Drop + '_ {
        self.counts().waiting += 1;
        Expecting(self)
    }

    /// Records that a notification ended a wait. Returns the number of these so far.
    pub(crate) fn notified(&self) -> u32 {
        let mut counts = self.counts();
        counts.notified += 1;
        counts.notified
    }

    /// Records that an actor starts to count down.
    pub(crate) fn count_down(&self) {
        self.counts().count_downs += 1;
    }

    fn count_downs(&self) -> u32 {
        self.counts().count_downs
    }

    /// Returns `true` if there are both items and waiting consumers.
    fn are_missed(&self) -> bool {
        let counts = self.counts();
        counts.items > 0 && counts.waiting > 0
    }
}

struct Expecting<'a>(&'a Items);

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.0.counts().waiting -= 1;
    }
}

/// One process.
#[derive(Debug)]
struct SimulatedClient {
    locks: Locks,
    faults: Faults,
    noise: Noise,
    suspended: Arc<AtomicU64>,
}

/// Runs the plan of a seed, and keeps the text of the trace if `readable`.
pub(crate) fn run(seed: u64, readable: bool) -> Outcome {
    let chance = Chance::new(seed);
    run_plan(seed, Plan::of(&chance), &chance, readable)
}

/// Runs a plan. `chance` decides what it leaves open, and the `seed` everything else.
pub(crate) fn run_plan(seed: u64, plan: Plan, chance: &Chance, readable: bool) -> Outcome {
    let chance = chance.clone();
    let run = move || {
        entropy::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let trace = runtime.block_on(async { Trace::new(readable) });
        let simulation =
            AssertUnwindSafe(|| runtime.block_on(simulate(plan, chance, trace.clone())));
        if std::panic::catch_unwind(simulation).is_err() || crate::panics::seen() {
            trace.violation("something panicked".into());
        }
        trace.finish()
    };
    // A separate thread: see `entropy::seed`.
    std::thread::spawn(run).join().expect("the outcome of a run")
}

async fn simulate(plan: Plan, chance: Chance, trace: Trace) {
    trace.event(format_args!("{plan:#?}"));
    let truth = Truth::new(MemoryBackend::new(), trace.clone());
    let clients: Vec<_> = plan
        .clients
        .iter()
        .enumerate()
        .map(|(n, client)| SimulatedClient::new(n, client, &plan, &truth, &chance))
        .collect();
    let world = Arc::new(World::new(&plan, trace, truth));
    world.carry_out(plan, &clients, &chance).await;
    world.check_what_is_left(clients).await;
}

impl SimulatedClient {
    fn new(
        number: usize,
        client: &ClientPlan,
        plan: &Plan,
        truth: &Truth,
        chance: &Chance,
    ) -> Self {
        let noise = Noise::new(chance.clone(), client.intensity);
        let backend =
            Faulty::new(Observed { client: number, truth: truth.clone(), noise: noise.clone() });
        let (faults, suspended) = (backend.faults(), Arc::new(AtomicU64::new(0)));
        let clock = Clock::with_suspension({
            let suspended = suspended.clone();
            move || Duration::from_millis(suspended.load(Ordering::Relaxed))
        });
        let locks = Locks::builder(backend)
            .lease(client.lease)
            .retry_for(client.retry_for)
            .hand_over(client.hand_over)
            .linger(client.linger)
            .queue_timeout(plan.queue_timeout)
            .clock(clock)
            .build()
            .unwrap();
        Self { locks, faults, noise, suspended }
    }

    fn recover(&self) {
        self.faults.heal();
        self.faults.restore_subscriptions();
        self.noise.freeze_until(Instant::now());
    }
}

impl World {
    fn new(plan: &Plan, trace: Trace, truth: Truth) -> Self {
        let facts = Facts {
            healthy: plan.is_healthy(),
            is_prompt: plan.is_prompt(),
            permits: plan.permits,
            has_named_owners: plan.has_named_owners(),
            counts_are_exact: plan.counts_are_exact(),
            notifications_are_exact: plan.notifications_are_exact(),
            queue_timeout: plan.queue_timeout,
        };
        let calm_since = Mutex::new(facts.healthy.then(Instant::now));
        let is_undisturbed = facts.healthy && !facts.has_named_owners;
        let beliefs = Beliefs::new(truth.clone(), plan.permits, is_undisturbed);
        let closed_at = Mutex::default();
        Self {
            trace,
            truth,
            beliefs,
            waits: Waits::default(),
            items: Items::default(),
            facts,
            calm_since,
            closed_at,
        }
    }

    /// When the client was closed, if it was.
    pub(crate) fn closed_at(&self, client: usize) -> Option<Instant> {
        self.closed_at.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied()
    }

    /// Closes a client, and checks that nothing of it continues.
    async fn close(&self, client: usize, locks: Locks) {
        self.closed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(client)
            .or_insert_with(Instant::now);
        let held = self.beliefs.held_by(client);
        let closed = locks.close().await;
        self.trace.event(format_args!("c{client} is closed: {closed:?}"));
        self.beliefs.check_closed(client, if closed.is_ok() { &held } else { &[] });
        let text = format!("{locks:?}");
        let works_on = !text.contains("acquiring: Tally { count: 0")
            || !text.contains("running: Mutex { data: None");
        if closed.is_ok() && self.facts.is_prompt && works_on {
            self.trace.violation(format!("c{client} is closed, and works on: {text}"));
        }
    }

    /// Returns `true` if holds can only end by the end of their lease.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.facts.healthy && !self.facts.has_named_owners
    }

    /// The maximum duration of a few requests in sequence.
    pub(crate) fn latency(&self) -> Duration {
        Duration::from_millis(150)
    }

    /// The time since which there have been no faults, and no effects of earlier ones.
    fn calm_since(&self) -> Option<Instant> {
        *self.calm_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_calm_since(&self, moment: Instant) -> bool {
        self.calm_since().is_some_and(|calm| calm <= moment)
    }

    async fn carry_out(self: &Arc<Self>, plan: Plan, clients: &[SimulatedClient], chance: &Chance) {
        let mut tasks = JoinSet::new();
        for (number, task) in plan.tasks.into_iter().enumerate() {
            let SimulatedClient { locks, noise, .. } = &clients[task.client];
            let actor =
                Actor { number, client: task.client, locks: locks.clone(), world: self.clone() };
            tasks.spawn(noise.disturb(actor.carry_out(task)));
        }
        let troubles = self.trouble(&plan.troubles, clients, chance);
        let done = async { while tasks.join_next().await.is_some_and(|task| task.is_ok()) {} };
        let all = async {
            tokio::join!(done, troubles);
        };
        tokio::select! {
            biased;
            ended = timeout(FOR_EVER, all) => if ended.is_err() {
                self.trace.violation(format!("somebody waits for ever: {:?}", self.waits));
            },
            () = self.watch() => {}
        }
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
    }

    /// Causes the planned faults, and then no more.
    async fn trouble(
        self: &Arc<Self>,
        troubles: &[(Duration, Trouble)],
        clients: &[SimulatedClient],
        chance: &Chance,
    ) {
        if self.facts.healthy {
            return;
        }
        let start = Instant::now();
        for (at, trouble) in troubles {
            sleep_until(start + *at).await;
            self.trace.event(format_args!("{trouble:?}"));
            self.happen(*trouble, clients, chance).await;
            self.beliefs.check();
        }
        for client in clients {
            client.recover();
        }
        self.trace.event(format_args!("no more trouble"));
        let calm = Instant::now() + AFTERMATH;
        *self.calm_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(calm);
    }

    async fn happen(
        self: &Arc<Self>,
        trouble: Trouble,
        clients: &[SimulatedClient],
        chance: &Chance,
    ) {
        match trouble {
            Trouble::Next { client, op, fault, times } => {
                (0..times).for_each(|_| clients[client].faults.next(op, fault));
            }
            Trouble::Every { client, op, fault } => clients[client].faults.every(op, fault),
            Trouble::Heal { client } => clients[client].faults.heal(),
            Trouble::Cut { client } => clients[client].faults.interrupt_subscriptions(),
            Trouble::Restore { client } => clients[client].faults.restore_subscriptions(),
            Trouble::Suspend { client, time } => {
                let millis = u64::try_from(time.as_millis()).unwrap();
                clients[client].suspended.fetch_add(millis, Ordering::Relaxed);
            }
            Trouble::Freeze { client, time } => {
                clients[client].noise.freeze_until(Instant::now() + time)
            }
            Trouble::Pause(time) => advance(time).await,
            Trouble::Force(member) => {
                let locks = &clients[chance.below(clients.len())].locks;
                let lock = match member {
                    Member::Lock(name) | Member::Fair(name) => locks.lock(name),
                    Member::Read | Member::Write => locks.rw_lock("r").write(),
                    Member::Permits(_) => locks.semaphore("s", 1).permits(1),
                };
                tokio::spawn(async move { lock.force_release().await });
            }
            Trouble::Close { client } => {
                let (world, locks) = (self.clone(), clients[client].locks.clone());
                tokio::spawn(async move { world.close(client, locks).await });
            }
        }
    }

    /// Outside of faults, checks that every waiter for a free lock gets it.
    async fn watch(&self) {
        let mut free_since = BTreeMap::new();
        let mut missed_since = None;
        loop {
            sleep(Duration::from_millis(7)).await;
            self.beliefs.check();
            self.check_signals(&mut missed_since);
            let Some(calm) = self.calm_since().filter(|calm| *calm <= Instant::now()) else {
                continue;
            };
            for (name, waiting_since) in self.waits.longest() {
                if self.truth.inspect(name).is_held() {
                    free_since.remove(name);
                    continue;
                }
                let free = *free_since.entry(name).or_insert_with(Instant::now);
                let granted = self.truth.granted_at(name).unwrap_or(free);
                let since = free.max(waiting_since).max(granted).max(calm);
                let ghosts =
                    if self.facts.healthy { Duration::ZERO } else { self.facts.queue_timeout };
                if since.elapsed() > self.latency() + ghosts && !self.trace.has_violation() {
                    let waited = since.elapsed();
                    self.trace.violation(format!(
                        "{name} has been free for {waited:?}, and somebody waits"
                    ));
                }
            }
        }
    }

    /// Checks that no count-down counts twice, and that no notification is lost with its waiter.
    fn check_signals(&self, missed_since: &mut Option<Instant>) {
        let (counted, begun) = (self.truth.counted_down(), self.items.count_downs());
        if counted > begun {
            self.trace
                .violation(format!("{begun} wanted to count down, and {counted} were counted"));
        }
        if !self.facts.healthy || !self.items.are_missed() {
            *missed_since = None;
        } else if missed_since.get_or_insert_with(Instant::now).elapsed() > LATE {
            self.trace.violation(format!(
                "there have been items for {LATE:?}, and somebody waits for one"
            ));
        }
    }

    /// Checks that nothing is left: neither in the store, nor in the clients, nor in the
    /// background.
    async fn check_what_is_left(&self, clients: Vec<SimulatedClient>) {
        let patience = if self.facts.healthy {
            self.latency()
        } else {
            AFTERMATH + 2 * LONGEST_LEASE + self.facts.queue_timeout
        };
        sleep(patience).await;
        self.truth.open_latch("l");
        sleep(Duration::from_millis(1)).await;
        let (left, stays) = (self.truth.store.names_in_use(), self.truth.resized());
        if left != stays {
            self.trace
                .violation(format!("{left} names are in use, not {stays}: {:?}", self.truth.store));
        }
        // An idle lane that stays is in the schedule until its last hold or request would have been
        // due.
        sleep(Duration::from_secs(10)).await;
        for (number, client) in clients.iter().enumerate() {
            let text = format!("{:?}", client.locks);
            let text = text.split_once(", clock:").map_or(&*text, |(_, text)| text);
            for empty in
                ["LaneMap { cells: []", "newest: None, others: {}", "acquiring: Tally { count: 0"]
            {
                if !text.contains(empty) {
                    self.trace.violation(format!("client {number} is not `{empty}`: {text}"));
                }
            }
        }
        self.check_background(clients).await;
    }

    /// Checks that the background task ends when its client is closed, and when it is dropped.
    async fn check_background(&self, clients: Vec<SimulatedClient>) {
        for (number, client) in clients.into_iter().enumerate() {
            if number % 2 == 0
                && let Err(error) = client.locks.close().await
            {
                self.trace.violation(format!("client {number} could not be closed: {error}"));
            }
        }
        sleep(Duration::from_millis(100)).await;
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if alive > 0 {
            self.trace.violation(format!("{alive} tasks are still there"));
        }
    }
}
