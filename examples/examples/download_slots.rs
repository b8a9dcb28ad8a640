//! A mirror that bears three downloads at a time, for all processes together: the limit holds, and the slots of a
//! process that dies come back.
//!
//! ```text
//! cargo run --example download_slots
//! cargo run --example download_slots -- --redis redis://127.0.0.1:6379
//! ```

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, LockState, Locks, Mode};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const SLOTS: u32 = 3;
const CLIENTS: u32 = 2;
const DOWNLOADS_PER_CLIENT: u32 = 8;
/// How long a slot outlives a process that has died. So short only to keep the example short: the default is 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// What a busy machine may add to it.
const GRACE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("download_slots", download_slots).await
}

async fn download_slots(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "A mirror bears {SLOTS} downloads at a time; the permits are kept {store}"
    ));
    let locks = store.client().await?.lease(LEASE).build()?;
    let slots = locks.semaphore("mirror", SLOTS);

    story.chapter(format_args!(
        "1. {} downloads in {CLIENTS} processes",
        CLIENTS * DOWNLOADS_PER_CLIENT
    ));
    let mirror = Arc::new(Mirror::default());
    let mut downloads = JoinSet::new();
    for _ in 0..CLIENTS {
        let locks = store.client().await?.lease(LEASE).build()?;
        for _ in 0..DOWNLOADS_PER_CLIENT {
            downloads.spawn(download(locks.clone(), mirror.clone()));
        }
    }
    while let Some(downloaded) = downloads.join_next().await {
        downloaded??;
    }
    let most = mirror.most.load(Ordering::Relaxed);
    story.tell("mirror", format_args!("has served all of them, {most} at a time at most"));
    claim(most <= SLOTS, "no more are inside than there are permits")?;

    story.chapter("2. A process dies with two slots in hand");
    tokio::task::spawn_blocking({
        let store = store.clone();
        move || die_with_two_slots(store)
    })
    .await??;
    let died = Instant::now();
    let state = slots.state().await?;
    let left = state.remaining().ok_or("somebody should hold permits")?;
    claim(slots.available().await? == SLOTS - 2, "the dead process still has its permits")?;
    story.tell(
        "operator",
        format_args!("sees 1 slot left, and who has the others: {}", holders(&state)),
    );
    let all = slots.permits(SLOTS).acquire().await?;
    let took = died.elapsed();
    story.tell(
        "worker",
        format_args!("has all {SLOTS} after {} ms: the lease was over", took.as_millis()),
    );
    claim(took <= left + GRACE, "permits come back when the lease of their holder ends")?;
    all.release().await?;
    Ok(locks.close().await?)
}

/// One download, which waits for a slot.
async fn download(locks: Locks, mirror: Arc<Mirror>) -> Result<(), LockError> {
    locks.semaphore("mirror", SLOTS).run(async |_| mirror.serve().await).await
}

/// A process of its own, as far as permits can tell: its client lives on a runtime of its own. When that has gone, nobody renews
/// its permits, and nobody gives them back.
fn die_with_two_slots(store: Store) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = store.client().await?.lease(LEASE).build()?;
        let two = locks.semaphore("mirror", SLOTS).permits(2).acquire().await?;
        std::mem::forget(two); // what is killed drops nothing
        Ok(())
    })
}

/// Who has how many. Permits that are acquired together are one hold.
fn holders(state: &LockState) -> String {
    let holders = state.holders().iter().map(|holder| match holder.mode() {
        Mode::Permit { count, .. } => format!("{} has {count}", holder.owner()),
        mode => format!("{} has it in {mode} mode", holder.owner()),
    });
    holders.collect::<Vec<_>>().join(", ")
}

/// Counts how many it serves at a time.
#[derive(Default)]
struct Mirror {
    now: AtomicU32,
    most: AtomicU32,
}

impl Mirror {
    async fn serve(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(Duration::from_millis(10)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}
