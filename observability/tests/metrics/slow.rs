//! Recorders that take their time.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use lockcore::{LockGuard, Locks, LocksBuilder};
use lockcore_memory::MemoryBackend;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{
        Notify,
        mpsc::{UnboundedSender, unbounded_channel},
    },
    time::{sleep, timeout},
};

use crate::recorders::Hostile;

const SECOND: Duration = Duration::from_secs(1);

/// A client that calls `then` for everything that is recorded of exclusive locks from now on, with
/// the name of the metric.
fn client(locks: LocksBuilder, then: impl Fn(&str) + Send + Sync + 'static) -> Locks {
    let is_made = Arc::new(AtomicBool::new(false));
    let then = {
        let is_made = is_made.clone();
        move |metric: &str| {
            if is_made.load(Ordering::SeqCst) {
                then(metric);
            }
        }
    };
    let recorder = Hostile { then: Arc::new(then), registers: false };
    // Other threads have no recorder: what is recorded is registered here.
    metrics::with_local_recorder(&recorder, || {
        let locks = locks.build().unwrap();
        let registering = async {
            locks.lock("registered").acquire().await.unwrap().release().await.unwrap();
        };
        Builder::new_current_thread().enable_all().build().unwrap().block_on(registering);
        is_made.store(true, Ordering::SeqCst);
        locks
    })
}

/// A runtime with one thread for tasks, and others for blocking work.
fn one_worker() -> Builder {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all();
    runtime
}

/// Runs `test` on the only worker of a runtime.
fn on_one_worker(test: impl Future<Output = ()> + Send + 'static) {
    let runtime = one_worker().build().unwrap();
    runtime.block_on(async { tokio::spawn(test).await.unwrap() });
}

/// While the recorder waits for an answer of the test, it holds up the thread that reports.
#[derive(Default)]
struct Question(OnceLock<UnboundedSender<mpsc::Sender<()>>>);

impl Question {
    /// Asks once. Panics if there is no answer.
    fn ask(&self) {
        let Some(questions) = self.0.get() else { return };
        let (answer, is_answered) = mpsc::channel();
        if questions.send(answer).is_ok() {
            is_answered.recv_timeout(SECOND * 30).unwrap();
        }
    }
}

#[test]
fn a_slow_report_delays_no_renewal() {
    let ((renewed, mut renewals), question) = (unbounded_channel(), Arc::<Question>::default());
    let asking = question.clone();
    let then = move |metric: &str| match metric {
        "lockcore_acquire_seconds" => asking.ask(),
        "lockcore_renewals_total" => renewed.send(()).unwrap(),
        _ => {}
    };
    let locks = client(Locks::builder(MemoryBackend::new()).lease(SECOND * 12), then);
    on_one_worker(async move {
        let (questions, mut asked) = unbounded_channel();
        question.0.set(questions).unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        let answer = timeout(SECOND * 20, asked.recv()).await.unwrap().unwrap();
        asked.close();
        timeout(SECOND * 20, renewals.recv()).await.unwrap().unwrap();
        assert!(guard.is_held());
        answer.send(()).unwrap();
    });
}

#[test]
fn close_waits_for_the_recorder_without_a_worker() {
    let (question, is_answered) = (Arc::<Question>::default(), Arc::<OnceLock<()>>::default());
    let (asking, answered) = (question.clone(), is_answered.clone());
    let then = move |metric: &str| {
        if metric == "lockcore_hold_seconds" {
            asking.ask();
            let _ = answered.set(());
        }
    };
    let locks = client(Locks::builder(MemoryBackend::new()), then);
    on_one_worker(async move {
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        let (questions, mut asked) = unbounded_channel();
        question.0.set(questions).unwrap();
        let closing = [locks.clone(), locks.clone()].map(|locks| {
            let is_answered = is_answered.clone();
            tokio::spawn(async move {
                locks.close().await.unwrap();
                assert_eq!(is_answered.get(), Some(&()));
            })
        });
        let answer = timeout(SECOND * 10, asked.recv()).await.unwrap().unwrap();
        asked.close();
        // Both closings, and whatever else is left, before the answer.
        sleep(SECOND / 10).await;
        assert!(!closing.iter().any(|closing| closing.is_finished()));
        answer.send(()).unwrap();
        for closing in closing {
            // Sooner than the closing gives up to wait for the other one.
            timeout(SECOND * 5, closing).await.unwrap().unwrap();
        }
    });
}

