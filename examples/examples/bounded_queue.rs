//! A queue with room for two, filled and emptied by several processes: whoever finds it full or empty gives the lock up and
//! waits until that has changed, without asking again and again.
//!
//! ```text
//! cargo run --example bounded_queue
//! cargo run --example bounded_queue -- --redis redis://127.0.0.1:6379
//! ```
//!
//! It shows conditions, and is no advice to build queues with locks: where there is a message broker, use that.

use std::{
    collections::VecDeque,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockcore::{Condition, Lock, LockError, Locks, WaitOutcome};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::task::JoinSet;

const ROOM: usize = 2;
const PRODUCERS: u32 = 2;
const CONSUMERS: u32 = 2;
const ITEMS_PER_PRODUCER: u32 = 20;
const PATIENCE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("bounded_queue", bounded_queue).await
}

async fn bounded_queue(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "{PRODUCERS} producers and {CONSUMERS} consumers share a queue with room for {ROOM}; its lock is kept {store}"
    ));
    let items = Arc::new(Items::default());
    let queue =
        async || Ok::<_, Failure>(Queue::new(store.client().await?.build()?, items.clone()));

    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let queue = queue().await?;
        producers.spawn(async move {
            for item in 0..ITEMS_PER_PRODUCER {
                queue.push(producer * ITEMS_PER_PRODUCER + item).await?;
            }
            queue.locks.close().await
        });
    }
    let mut consumers = JoinSet::new();
    for _ in 0..CONSUMERS {
        let queue = queue().await?;
        consumers.spawn(async move {
            let mut taken = Vec::new();
            while let Some(item) = queue.pop(PATIENCE).await? {
                taken.push(item);
            }
            queue.locks.close().await?;
            Ok::<_, LockError>(taken)
        });
    }

    story.chapter("They work");
    while let Some(produced) = producers.join_next().await {
        produced??;
    }
    story.tell("producers", format_args!("have put {} items in", PRODUCERS * ITEMS_PER_PRODUCER));
    let mut taken = Vec::new();
    while let Some(consumed) = consumers.join_next().await {
        let consumed = consumed??;
        story.tell(
            "consumer",
            format_args!("took {} out, then none for {PATIENCE:?}", consumed.len()),
        );
        taken.extend(consumed);
    }
    taken.sort_unstable();
    claim(taken.into_iter().eq(0..PRODUCERS * ITEMS_PER_PRODUCER), "every item is taken out once")?;
    let most = items.lock().most;
    story.line(format_args!("\nat most {most} items were in the queue"));
    claim(most <= ROOM, "there are never more in it than there is room for")
}

/// The queue, as one process sees it.
struct Queue {
    locks: Locks,
    lock: Lock,
    not_full: Condition,
    not_empty: Condition,
    items: Arc<Items>,
}

impl Queue {
    fn new(locks: Locks, items: Arc<Items>) -> Self {
        let lock = locks.lock("queue");
        let (not_full, not_empty) = (lock.condition("not full"), lock.condition("not empty"));
        Self { locks, lock, not_full, not_empty, items }
    }

    /// Puts an item in, and waits until there is room for it.
    async fn push(&self, item: u32) -> Result<(), LockError> {
        let mut guard = self.lock.acquire().await?;
        // In a loop: between the notification and the return somebody else may have had the lock.
        while self.items.is_full() {
            guard = self.not_full.wait(guard).await?;
        }
        self.items.push(item);
        self.not_empty.notify_one(&guard).await?;
        guard.release().await
    }

    /// Takes an item out, and waits for one until there has been none for so long.
    async fn pop(&self, patience: Duration) -> Result<Option<u32>, LockError> {
        let mut guard = self.lock.acquire().await?;
        let mut outcome = WaitOutcome::Notified;
        let item = loop {
            match self.items.pop() {
                None if outcome == WaitOutcome::Notified => {
                    (guard, outcome) = self.not_empty.wait_timeout(guard, patience).await?;
                }
                item => break item,
            }
        };
        if item.is_some() {
            self.not_full.notify_one(&guard).await?;
        }
        guard.release().await?;
        Ok(item)
    }
}

/// What is in the queue, as if it were in a database.
#[derive(Default)]
struct Items(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    items: VecDeque<u32>,
    most: usize,
}

impl Items {
    fn lock(&self) -> std::sync::MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        self.lock().items.len() >= ROOM
    }

    fn push(&self, item: u32) {
        let mut contents = self.lock();
        contents.items.push_back(item);
        contents.most = contents.most.max(contents.items.len());
    }

    fn pop(&self) -> Option<u32> {
        self.lock().items.pop_front()
    }
}
