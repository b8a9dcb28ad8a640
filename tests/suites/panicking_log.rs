//! Logs that panic, and code that runs when a span is closed: both are user code.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use lockcore::{Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};
use tracing_subscriber::layer::SubscriberExt;

use crate::clients::SECOND;

/// A log that panics at an event with this message.
struct Panicking(&'static str);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Panicking {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                text = format!("{value:?}");
            }
        });
        assert_ne!(text, self.0, "the log panics on purpose");
    }
}

fn log_that_panics_at(part: &'static str) -> tracing::subscriber::DefaultGuard {
    let subscriber = tracing_subscriber::registry().with(Panicking(part));
    tracing::subscriber::set_default(subscriber)
}

async fn released_with(part: &'static str, is_dropped: bool) {
    let store = MemoryBackend::new();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
    let guard = locks.lock("a").acquire().await.unwrap();
    {
        let _log = log_that_panics_at(part);
        if is_dropped {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
        } else {
            let mut released = Box::pin(guard.release());
            let _ = std::future::poll_fn(|context| {
                let polled = catch_unwind(AssertUnwindSafe(|| released.as_mut().poll(context)));
                match polled {
                    Ok(polled) => polled.map(|_| ()),
                    Err(_) => std::task::Poll::Ready(()),
                }
            })
            .await;
        }
    }
    let free = other.lock("a").acquire_timeout(SECOND).await;
    assert!(free.is_ok(), "dropped: {is_dropped}: {free:?}");
    locks.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_fine_keeps_no_release() {
    released_with("", true).await;
    released_with("", false).await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_panics_keeps_no_dropped_guard() {
    released_with("released", true).await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_panics_keeps_no_release() {
    released_with("released", false).await;
}

/// The next acquire in the same client, after such a panic.
#[tokio::test(start_paused = true)]
async fn a_log_that_panicked_once_stops_no_later_acquisition() {
    let locks = Locks::new(MemoryBackend::new());
    let guard = locks.lock("a").acquire().await.unwrap();
    {
        let _log = log_that_panics_at("released");
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
    }
    let again = locks.lock("a").acquire_timeout(3 * SECOND).await;
    assert!(again.is_ok(), "{again:?}");
}

async fn lost_and_undone(part: &'static str) {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let (locks, other) = (Locks::new(backend), Locks::new(store));
    let _lost = locks.semaphore("s", 3).permits(1).lease(3 * SECOND).acquire().await.unwrap();
    faults.next(Op::Acquire, Fault::NeverReply);
    let mut unpolled = Box::pin(locks.semaphore("s", 3).permits(1).lease(900 * SECOND).acquire());
    assert!(poll_times(1, &mut unpolled).await.is_none());
    let _log = log_that_panics_at(part);
    // As after a suspension of the host: both are due in one check.
    tokio::time::advance(20 * SECOND).await;
    tokio::time::sleep(SECOND).await;
    let all = other.semaphore("s", 3).permits(3).acquire_timeout(60 * SECOND).await;
    assert!(all.is_ok(), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_fine_keeps_no_undo() {
    lost_and_undone("").await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_panics_keeps_no_undo() {
    lost_and_undone("hold lost").await;
}

type Probe = Arc<dyn Fn() + Send + Sync>;

/// Uses the lane in another thread while a span is closed.
#[derive(Clone, Default)]
struct OnClose {
    probe: Arc<Mutex<Option<Probe>>>,
    closed: Arc<AtomicUsize>,
    is_stuck: Arc<AtomicBool>,
}

impl<S> tracing_subscriber::Layer<S> for OnClose
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_close(&self, _: tracing::span::Id, _: tracing_subscriber::layer::Context<'_, S>) {
        let Some(probe) = self.probe.lock().unwrap().clone() else { return };
        self.closed.fetch_add(1, Ordering::SeqCst);
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            probe();
            let _ = done.send(());
        });
        if is_done.recv_timeout(Duration::from_secs(1)).is_err() {
            self.is_stuck.store(true, Ordering::SeqCst);
        }
    }
}

async fn closes_spans(what: &str) {
    let layer = OnClose::default();
    let subscriber = tracing_subscriber::registry().with(layer.clone());
    let _log = tracing::subscriber::set_default(subscriber);
    let locks = Locks::new(MemoryBackend::new());
    let owner = Owner::new();
    let lock = locks.lock("a").owned_by(&owner);
    let guard = lock.acquire().await.unwrap();
    let probed = (locks.lock("a"), owner.clone());
    let probe: Probe = Arc::new(move || {
        let _ = probed.0.hold_count_of(&probed.1);
    });
    match what {
        "released" => {
            *layer.probe.lock().unwrap() = Some(probe);
            guard.release().await.unwrap();
        }
        "gone" => {
            assert!(locks.lock("a").force_release().await.unwrap());
            *layer.probe.lock().unwrap() = Some(probe);
            drop(guard);
        }
        "closed" => {
            locks.close().await.unwrap();
            *layer.probe.lock().unwrap() = Some(probe);
            drop(guard);
        }
        _ => {
            let longer = locks.lock("a").owned_by(&owner).lease(100 * SECOND);
            *layer.probe.lock().unwrap() = Some(probe);
            let _nested = longer.acquire().await.unwrap();
            *layer.probe.lock().unwrap() = None;
            drop(guard);
        }
    }
    assert!(layer.closed.load(Ordering::SeqCst) > 0, "{what}: a span was closed");
    assert!(!layer.is_stuck.load(Ordering::SeqCst), "{what}: the lane was locked meanwhile");
}

#[tokio::test]
async fn a_span_closes_outside_of_the_lock_when_released() {
    closes_spans("released").await;
}

#[tokio::test]
async fn a_span_closes_outside_of_the_lock_when_gone() {
    closes_spans("gone").await;
}

#[tokio::test]
async fn a_span_closes_outside_of_the_lock_when_closed() {
    closes_spans("closed").await;
}

#[tokio::test]
async fn a_span_closes_outside_of_the_lock_when_grown() {
    closes_spans("grown").await;
}
