//! The data that a read-write lock protects, for tests of exclusion.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockcore::{LockError, LockGuard, Locks, Owner};
use lockcore_testkit::poll_times;
use tokio::{
    sync::Barrier,
    task::{JoinSet, yield_now},
};

use crate::{critical::finish, waiting::soon};

/// The data. It is outside of the system under test, so that it shows the truth.
#[derive(Default)]
struct Data {
    readers: AtomicU64,
    /// The token of the writer that is inside; 0 for none.
    writer: AtomicU64,
    last_writer: AtomicU64,
    greatest_token: AtomicU64,
    /// Written in two steps.
    version: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Data {
    /// Asserts that there may be other readers but no writer, and that the token is later than the
    /// last one.
    async fn read(&self, guard: &LockGuard, beside: impl Future<Output = ()>) {
        let token = u64::from(guard.token());
        self.readers.fetch_add(1, Ordering::SeqCst);
        let before = self.version.load(Ordering::SeqCst);
        let last = self.last_writer.load(Ordering::SeqCst);
        assert!(token > last, "reader {token} after writer {last}");
        self.greatest_token.fetch_max(token, Ordering::SeqCst);
        self.no_writer(token);
        beside.await;
        yield_now().await;
        self.no_writer(token);
        assert_eq!(self.version.load(Ordering::SeqCst), before, "it was written meanwhile");
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    fn no_writer(&self, reader: u64) {
        let writer = self.writer.load(Ordering::SeqCst);
        assert_eq!(writer, 0, "reader {reader} met writer {writer} inside");
    }

    /// Asserts that the writer is alone, with the greatest token so far.
    async fn write(&self, guard: &LockGuard) {
        let token = u64::from(guard.token());
        let other = self.writer.swap(token, Ordering::SeqCst);
        assert_eq!(other, 0, "writer {token} met writer {other} inside");
        self.no_reader(token);
        let greatest = self.greatest_token.swap(token, Ordering::SeqCst);
        assert!(token > greatest, "writer {token} after {greatest}");
        self.last_writer.store(token, Ordering::SeqCst);
        let before = self.version.load(Ordering::SeqCst);
        yield_now().await;
        self.version.store(before + 1, Ordering::SeqCst);
        self.no_reader(token);
        assert_eq!(self.writer.swap(0, Ordering::SeqCst), token, "another writer came in");
        self.writes.fetch_add(1, Ordering::SeqCst);
    }

    fn no_reader(&self, writer: u64) {
        let readers = self.readers.load(Ordering::SeqCst);
        assert_eq!(readers, 0, "writer {writer} met {readers} readers inside");
    }
}

/// Makes `tasks` tasks of each client read and write, each with its own handles of the lock. At
/// first all are readers at the same time.
pub(crate) async fn read_and_write(clients: &[Locks], tasks: usize, rounds: u64) {
    let (data, mut visits) = (Arc::new(Data::default()), JoinSet::new());
    let all = Arc::new(Barrier::new(clients.len() * tasks));
    for (client, locks) in (0_u64..).zip(clients) {
        for task in 0..tasks as u64 {
            let (locks, data, all) = (locks.clone(), data.clone(), all.clone());
            visits.spawn(async move {
                let guard = locks.rw_lock("contended").read().acquire().await.unwrap();
                let beside = async {
                    soon("all other readers", all.wait()).await;
                };
                data.read(&guard, beside).await;
                guard.release().await.unwrap();
                for round in 0..rounds {
                    visit(&locks, &data, client * 31 + task * 17 + round * 13).await.unwrap();
                }
            });
        }
    }
    let entries = || data.reads.load(Ordering::SeqCst) + data.writes.load(Ordering::SeqCst);
    finish(visits, entries).await;
    let [reads, writes, version] =
        [&data.reads, &data.writes, &data.version].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(version, writes, "updates were lost");
    let tasks = (clients.len() * tasks) as u64;
    // Every task has read at the beginning, and has written and read in each seven rounds.
    let least = tasks * (rounds / 7);
    assert!(writes >= 2 * least && reads >= tasks + 3 * least, "{reads} reads, {writes} writes");
}

/// One visit of a task, in one of the ways in which the lock is used. The way depends only on the
/// task and the round, so that a failure can be repeated.
async fn visit(locks: &Locks, data: &Data, way: u64) -> Result<(), LockError> {
    let lock = locks.rw_lock("contended");
    match way % 7 {
        0 => {
            let guard = lock.write().acquire().await?;
            data.write(&guard).await;
            guard.release().await
        }
        1 => {
            let guard = lock.read().acquire().await?;
            data.read(&guard, async {}).await;
            guard.release().await
        }
        2 => {
            if let Some(guard) = lock.read().try_acquire().await? {
                data.read(&guard, async {}).await;
                guard.release().await?;
            }
            Ok(())
        }
        3 => {
            if let Some(guard) = lock.write().try_acquire().await? {
                data.write(&guard).await;
                guard.release().await?;
            }
            Ok(())
        }
        4 => {
            // A writer that is dropped half-way keeps nobody out.
            drop(poll_times((way / 7 % 5) as usize, lock.write().acquire()).await);
            Ok(())
        }
        5 => {
            // A writer that continues as a reader, with nobody in between.
            let owner = Owner::new();
            let writer = lock.write().owned_by(&owner).acquire().await?;
            data.write(&writer).await;
            let reader = lock.read().owned_by(&owner).acquire().await?;
            data.read(&reader, async {}).await;
            writer.release().await?;
            data.read(&reader, async {}).await;
            reader.release().await
        }
        _ => {
            let guard = lock.read().acquire().await?;
            data.read(&guard, async {}).await;
            drop(guard);
            Ok(())
        }
    }
}
