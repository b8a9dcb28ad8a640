//! Never two inside: four clients of eight tasks on one name, with and without faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, Locks, Owner};
use lockcore_testkit::{EtcdCluster, poll_times};
use tokio::task::JoinSet;

use crate::{
    critical::Critical,
    support::{connect, keys, soon, until},
};

const CLIENTS: u64 = 4;
const TASKS: u64 = 8;
const ROUNDS: u64 = 4;

/// One visit, in one of the ways in which locks are used.
async fn visit(locks: &Locks, fair: bool, critical: &Critical, way: u64) -> Result<(), LockError> {
    let lock = if fair { locks.fair_lock("contended") } else { locks.lock("contended") };
    match way % 5 {
        0 => {
            let guard = lock.acquire().await?;
            critical.visit(&guard).await;
            guard.release().await
        }
        1 => match lock.acquire_timeout(Duration::from_millis(way % 40)).await {
            Ok(guard) => {
                critical.visit(&guard).await;
                guard.release().await
            }
            Err(LockError::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        },
        2 => {
            let lock = lock.owned_by(&Owner::new());
            let outer = lock.acquire().await?;
            let inner = lock.acquire().await?;
            critical.visit(&inner).await;
            outer.release().await?;
            inner.release().await
        }
        3 => {
            // Given up at some point on the way in.
            drop(poll_times((way / 5 % 5) as usize, lock.acquire()).await);
            Ok(())
        }
        _ => lock.run(async |guard| critical.visit(guard).await).await,
    }
}

async fn contend(fair: bool, members: usize) {
    let cluster = EtcdCluster::start(members);
    let (critical, mut tasks) = (Arc::new(Critical::default()), JoinSet::new());
    for client in 0..CLIENTS {
        let locks = Locks::new(connect(&cluster).await);
        for task in 0..TASKS {
            let (locks, critical) = (locks.clone(), critical.clone());
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let way = (client * 31 + task * 17 + round * 13) % 997;
                    visit(&locks, fair, &critical, way).await.unwrap();
                }
            });
        }
    }
    while let Some(task) = soon("every visit", tasks.join_next()).await {
        task.unwrap();
    }
    assert!(critical.entries() > CLIENTS * TASKS);
    let client = cluster.client().await;
    until("the last release", async || keys(&client).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive() {
    contend(false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_on_three_members() {
    contend(false, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair() {
    contend(true, 1).await;
}

/// Tasks of two clients that visit the section until they are stopped.
struct Load {
    critical: Arc<Critical>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn on(cluster: &EtcdCluster) -> Self {
        let (critical, stop) = (Arc::new(Critical::default()), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            // A release that fails leaves the hold to its lease.
            let builder = Locks::builder(connect(cluster).await).lease(Duration::from_secs(4));
            let locks = builder.retry_for(Duration::from_secs(18)).build().unwrap();
            for _ in 0..4 {
                let (lock, critical, stop) =
                    (locks.lock("contended"), critical.clone(), stop.clone());
                tasks.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = lock.acquire().await.unwrap();
                        critical.visit(&guard).await;
                        // Its failure is told, and the lease ends.
                        let _ = guard.release().await;
                    }
                });
            }
        }
        Self { critical, stop, tasks }
    }

    /// Waits for more visits than there can have been under way.
    async fn goes_on(&self) {
        let before = self.critical.entries();
        until("more visits", async || self.critical.entries() > before + 50).await;
    }

    async fn ends(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(task) = soon("the end", self.tasks.join_next()).await {
            task.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_leaders_are_killed() {
    let mut cluster = EtcdCluster::start(3);
    let load = Load::on(&cluster).await;
    for _ in 0..4 {
        load.goes_on().await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        load.goes_on().await;
        cluster.restart(leader);
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_leaders_are_frozen_and_come_back() {
    let mut cluster = EtcdCluster::start(3);
    let load = Load::on(&cluster).await;
    for _ in 0..3 {
        load.goes_on().await;
        let leader = cluster.leader().await;
        cluster.freeze(leader);
        load.goes_on().await;
        // What it was about to do when it was stopped comes now.
        cluster.thaw(leader);
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_leader_moves() {
    let cluster = EtcdCluster::start(3);
    let load = Load::on(&cluster).await;
    for round in 0..6 {
        load.goes_on().await;
        cluster.move_leader(round % cluster.len()).await;
    }
    load.goes_on().await;
    load.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_members_are_killed_and_started_again() {
    let mut cluster = EtcdCluster::start(3);
    let load = Load::on(&cluster).await;
    for _ in 0..2 {
        load.goes_on().await;
        cluster.restart_all(&[0, 1, 2]);
    }
    load.goes_on().await;
    load.ends().await;
}
