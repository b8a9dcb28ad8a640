//! Never two inside: four clients of eight tasks on one name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, Locks, Owner};
use lockcore_testkit::{PostgresServer, poll_times};
use tokio::task::JoinSet;

use crate::{
    critical::Critical,
    support::{connect, soon, until},
};

const CLIENTS: u64 = 4;
const TASKS: u64 = 8;
const ROUNDS: u64 = 12;

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

async fn contend(fair: bool) {
    let server = PostgresServer::start();
    let (critical, mut tasks) = (Arc::new(Critical::default()), JoinSet::new());
    for client in 0..CLIENTS {
        let locks = Locks::new(connect(&server).await);
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
    assert!(critical.entries() > 64);
    until("the last release", || async {
        let left = "SELECT id FROM lockcore.hold UNION ALL SELECT id FROM lockcore.place";
        server.query(left).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive() {
    contend(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair() {
    contend(true).await;
}

/// The server is killed and started again, and connections are killed, while eight tasks work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_crashes_of_the_server() {
    let mut server = PostgresServer::start();
    let critical = Arc::new(Critical::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        // A release that a crash takes back leaves the hold to its lease.
        let builder = Locks::builder(connect(&server).await).lease(Duration::from_secs(2));
        let locks = builder.retry_for(Duration::from_secs(15)).build().unwrap();
        for _ in 0..4 {
            let (lock, critical, stop) = (locks.lock("contended"), critical.clone(), stop.clone());
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
    for _ in 0..3 {
        work_goes_on(&critical).await;
        server.restart();
        work_goes_on(&critical).await;
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name LIKE 'lockcore %'";
        server.query(kill).await;
    }
    work_goes_on(&critical).await;
    stop.store(true, Ordering::SeqCst);
    while let Some(task) = soon("the end", tasks.join_next()).await {
        task.unwrap();
    }
}

/// Waits for more visits than there can have been under way.
async fn work_goes_on(critical: &Critical) {
    let before = critical.entries();
    until("more visits", || async { critical.entries() > before + 50 }).await;
}
