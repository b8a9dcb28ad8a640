//! A configuration of two values that belong together, read by many workers all the time and replaced now and then: readers
//! go in together, a writer alone and soon, and a writer can go on as a reader.
//!
//! ```text
//! cargo run --example config_reload
//! cargo run --example config_reload -- --redis redis://127.0.0.1:6379
//! ```

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, Locks};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    sync::Barrier,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const WORKERS: usize = 4;
/// What nobody should have to wait for here.
const LONG: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("config_reload", config_reload).await
}

async fn config_reload(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "{WORKERS} workers read a configuration; the lock is kept {store}"
    ));
    let config = Arc::new(Config::default());
    let mut workers = JoinSet::new();
    let together = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let locks = store.client().await?.build()?; // each is what another process would be
        workers.spawn(work(locks, config.clone(), together.clone()));
    }
    let admin = store.client().await?.build()?;
    let lock = admin.rw_lock("config");

    story.chapter("1. Readers go in together");
    let reading = lock.read().acquire().await?;
    // Nobody passes the barrier before all of them are inside.
    timeout(LONG, together.wait()).await?;
    story.tell("admin", format_args!("reads, at the same time as {WORKERS} workers"));
    claim(lock.write().try_acquire().await?.is_none(), "readers keep a writer out")?;
    story.tell("admin", "could not write now: `try_acquire` of the write lock says `None`");
    reading.release().await?;

    story.chapter("2. A writer gets in, although there is always a reader");
    let began = Instant::now();
    let writing = lock.write().acquire_timeout(LONG).await?;
    let waited = began.elapsed();
    story.tell(
        "admin",
        format_args!("writes, after {} ms: new readers wait for it", waited.as_millis()),
    );
    config.replace(2).await;

    story.chapter("3. The writer goes on as a reader");
    // Whoever writes may read as well; a reader who asks to write is refused with `LockError::Upgrade`.
    let reading = lock.read().owned_by(writing.owner()).acquire().await?;
    writing.release().await?;
    story.tell("admin", "lets the other readers in, but no other writer");
    claim(lock.write().try_acquire().await?.is_none(), "no writer comes in between")?;
    let replaced = config.read().await;
    claim(replaced == Some(2), "the writer reads what it has written")?;
    story.tell("admin", "has checked what it wrote; nobody can have changed it");
    reading.release().await?;

    config.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    let (reads, torn) = (config.reads.load(Ordering::Relaxed), config.torn.load(Ordering::Relaxed));
    story.line(format_args!("\n{reads} reads, {torn} of them half old and half new"));
    claim(torn == 0, "nobody reads a configuration that is being replaced")?;
    Ok(admin.close().await?)
}

/// A worker reads the configuration over and over, until it is stopped.
async fn work(locks: Locks, config: Arc<Config>, together: Arc<Barrier>) -> Result<(), LockError> {
    let lock = locks.rw_lock("config").read();
    lock.run(async |_| together.wait().await).await?;
    while !config.stop.load(Ordering::Relaxed) {
        let read = lock.run(async |_| config.read().await).await?;
        config.reads.fetch_add(1, Ordering::Relaxed);
        config.torn.fetch_add(u32::from(read.is_none()), Ordering::Relaxed);
    }
    locks.close().await
}

/// Two values that have to be equal, as if they were in a database: each access by itself is atomic, both are not.
#[derive(Default)]
struct Config {
    values: [AtomicU32; 2],
    stop: AtomicBool,
    reads: AtomicU32,
    torn: AtomicU32,
}

impl Config {
    /// What both values are, if they are the same.
    async fn read(&self) -> Option<u32> {
        let one = self.values[0].load(Ordering::Relaxed);
        sleep(Duration::from_millis(2)).await;
        (self.values[1].load(Ordering::Relaxed) == one).then_some(one)
    }

    async fn replace(&self, value: u32) {
        self.values[0].store(value, Ordering::Relaxed);
        sleep(Duration::from_millis(20)).await;
        self.values[1].store(value, Ordering::Relaxed);
    }
}
