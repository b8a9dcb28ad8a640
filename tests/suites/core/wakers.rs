//! Tasks of foreign executors, whose wakers may do anything.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use super::{SECOND, Scene, begun, within};

/// Panics when it is woken.
#[derive(Default)]
struct Panics {
    was_woken: AtomicBool,
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        panic!("the waker panics on purpose");
    }
}

/// The task that drops its guard wakes the next one, and must still return the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_is_given_back_although_the_waker_of_the_next_one_panics() {
    let scene = Scene::new();
    let held = scene.other.lock("a").acquire().await.unwrap();
    let first = begun(scene.locks.lock("a")).await;
    let mut second = Box::pin(scene.locks.lock("a").lease(SECOND).acquire());
    let panics = Arc::<Panics>::default();
    let waker = Waker::from(panics.clone());
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    held.release().await.unwrap();
    let guard = within(SECOND, "the first waiter", first).await.unwrap();
    // It waits for the hand-over from the first one.
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(guard);
    assert!(panics.was_woken.load(Ordering::SeqCst), "nobody was woken");
    drop(within(SECOND, "the waiter whose waker has panicked", second).await.unwrap());
    scene.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_given_back_although_the_waker_of_one_that_watches_it_panics() {
    let scene = Scene::new();
    let guard = scene.locks.lock("a").acquire().await.unwrap();
    let mut lost = Box::pin(guard.lost());
    let panics = Arc::<Panics>::default();
    let waker = Waker::from(panics.clone());
    assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(guard);
    assert!(panics.was_woken.load(Ordering::SeqCst), "nobody was woken");
    drop(within(SECOND, "the lock", scene.other.lock("a").acquire()).await.unwrap());
    scene.nothing_is_left().await;
}
