//! First come, first served, whichever side it is.

use std::sync::{Arc, Mutex};

use lockcore::Lock;
use lockcore_interop::{JavaThread, Kind, Lease};
use tokio::task::JoinSet;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, queued, soon},
};

const WAITERS: u32 = 6;
const ROUNDS: u32 = 10;

/// The entries, in order.
type Entries = Arc<Mutex<Vec<u32>>>;

#[tokio::test]
async fn both_sides_enter_in_the_order_in_which_they_asked() {
    let both = Both::start().await;
    // Two clients on each side, so that neither side orders its own waiters.
    let (other_java, other_rust) =
        (both.servers.redisson(LEASE).await, both.servers.locks(LEASE).await);
    for round in 0..ROUNDS {
        let name = format!("queue:{round}");
        let holder = both.redisson.thread_for(Kind::Fair);
        let mut guard = None;
        if round % 2 == 0 {
            holder.acquire(&name, Lease::Watchdog).await.unwrap();
        } else {
            guard = Some(both.locks.fair_lock(&name).acquire().await.unwrap());
        }

        let entries = Entries::default();
        let mut waiting = JoinSet::new();
        for number in 0..WAITERS {
            let entries = entries.clone();
            // Java begins in two rounds, Rust in the next two: each side is the first to wait
            // behind every holder.
            if (number + round / 2) % 2 == 0 {
                let client = if number < 2 { &both.redisson } else { &other_java };
                waiting.spawn(of_java(
                    client.thread_for(Kind::Fair),
                    name.clone(),
                    number,
                    entries,
                ));
            } else {
                let client = if number < 3 { &both.locks } else { &other_rust };
                waiting.spawn(of_rust(client.fair_lock(&name), number, entries));
            }
            queued(&both.servers, &name, number + 1).await;
        }
        match guard {
            Some(guard) => guard.release().await.unwrap(),
            None => holder.release(&name).await.unwrap(),
        }
        while let Some(entered) = soon("an entry", waiting.join_next()).await {
            entered.unwrap();
        }
        let entered = entries.lock().unwrap().clone();
        assert_eq!(entered, (0..WAITERS).collect::<Vec<_>>(), "round {round}");
    }
    other_rust.close().await.unwrap();
    other_java.close().await.unwrap();
    both.close().await;
    let measured = format!(
        "{WAITERS} waiters, Rust and Java in turn, from two clients each, behind a holder of either side: in exact order, \
         {ROUNDS} times of {ROUNDS}"
    );
    record(Section::Fair, Promise::Order, measured).await;
}

/// Two of each three waiters are lockcore's: the release of the first grants the lock to the
/// second, which makes no request. Java is woken, and asks.
#[tokio::test]
async fn those_who_are_let_in_by_a_release_keep_the_order_with_java() {
    let both = Both::start().await;
    let other_rust = both.servers.locks(LEASE).await;
    for round in 0..ROUNDS {
        let name = format!("queue:{round}");
        let guard = both.locks.fair_lock(&name).acquire().await.unwrap();
        let (entries, mut waiting) = (Entries::default(), JoinSet::new());
        for number in 0..WAITERS {
            let entries = entries.clone();
            match (number + round) % 3 {
                0 => {
                    let thread = both.redisson.thread_for(Kind::Fair);
                    waiting.spawn(of_java(thread, name.clone(), number, entries));
                }
                turn => {
                    let client = if turn == 1 { &both.locks } else { &other_rust };
                    waiting.spawn(of_rust(client.fair_lock(&name), number, entries));
                }
            }
            queued(&both.servers, &name, number + 1).await;
        }
        guard.release().await.unwrap();
        while let Some(entered) = soon("an entry", waiting.join_next()).await {
            entered.unwrap();
        }
        let entered = entries.lock().unwrap().clone();
        assert_eq!(entered, (0..WAITERS).collect::<Vec<_>>(), "round {round}");
    }
    other_rust.close().await.unwrap();
    both.close().await;
}

async fn of_java(thread: JavaThread, name: String, number: u32, entries: Entries) {
    thread.acquire(&name, Lease::Watchdog).await.unwrap();
    entries.lock().unwrap().push(number);
    thread.release(&name).await.unwrap();
}

async fn of_rust(lock: Lock, number: u32, entries: Entries) {
    let guard = lock.acquire().await.unwrap();
    entries.lock().unwrap().push(number);
    guard.release().await.unwrap();
}
