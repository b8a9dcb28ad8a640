//! The records of clients at the store: when they are written, their content, and when they end.

use std::sync::Arc;

use lockcore::{BackendErrorKind, ClientDescription, CycleKind, LockError, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use tokio::time::Instant;

use crate::{
    clients::{SECOND, two_clients},
    hooked::{Hooked, Hooks},
    log::Log,
    who_waits::{MS, directory, holds_and_waits, kinds, records, reported},
};

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_or_dropped_removes_its_record() {
    let (store, locks, other) = two_clients();
    let guard = locks.lock("a").acquire().await.unwrap();
    let kept = other.lock("b").acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(records(&store).await.len(), 2);
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(records(&store).await.len(), 2, "kept alive");

    other.close().await.unwrap();
    assert_eq!(records(&store).await.len(), 1, "closed");
    drop((locks, kept));
    tokio::time::sleep(SECOND).await;
    assert_eq!(records(&store).await.len(), 1, "a guard keeps the client");
    drop(guard);
    tokio::time::sleep(MS).await;
    assert_eq!(records(&store).await, [], "dropped");
}

/// Panics when a record is removed.
#[derive(Debug)]
struct NoRemoval;

impl Hooks for NoRemoval {
    fn remove_client(&self) {
        panic!("a panic on purpose");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_when_the_record_is_removed_stays_there() {
    let store = MemoryBackend::new();
    let locks = Locks::new(Hooked::new(store.clone(), Arc::new(NoRemoval)));
    let _guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "released");
    assert_eq!(records(&store).await.len(), 1, "it runs out");
}

#[tokio::test(start_paused = true)]
async fn more_records_than_are_read_are_said_to_be_there() {
    let (store, a, _b) = two_clients();
    for at in 0..10_000 {
        directory(&store).put_client(&at.to_string(), r#"{"v":1}"#, 60 * SECOND).await.unwrap();
    }
    let waits = a.waits().await.unwrap();
    assert_eq!((waits.clients().len(), waits.is_partial()), (10_001, false), "with itself");
    for id in ["one-more", "and-another"] {
        directory(&store).put_client(id, r#"{"v":1}"#, 60 * SECOND).await.unwrap();
    }
    let waits = a.waits().await.unwrap();
    assert_eq!((waits.clients().len(), waits.is_partial()), (10_001, true));
}

#[tokio::test(start_paused = true)]
async fn short_lived_clients_write_nothing_and_idle_ones_stop() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(900 * MS).await;
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    let calls = faults.calls(Op::PutClient) + faults.calls(Op::RemoveClient);
    assert_eq!(calls, 0, "it lived for less than a second");

    let locks = Locks::new(backend);
    let guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(95 * SECOND).await;
    assert_eq!(faults.calls(Op::PutClient), 10, "every third of 30 s");
    guard.release().await.unwrap();
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(faults.calls(Op::PutClient), 10, "idle");
    locks.close().await.unwrap();
    assert_eq!(faults.calls(Op::RemoveClient), 0, "it has run out");
}

#[tokio::test(start_paused = true)]
async fn a_record_follows_the_waits_within_a_tick_even_if_nothing_else_is_left() {
    let (store, a, b) = two_clients();
    let held = a.lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(b.lock("x").acquire());
    tokio::time::sleep(2600 * MS).await;
    let of_b = |records: Vec<(String, String)>| {
        records.into_iter().filter(|(_, text)| text.contains(file!())).count()
    };
    assert_eq!(of_b(records(&store).await), 1, "told within 2.5 s");
    waiting.abort();
    tokio::time::sleep(1100 * MS).await;
    assert_eq!(of_b(records(&store).await), 0, "taken back within a second");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_can_be_chosen_and_turned_off() {
    let store = MemoryBackend::new();
    let described = ClientDescription::new().program("nightly\u{1b}[2J").host("h");
    let shown = Locks::builder(store.clone()).description(described).build().unwrap();
    let hidden = Locks::builder(store.clone()).description(None).build().unwrap();
    let _shown = shown.lock("a").acquire().await.unwrap();
    let _hidden = hidden.lock("b").acquire().await.unwrap();
    let _waiting = tokio::spawn(hidden.lock("a").acquire());
    tokio::time::sleep(5 * SECOND).await;
    let records = records(&store).await;
    assert_eq!(records.len(), 1);
    assert!(records[0].1.contains("nightly\u{fffd}[2J"), "{records:?}");
    assert_eq!(hidden.waits().await.unwrap().waiting().len(), 1, "it knows of itself");
    assert_eq!(shown.waits().await.unwrap().waiting().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_be_written_disturb_nothing() {
    for fault in [
        Fault::Refuse(BackendErrorKind::Auth),
        Fault::LostReply,
        Fault::NeverAnswer,
        Fault::Delay(3 * SECOND),
    ] {
        let backend = Faulty::new(MemoryBackend::new());
        let faults = backend.faults();
        let locks = Locks::new(backend.clone());
        faults.every(Op::PutClient, fault);
        faults.every(Op::RemoveClient, fault);
        let guard = locks.lock("a").acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock("a").acquire());
        tokio::time::sleep(100 * SECOND).await;
        assert!(guard.is_held(), "{fault:?}: it is renewed meanwhile");
        let calls = faults.calls(Op::PutClient);
        assert!((2..=40).contains(&calls), "{fault:?}: {calls} attempts");
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let start = Instant::now();
        locks.close().await.unwrap();
        assert!(start.elapsed() <= SECOND + 10 * MS, "{fault:?}: {:?}", start.elapsed());
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_once_and_the_record_is_written_when_they_are_over() {
    let (log, _log) = Log::start();
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    faults.every(Op::PutClient, Fault::Refuse(BackendErrorKind::Connection));
    let _guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(50 * SECOND).await;
    let line = log.line_with("record of this client");
    assert!(line.contains("DEBUG"), "{line}");
    faults.heal();
    tokio::time::sleep(65 * SECOND).await;
    assert_eq!(records(&store).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_request_of_a_record_is_under_way_and_none_keeps_the_client() {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    faults.every(Op::PutClient, Fault::NeverAnswer);
    let guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(4500 * MS).await;
    assert_eq!(faults.calls(Op::PutClient), 1, "it takes 5 s to give it up");
    drop((guard, locks));
    tokio::time::sleep(SECOND).await;
    assert_eq!(store.names_in_use(), 0, "released by the background");
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(faults.calls(Op::PutClient), 1, "the client is gone");
}

#[tokio::test(start_paused = true)]
async fn the_record_of_ten_thousand_waiters_is_bounded_and_has_those_that_hold_something() {
    let (store, a, b) = two_clients();
    let _held = a.lock("x").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..9_999 {
        waiting.push(tokio::spawn(b.lock("x").acquire()));
    }
    tokio::time::sleep(SECOND).await;
    let _last = holds_and_waits(b.lock("y"), b.lock("x")).await;
    tokio::time::sleep(4 * SECOND).await;
    let records = records(&store).await;
    let largest = records.iter().map(|(_, text)| text.len()).max().unwrap();
    assert!((10_000..=64 * 1024).contains(&largest), "{largest}");
    let waits = a.waits().await.unwrap();
    assert_eq!(waits.waiting().len() as u64 + waits.omitted(), 10_000);
    assert_eq!(waits.waiting()[0].holds().len(), 1, "although it came last");
}

#[tokio::test(start_paused = true)]
async fn records_of_strangers_are_skipped_one_by_one() {
    let (store, a, b) = two_clients();
    let _one = holds_and_waits(a.lock("x"), a.lock("y")).await;
    let _two = holds_and_waits(b.lock("y"), b.lock("x")).await;
    let huge = "x".repeat(70_000);
    let forged = r#"{"v":1,"waits":[{"number":1,"lock":"p","mode":"write","holds":[
        {"lock":"p","mode":"write","wire":"w","renewed":true}]}]}"#;
    for (id, text) in [
        ("garbage", "{"),
        ("later", r#"{"v":99}"#),
        ("huge", huge.as_str()),
        ("not an id", r#"{"v":1}"#),
        ("forged", forged),
        ("friend", r#"{"v":1,"host":"h","unknown":[{}]}"#),
    ] {
        directory(&store).put_client(id, text, 60 * SECOND).await.unwrap();
    }
    let (cycles, _) = reported(&a).await;
    assert_eq!(kinds(&cycles), [CycleKind::Deadlock], "and not the forged one, whose hold is not");
    let waits = a.waits().await.unwrap();
    assert_eq!((waits.unreadable(), waits.clients().len()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_report_of_a_store_that_fails_fails_and_can_be_dropped() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::new(backend);
    faults.next(Op::Clients, Fault::Refuse(BackendErrorKind::Connection));
    assert!(matches!(locks.waits().await, Err(LockError::Backend(_))));
    faults.next(Op::Clients, Fault::NeverAnswer);
    let dropped = tokio::time::timeout(SECOND, locks.waits()).await;
    assert!(dropped.is_err());
    assert!(locks.waits().await.unwrap().waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_client_leaves_its_record_as_a_crash_does() {
    let store = MemoryBackend::new();
    let locks = Locks::new(store.clone());
    let _guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    locks.abandon();
    // Nothing may be done with it now.
    locks.lock("b").acquire().await.unwrap_err();
    let _ = locks.close().await;
    drop(locks);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(records(&store).await.len(), 1, "as after a crash");
    tokio::time::sleep(12 * SECOND).await;
    assert_eq!(records(&store).await, []);
}
