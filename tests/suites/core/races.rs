//! Other threads act while a guard is dropped and its hold is parked for the next task of the
//! client.

use std::{
    sync::{Arc, Barrier, Mutex, mpsc},
    task::{Context, Wake, Waker},
    thread::{self, JoinHandle},
    time::Duration,
};

use lockcore::{LockGuard, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::Op;
use tokio::runtime::Handle;

use super::{Acquiring, LONG, MS, SECOND, Scene, begun, within};

/// A guard whose hold may be handed over, and a waiter for it.
async fn held_and_awaited(locks: &Locks, name: &str) -> (LockGuard, Acquiring) {
    let first = locks.lock(name).acquire().await.unwrap();
    let second = begun(locks.lock(name)).await;
    let third = begun(locks.lock(name)).await;
    first.release().await.unwrap();
    (second.await.unwrap(), third)
}

/// Returns `true` if the store has the hold of `guard`. If not, a stranger would get in beside it.
async fn is_at_the_backend(store: &MemoryBackend, guard: &LockGuard) -> bool {
    let state = Locks::new(store.clone()).lock(guard.name()).state().await.unwrap();
    state.holders().iter().any(|holder| holder.owner() == guard.wire_owner())
}

/// A drop of a guard on another thread, stopped half-way: the end of a hold wakes the watchers of
/// the guard, and the waker of this watcher blocks.
struct Stopped {
    thread: JoinHandle<()>,
    goes_on: mpsc::Sender<()>,
}

/// Stops the thread that wakes it.
struct Stop {
    runs_on: thread::ThreadId,
    is_there: mpsc::Sender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Stop {
    fn wake(self: Arc<Self>) {
        if thread::current().id() != self.runs_on {
            let _ = self.is_there.send(());
            let _ = self.goes_on.lock().unwrap().recv_timeout(LONG);
        }
    }
}

impl Stopped {
    /// Returns when the drop has begun, or the guard is gone already.
    fn drops(guard: LockGuard) -> Self {
        let (is_there, comes) = mpsc::channel();
        let (goes_on, waits) = mpsc::channel();
        let stop = Stop {
            runs_on: thread::current().id(),
            is_there: is_there.clone(),
            goes_on: Mutex::new(waits),
        };
        let mut lost = Box::pin(guard.lost());
        let waker = Waker::from(Arc::new(stop));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is held");
        let runtime = Handle::current();
        let thread = thread::spawn(move || {
            // Uses the clock of the test.
            let _runtime = runtime.enter();
            drop(guard);
            drop(lost);
            let _ = is_there.send(());
        });
        comes.recv_timeout(LONG).expect("the end of a guard");
        Self { thread, goes_on }
    }

    fn goes_on(self) {
        let _ = self.goes_on.send(());
        self.thread.join().unwrap();
    }
}

/// The background task checks the hold after it has ended and before it is parked. The waiter that
/// it is parked for is no longer polled, and must not keep it for the rest of the lease.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_parked_while_the_background_looks_at_it_is_given_back() {
    let scene = Scene::new();
    let (guard, left_alone) = held_and_awaited(&scene.locks, "a").await;
    let stopped = Stopped::drops(guard);
    // The time for the hand-over ends, and the background task checks the hold.
    tokio::time::sleep(SECOND / 2).await;
    stopped.goes_on();
    let next = scene.other.lock("a").acquire_timeout(10 * SECOND).await;
    let next = next.expect("the hold stays with a waiter that is not polled");
    drop((next, left_alone));
    scene.nothing_is_left().await;
}

/// The forced release comes after the hold has ended and before it is parked. The next task must
/// not take it over.
#[tokio::test(start_paused = true)]
async fn a_forced_release_ends_a_hold_that_is_just_being_parked() {
    let scene = Scene::new();
    let (guard, next) = held_and_awaited(&scene.locks, "a").await;
    let stopped = Stopped::drops(guard);
    scene.locks.lock("a").force_release().await.unwrap();
    stopped.goes_on();
    let next = within(SECOND, "the next task", next).await.unwrap();
    assert!(is_at_the_backend(&scene.store, &next).await, "it believes in a hold that was freed");
    assert!(scene.faults.calls(Op::ForceRelease) == 1 && next.is_held());
    drop(next);
    scene.nothing_is_left().await;
}

/// The same while the client that forces the release searches its many names. The moment cannot be
/// hit reliably, so there are many rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_ends_a_hold_that_is_parked_while_it_looks() {
    const ROUNDS: u64 = 60;
    let store = MemoryBackend::new();
    let locks = Locks::builder(store.clone()).hand_over(10 * SECOND).build().unwrap();
    let mut many = Vec::new();
    for number in 0..5_000 {
        many.push(locks.lock(format!("held{number}")).acquire().await.unwrap());
    }
    for round in 0..ROUNDS {
        let name = format!("a{round}");
        let (guard, next) = held_and_awaited(&locks, &name).await;
        let forced = guard.wire_owner().to_owned();
        let start = Arc::new(Barrier::new(2));
        let parks = thread::spawn({
            let start = start.clone();
            move || {
                start.wait();
                // Each round hits another moment of the search.
                thread::sleep(Duration::from_micros(50 * round));
                drop(guard);
            }
        });
        start.wait();
        locks.lock(&name).force_release().await.unwrap();
        tokio::task::spawn_blocking(move || parks.join()).await.unwrap().unwrap();
        let next = within(LONG, "the next task", next).await.unwrap();
        assert!(
            next.wire_owner() != forced
                || !next.is_held()
                || is_at_the_backend(&store, &next).await,
            "round {round}: the next task believes in a hold that was freed"
        );
        assert!(many[0].remaining() > MS);
    }
}
