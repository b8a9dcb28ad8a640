//! The core on several threads at once, in real time: what the simulation, which runs one task
//! after another, cannot cover.
//!
//! Many tasks of several clients want a few locks for a moment each, and give up now and then. A
//! waiter that misses its wake-up would wait for the end of a lease, which is longer than the limit
//! here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{Lock, LockGuard, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::poll_times;
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};

/// Longer than any test takes, shorter than a lease.
const LONG: Duration = Duration::from_secs(20);

const TASKS: usize = 16;
const ROUNDS: usize = 300;

/// The holders of one lock, and the last token.
#[derive(Debug, Default)]
struct Inside {
    readers: AtomicU32,
    writers: AtomicU32,
    token: AtomicU64,
}

impl Inside {
    /// Enters alone.
    async fn alone(&self, guard: &LockGuard) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two inside together");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside readers");
        let token = u64::from(guard.token());
        assert!(self.token.swap(token, Ordering::SeqCst) < token, "tokens rise");
        yield_now().await;
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Enters with at most `most` holders in all.
    async fn together(&self, most: u32) {
        assert!(self.readers.fetch_add(1, Ordering::SeqCst) < most, "too many together");
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        yield_now().await;
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs rounds in many tasks of three clients, and checks that nothing is left.
async fn stress<F>(round: impl Fn(Locks, Arc<Inside>, usize) -> F + Clone + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send,
{
    let store = MemoryBackend::new();
    let clients: Vec<_> = (0..3).map(|_| Locks::new(store.clone())).collect();
    let inside = Arc::new(Inside::default());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, inside, round) =
            (clients[task % clients.len()].clone(), inside.clone(), round.clone());
        tasks.spawn(async move {
            for number in 0..ROUNDS {
                let done =
                    timeout(LONG, round(locks.clone(), inside.clone(), task + TASKS * number))
                        .await;
                assert!(done.is_ok(), "somebody waits who was not woken");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    for client in &clients {
        client.close().await.unwrap();
        let text = format!("{client:?}");
        assert!(text.contains("LaneMap { cells: []"), "{text}");
    }
    assert_eq!(store.names_in_use(), 0);
}

/// Acquires, and gives up after a few polls if `number` says so.
async fn acquire(lock: Lock, number: usize) -> Option<LockGuard> {
    match number % 7 {
        polls @ 0..3 => poll_times(polls + 1, lock.acquire()).await.map(Result::unwrap),
        3 => lock.try_acquire().await.unwrap(),
        _ => Some(lock.acquire().await.unwrap()),
    }
}

async fn leave(guard: LockGuard, number: usize) {
    match number % 3 {
        0 => drop(guard),
        1 => guard.release().await.unwrap(),
        _ => {
            poll_times(1, guard.release()).await;
        }
    }
}

async fn alone(lock: Lock, inside: Arc<Inside>, number: usize) {
    if let Some(guard) = acquire(lock, number).await {
        inside.alone(&guard).await;
        leave(guard, number).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locks() {
    stress(|locks, inside, number| alone(locks.lock("a"), inside, number)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fair_locks() {
    stress(|locks, inside, number| alone(locks.fair_lock("a"), inside, number)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fair_and_other_locks_of_one_name() {
    stress(|locks, inside, number| {
        let lock = if number % 2 == 0 { locks.fair_lock("a") } else { locks.lock("a") };
        alone(lock, inside, number)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_and_writers() {
    stress(|locks, inside, number| async move {
        let lock = locks.rw_lock("a");
        if number % 4 == 0 {
            return alone(lock.write(), inside, number / 4).await;
        }
        if let Some(guard) = acquire(lock.read(), number).await {
            inside.together(u32::MAX).await;
            leave(guard, number).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits() {
    stress(|locks, inside, number| async move {
        if let Some(guard) = acquire(locks.semaphore("a", 3).permits(1), number).await {
            inside.together(3).await;
            leave(guard, number).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guards_of_one_owner() {
    let owners: Vec<_> = (0..4).map(|_| Owner::new()).collect();
    stress(move |locks, _, number| {
        let owner = owners[number % owners.len()].clone();
        async move {
            let lock = locks.lock("a").owned_by(&owner);
            if let Some(outer) = acquire(lock.clone(), number).await {
                let inner = acquire(lock.lease(Duration::from_secs(60)), number / 7).await;
                assert!(outer.hold_count() > u32::from(inner.is_some()));
                yield_now().await;
                if let Some(inner) = inner {
                    leave(inner, number / 2).await;
                }
                leave(outer, number).await;
            }
        }
    })
    .await;
}
