//! [`Load`]: tasks that acquire and release as fast as they can.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lockcore::{Lock, LockError, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_redis::RedisBackend;
use metrics::histogram;

/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(150);
const MEASURED: Duration = Duration::from_millis(500);

/// The number of pairs of a task whose times are entered at once, to be given to the recorder.
const ENTERED_TOGETHER: usize = 16;

/// The number of times at which they are given to the recorder.
const MANY: usize = 8192;

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const ENDING: u8 = 2;

/// The work of a process while it is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    tasks: usize,
    is_in_redis: bool,
    names: Names,
}

impl Load {
    /// How many times lockcore gives to the recorder for each pair: those of the acquisition and of
    /// the hold, and of two calls of Redis, unless the lock is handed over.
    fn samples(self) -> usize {
        match (self.names, self.is_in_redis && (self.tasks == 1 || self.names == Names::Each)) {
            (Names::Held, _) => 1,
            (_, false) => 2,
            (_, true) => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    One,
    Each,
    /// The one name is held already, by the owner of the task.
    Held,
}

const fn load(
    name: &'static str,
    about: &'static str,
    (tasks, is_in_redis, names): (usize, bool, Names),
) -> Load {
    Load { name, about, tasks, is_in_redis, names }
}

pub(crate) const LOADS: [Load; 8] = [
    load("redis-1", "Redis, one task", (1, true, Names::One)),
    load("redis-16", "Redis, 16 tasks with a name each", (16, true, Names::Each)),
    load("redis-64", "Redis, 64 tasks with a name each", (64, true, Names::Each)),
    load("redis-512", "Redis, 512 tasks with a name each", (512, true, Names::Each)),
    load("redis-one", "Redis, 64 tasks on one name", (64, true, Names::One)),
    load("memory-1", "memory, one task", (1, false, Names::One)),
    load("memory-one", "memory, 64 tasks on one name", (64, false, Names::One)),
    load("nested", "a nested pair", (1, false, Names::Held)),
];

/// What a load came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    /// Nanoseconds from pair to pair.
    pub(crate) time: f64,
    /// Nanoseconds of processor time for a pair, of all threads of the process.
    pub(crate) processor_time: f64,
}

#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    pairs: AtomicU64,
    /// How many times the recorder is given for each pair, beside those of lockcore.
    samples: usize,
    /// The times that it was not given yet, and whether somebody is giving it some.
    unreported: AtomicUsize,
    is_reporting: AtomicBool,
}

impl Load {
    /// Does it, and measures. With `is_floor`, the recorder is given as many times as it would be by
    /// lockcore.
    pub(crate) async fn run(
        self,
        redis: &str,
        is_floor: bool,
    ) -> Result<Yield, Box<dyn Error + Send + Sync>> {
        let locks = match self.is_in_redis {
            true => Locks::new(RedisBackend::connect(redis).await?),
            false => Locks::new(MemoryBackend::new()),
        };
        let samples = if is_floor { self.samples() } else { 0 };
        let (shared, owner) = (Arc::new(Shared { samples, ..Shared::default() }), Owner::new());
        let _held = match self.names {
            Names::Held => Some(locks.lock("cost").owned_by(&owner).acquire().await?),
            Names::One | Names::Each => None,
        };
        let tasks: Vec<_> = (0..self.tasks)
            .map(|number| match self.names {
                Names::One => locks.lock("cost"),
                Names::Each => locks.lock(format!("cost:{number}")),
                Names::Held => locks.lock("cost").owned_by(&owner),
            })
            .map(|lock| tokio::spawn(pairs(lock, shared.clone())))
            .collect();
        pause(WARM_UP).await?;
        let (begun, processor) = (Instant::now(), processor_time());
        shared.phase.store(MEASURING, Ordering::Relaxed);
        pause(MEASURED).await?;
        shared.phase.store(ENDING, Ordering::Relaxed);
        let (took, processor) = (begun.elapsed(), processor_time().saturating_sub(processor));
        for task in tasks {
            task.await??;
        }
        let pairs = shared.pairs.load(Ordering::Relaxed).max(1) as f64;
        let of_a_pair = |time: Duration| time.as_secs_f64() * 1e9 / pairs;
        Ok(Yield { time: of_a_pair(took), processor_time: of_a_pair(processor) })
    }
}

async fn pairs(lock: Lock, shared: Arc<Shared>) -> Result<(), LockError> {
    let mut pairs = 0;
    for number in 1_usize.. {
        lock.acquire().await?.release().await?;
        if shared.samples > 0 && number % ENTERED_TOGETHER == 0 {
            shared.enter(ENTERED_TOGETHER);
        }
        match shared.phase.load(Ordering::Relaxed) {
            WARMING_UP => {}
            MEASURING => pairs += 1,
            _ => break,
        }
    }
    shared.pairs.fetch_add(pairs, Ordering::Relaxed);
    Ok(())
}

impl Shared {
    /// Some pairs of a task are done. A task gives their times to the recorder, one at a time, as
    /// lockcore does.
    fn enter(self: &Arc<Self>, pairs: usize) {
        let count = self.unreported.fetch_add(self.samples * pairs, Ordering::SeqCst);
        if count < MANY {
            return;
        }
        if self.is_reporting.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            let count = shared.unreported.swap(0, Ordering::SeqCst);
            histogram!("floor_seconds").record_many(Duration::from_micros(1), count);
            shared.is_reporting.store(false, Ordering::SeqCst);
        });
    }
}

/// Waits on a thread of its own: tasks that are never idle would keep the runtime from its timers.
async fn pause(time: Duration) -> Result<(), tokio::task::JoinError> {
    tokio::task::spawn_blocking(move || thread::sleep(time)).await
}

/// How long all threads of this process have run. Zero where the system does not tell in this way.
fn processor_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
