//! Recorders that panic, or call lockcore: both are user code.

use std::{
    cell::Cell,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockcore::{LockGuard, Locks, Owner};
use lockcore_memory::MemoryBackend;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::runtime::Builder;

use crate::figures::Figures;

const SECOND: Duration = Duration::from_secs(1);

/// Calls `then` for everything that is recorded, with the name of the metric.
pub(crate) struct Hostile<F> {
    pub(crate) then: Arc<F>,
    /// `true` to call it also when a metric is registered.
    pub(crate) registers: bool,
}

impl<F: Fn(&str) + Send + Sync> Hostile<F> {
    fn registered(&self, key: &Key) -> Arc<Handle<F>> {
        if self.registers {
            (self.then)(key.name());
        }
        Arc::new(Handle(self.then.clone(), key.name().to_owned()))
    }
}

struct Handle<F>(Arc<F>, String);

impl<F: Fn(&str)> CounterFn for Handle<F> {
    fn increment(&self, _: u64) {
        (self.0)(&self.1);
    }

    fn absolute(&self, _: u64) {
        (self.0)(&self.1);
    }
}

impl<F: Fn(&str)> GaugeFn for Handle<F> {
    fn increment(&self, _: f64) {
        (self.0)(&self.1);
    }

    fn decrement(&self, _: f64) {
        (self.0)(&self.1);
    }

    fn set(&self, _: f64) {
        (self.0)(&self.1);
    }
}

impl<F: Fn(&str)> HistogramFn for Handle<F> {
    fn record(&self, _: f64) {
        (self.0)(&self.1);
    }
}

impl<F: Fn(&str) + Send + Sync + 'static> Recorder for Hostile<F> {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.registered(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.registered(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.registered(key))
    }
}

/// Contention, nesting, a timeout, a drop, a renewal, a loss and a close.
async fn all_kinds_of_use(client: &OnceLock<Locks>) {
    let store = MemoryBackend::new();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
    client.get_or_init(|| locks.clone());
    let lock = locks.lock("a").owned_by(&Owner::new());
    let guard = lock.acquire().await.unwrap();
    drop(lock.acquire().await.unwrap());
    let next = tokio::spawn(locks.lock("a").acquire());
    let dropped = tokio::spawn(locks.lock("a").acquire());
    other.lock("a").acquire_timeout(SECOND).await.unwrap_err();
    dropped.abort();
    tokio::time::sleep(SECOND * 11).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    other.lock("a").force_release().await.unwrap();
    next.lost().await;
    drop(next);
    locks.lock("b").acquire().await.unwrap().release().await.unwrap();
    tokio::time::sleep(SECOND * 2).await;
    let closed = locks.lock("a").acquire().await.unwrap();
    locks.close().await.unwrap();
    drop(closed);
    other.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// Runs with `then`, which is given the client once there is one.
fn survive(then: impl Fn(Option<&Locks>) + Send + Sync + 'static, registers: bool) {
    let client = Arc::new(OnceLock::new());
    let then = {
        let client = client.clone();
        move |_: &str| then(client.get())
    };
    let recorder = Hostile { then: Arc::new(then), registers };
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let used = async { tokio::time::timeout(SECOND * 60, all_kinds_of_use(&client)).await };
    metrics::with_local_recorder(&recorder, || runtime.block_on(used)).unwrap();
}

#[test]
fn a_recorder_that_panics_hurts_nothing() {
    let told = Arc::new(AtomicUsize::new(0));
    let then = {
        let told = told.clone();
        move |_: Option<&Locks>| {
            told.fetch_add(1, Ordering::Relaxed);
            panic!("the recorder panics on purpose");
        }
    };
    survive(then.clone(), false);
    assert!(told.load(Ordering::Relaxed) > 20, "{told:?}");
    survive(then, true);
}

#[test]
fn a_recorder_may_use_locks_of_the_client_that_it_records() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    // It would wait forever for a locked lane.
    let then = move |locks: Option<&Locks>| {
        if let Some(locks) = locks {
            assert_eq!(locks.lock("a").hold_count_of(&Owner::new()), 0);
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    survive(then, false);
    assert!(told.load(Ordering::Relaxed) > 20, "{told:?}");
}

#[test]
fn a_recorder_may_use_a_lock_while_it_registers() {
    thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }
    let deepest = Arc::new(AtomicUsize::new(0));
    let most = deepest.clone();
    let then = move |locks: Option<&Locks>| {
        let Some(locks) = locks else { return };
        let depth = DEPTH.get() + 1;
        most.fetch_max(depth, Ordering::Relaxed);
        assert!(depth < 20, "it registers within its registration");
        DEPTH.set(depth);
        let acquiring = pin!(locks.lock("of the recorder").try_acquire());
        let _ = acquiring.poll(&mut Context::from_waker(Waker::noop()));
        DEPTH.set(depth - 1);
    };
    survive(then, true);
    assert!((1..10).contains(&deepest.load(Ordering::Relaxed)), "{deepest:?}");
}

/// Takes a lock while it registers a mode, and keeps it. Its figures are those inside.
struct Leading {
    figures: Figures,
    locks: OnceLock<Locks>,
    kept: Mutex<Option<LockGuard>>,
}

impl Recorder for Leading {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, of: &Metadata<'_>) -> Counter {
        self.figures.register_counter(key, of)
    }

    fn register_gauge(&self, key: &Key, of: &Metadata<'_>) -> Gauge {
        self.figures.register_gauge(key, of)
    }

    fn register_histogram(&self, key: &Key, of: &Metadata<'_>) -> Histogram {
        if let Some(locks) = self.locks.get() {
            let acquiring = pin!(locks.lock("of the recorder").acquire());
            let acquired = acquiring.poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(guard) = acquired {
                *self.kept.lock().unwrap() = Some(guard.unwrap());
            }
        }
        self.figures.register_histogram(key, of)
    }
}

#[test]
fn what_a_recorder_does_while_it_registers_is_told_as_well() {
    let figures = Figures::default();
    let (locks, kept) = Default::default();
    let leading = Leading { figures: figures.clone(), locks, kept };
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let using = async {
        let locks = Locks::new(MemoryBackend::new());
        leading.locks.get_or_init(|| locks.clone());
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        figures.settle().await;
        assert_eq!(figures.sum("lockcore_held{mode=exclusive}"), 1.0);
        drop(leading.kept.lock().unwrap().take());
        figures.settle().await;
        figures.assert_at_rest("the recorder has given its lock back");
    };
    metrics::with_local_recorder(&leading, || runtime.block_on(using));
}
