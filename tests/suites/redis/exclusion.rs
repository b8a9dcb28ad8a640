//! Never two inside, whatever happens around: four clients of sixteen tasks on one name, on both backends.

use std::{sync::Arc, time::Duration};

use lockcore::{LockError, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{RedisServer, poll_times};
use tokio::task::JoinSet;

use crate::{
    critical::Critical,
    support::{assert_nothing_left, connect, soon},
};

const CLIENTS: usize = 4;
const TASKS: usize = 16;
const ROUNDS: u64 = 12;

/// One visit of a task, in one of the ways in which locks are used. The way is a function of who and when, so that a
/// failure can be repeated.
async fn visit(locks: &Locks, critical: &Critical, way: u64) -> Result<(), LockError> {
    let lock = locks.lock("contended");
    match way % 7 {
        0 => {
            let guard = lock.acquire().await?;
            critical.visit(&guard).await;
            guard.release().await
        }
        1 => {
            if let Some(guard) = lock.try_acquire().await? {
                critical.visit(&guard).await;
                guard.release().await?;
            }
            Ok(())
        }
        2 => match lock.acquire_timeout(Duration::from_millis(way % 40)).await {
            Ok(guard) => {
                critical.visit(&guard).await;
                guard.release().await
            }
            Err(LockError::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        },
        3 => {
            let lock = lock.owned_by(&Owner::new());
            let outer = lock.acquire().await?;
            let inner = lock.acquire().await?;
            critical.visit(&inner).await;
            outer.release().await?;
            inner.release().await
        }
        4 => {
            // Given up at some point on the way in.
            drop(poll_times((way / 7 % 5) as usize, lock.acquire()).await);
            Ok(())
        }
        5 => {
            let guard = lock.acquire().await?;
            critical.visit(&guard).await;
            drop(guard);
            Ok(())
        }
        _ => lock.run(async |guard| critical.visit(guard).await).await,
    }
}

/// Returns how often somebody was inside.
async fn contend(clients: Vec<Locks>) -> u64 {
    let critical = Arc::new(Critical::default());
    let mut tasks = JoinSet::new();
    for (client, locks) in clients.iter().enumerate() {
        for task in 0..TASKS {
            let (locks, critical) = (locks.clone(), critical.clone());
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let way = (client as u64 * 31 + task as u64 * 17 + round * 13) % 997;
                    visit(&locks, &critical, way).await.unwrap();
                }
            });
        }
    }
    while let Some(task) = soon("every visit", tasks.join_next()).await {
        task.unwrap();
    }
    critical.entries()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let store = MemoryBackend::new();
    let clients: Vec<Locks> = (0..CLIENTS).map(|_| Locks::new(store.clone())).collect();
    let metrics = tokio::runtime::Handle::current().metrics();
    let entries = contend(clients.clone()).await;
    assert!(entries > 64, "{entries}");
    crate::support::until("the last release", || async { store.names_in_use() == 0 }).await;
    drop(clients);
    crate::support::until("the tasks to end", || async { metrics.num_alive_tasks() == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locks::new(connect(&server).await));
    }
    let entries = contend(clients).await;
    assert!(entries > 64, "{entries}");
    assert_nothing_left(&server).await;
}
