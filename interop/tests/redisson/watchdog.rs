//! A hold that lasts longer than its first lease still excludes the other side.

use std::time::Duration;

use lockcore::{LockError, Locks};
use lockcore_interop::{JavaThread, Kind, Lease};
use tokio::task::JoinSet;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, alone, holders, soon},
};

/// How long a waiter is refused: longer than two leases.
const WAIT: Duration = Duration::from_secs(7);

/// The lease of holds without Java's watchdog.
const LONGER: Duration = Duration::from_secs(9);

pub(crate) async fn java_awaits_rust(section: Section) {
    let both = Both::start().await;
    let other = both.servers.locks(LEASE).await;
    let mut pairs = JoinSet::new();
    for (number, (holder, waiter)) in (0..).zip(section.pairs()) {
        let (name, thread) = (format!("renewed:{number}"), both.redisson.thread_for(*waiter));
        pairs.spawn(java_stays_outside(
            name,
            *holder,
            *waiter,
            thread,
            [both.locks.clone(), other.clone()],
        ));
    }
    finish(pairs).await;
    other.close().await.unwrap();
    both.close().await;
    let measured = format!(
        "`{}` of {} ms refused at a lease of {} ms; the hold is the same",
        if section.is_semaphore() { "tryAcquire" } else { "tryLock" },
        WAIT.as_millis(),
        LEASE.as_millis()
    );
    record(section, Promise::JavaAwaitsRust, measured).await;
}

async fn java_stays_outside(
    name: String,
    holder: Kind,
    waiter: Kind,
    thread: JavaThread,
    [ours, other]: [Locks; 2],
) {
    let lock = holder.ours(&ours, &name);
    let guard = lock.acquire().await.unwrap();
    let entered =
        soon("Java's patience", thread.try_acquire(&name, WAIT, Lease::Watchdog)).await.unwrap();
    assert!(!entered && guard.is_held(), "renewed past two leases");
    let another = waiter.ours(&other, &name).try_acquire().await.unwrap();
    assert!(another.is_none(), "another client of ours would take what is over");
    assert_eq!(holders(&lock).await, alone(&guard));
    guard.release().await.unwrap();
    assert!(thread.try_acquire(&name, WAIT, Lease::Watchdog).await.unwrap());
    thread.release(&name).await.unwrap();
}

pub(crate) async fn rust_awaits_java(section: Section) {
    let both = Both::start().await;
    let mut pairs = JoinSet::new();
    for (number, (holder, waiter)) in (0..).zip(section.pairs()) {
        let (name, thread) = (format!("renewed:{number}"), both.redisson.thread_for(*holder));
        pairs.spawn(rust_stays_outside(name, *holder, *waiter, thread, both.locks.clone()));
    }
    finish(pairs).await;
    both.close().await;
    let lease = match section {
        Section::Semaphore => format!("Java's permit had a lease of {} ms", LONGER.as_millis()),
        Section::PlainSemaphore => "Java's permit has no lease".to_owned(),
        _ => format!("Java's watchdog renewed a lease of {} ms", LEASE.as_millis()),
    };
    let measured = format!("`acquire_timeout` of {} ms refused; {lease}", WAIT.as_millis());
    record(section, Promise::RustAwaitsJava, measured).await;
}

async fn rust_stays_outside(
    name: String,
    holder: Kind,
    waiter: Kind,
    thread: JavaThread,
    ours: Locks,
) {
    thread.prepare(&name).await.unwrap();
    let is_lock = holder.limit().is_none();
    let lease = if is_lock { Lease::Watchdog } else { Lease::Fixed(LONGER) };
    let owner = thread.acquire(&name, lease).await.unwrap();
    let lock = waiter.ours(&ours, &name);
    let entered = soon("our patience", lock.acquire_timeout(WAIT)).await;
    assert!(matches!(entered, Err(LockError::Timeout { .. })), "{entered:?}");
    if is_lock {
        assert!(thread.is_held(&name).await.unwrap());
        assert_eq!(holders(&lock).await, [(owner, 1)]);
    }
    thread.release(&name).await.unwrap();
    lock.acquire_timeout(WAIT).await.unwrap().release().await.unwrap();
}

async fn finish(mut pairs: JoinSet<()>) {
    while let Some(finished) = pairs.join_next().await {
        finished.unwrap();
    }
}