#[test]
fn close_reports_although_all_threads_for_blocking_work_are_in_use() {
    let told = Arc::<OnceLock<()>>::default();
    let then = {
        let told = told.clone();
        move |metric: &str| {
            if metric == "lockcore_hold_seconds" {
                let _ = told.set(());
            }
        }
    };
    let locks = client(Locks::builder(MemoryBackend::new()), then);
    let runtime = one_worker().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (end, is_over) = mpsc::channel::<()>();
        let working = tokio::task::spawn_blocking(move || is_over.recv());
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        timeout(SECOND * 10, locks.close()).await.unwrap().unwrap();
        assert_eq!(told.get(), Some(&()));
        drop(end);
        working.await.unwrap().unwrap_err();
    });
}

/// The hold whose renewal is reported last would be lost if the recorder was slow.
#[test]
fn all_renewals_count_before_the_first_is_reported() {
    let guards = Arc::<Mutex<Vec<LockGuard>>>::default();
    let left = Arc::<OnceLock<Vec<Duration>>>::default();
    let then = {
        let (guards, left) = (guards.clone(), left.clone());
        move |metric: &str| {
            if metric == "lockcore_renewals_total" {
                let guards = guards.lock().unwrap();
                left.get_or_init(|| guards.iter().map(LockGuard::remaining).collect());
            }
        }
    };
    let locks = client(Locks::builder(MemoryBackend::new()).lease(SECOND * 30), then);
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        for number in 0..10 {
            let guard = locks.lock(format!("{number}")).acquire().await.unwrap();
            guards.lock().unwrap().push(guard);
        }
        sleep(SECOND * 11).await;
        let left = left.get().unwrap();
        assert!(left.len() == 10 && left.iter().all(|left| *left > SECOND * 25), "{left:?}");
        guards.lock().unwrap().clear();
    });
}

/// Fails if `test` takes too long.
fn within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let (end, is_over) = mpsc::channel();
    let testing = thread::spawn(move || {
        let _end = end;
        test();
    });
    assert_eq!(is_over.recv_timeout(limit), Err::<(), _>(mpsc::RecvTimeoutError::Disconnected));
    testing.join().unwrap();
}

#[test]
fn a_recorder_may_close_the_client() {
    let ways: [fn(&Locks); 2] = [
        |locks| Handle::current().block_on(locks.close()).unwrap(),
        |locks| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(locks.close()).unwrap();
        },
    ];
    for close in ways {
        within(SECOND * 20, move || {
            let own = Arc::<OnceLock<Locks>>::default();
            let (closing, is_closed) = (own.clone(), Arc::new(Notify::new()));
            let closed = is_closed.clone();
            let then = move |metric: &str| {
                if metric == "lockcore_hold_seconds"
                    && let Some(locks) = closing.get()
                {
                    close(locks);
                    closed.notify_one();
                }
            };
            let locks = client(Locks::builder(MemoryBackend::new()), then);
            own.set(locks.clone()).unwrap();
            one_worker().build().unwrap().block_on(async {
                locks.lock("a").acquire().await.unwrap().release().await.unwrap();
                timeout(SECOND * 10, is_closed.notified()).await.unwrap();
                locks.close().await.unwrap();
            });
        });
    }
}

/// A recorder can wait for the runtime, whose only worker must not wait for the recorder.
#[test]
fn nothing_but_close_waits_for_the_recorder() {
    let ends: [fn(Runtime, Locks); 5] = [
        |runtime, locks| runtime.block_on(runtime.spawn(async { drop(locks) })).unwrap(),
        |runtime, locks| runtime.block_on(runtime.spawn(async move { locks.abandon() })).unwrap(),
        |runtime, locks| drop((runtime, locks)),
        |runtime, locks| {
            runtime.shutdown_background();
            drop(locks);
        },
        |runtime, locks| {
            runtime.block_on(runtime.spawn(async move { locks.close().await })).unwrap().unwrap();
        },
    ];
    for end in ends {
        within(SECOND * 20, move || {
            let (began, has_begun) = mpsc::channel();
            let waits = AtomicBool::new(true);
            let then = move |metric: &str| {
                if metric == "lockcore_acquire_seconds" && waits.swap(false, Ordering::SeqCst) {
                    began.send(()).unwrap();
                    Handle::current().block_on(sleep(SECOND / 2));
                }
            };
            let locks = client(Locks::builder(MemoryBackend::new()), then);
            let runtime = one_worker().build().unwrap();
            runtime.block_on(async {
                drop(locks.lock("a").acquire().await.unwrap());
                let has_begun = tokio::task::spawn_blocking(move || has_begun.recv());
                timeout(SECOND * 10, has_begun).await.unwrap().unwrap().unwrap();
            });
            end(runtime, locks);
        });
    }
}
