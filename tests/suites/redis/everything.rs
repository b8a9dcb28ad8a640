//! Calls every method, for tests of properties that all calls must have, and collects what must be
//! checked afterwards.

#![allow(dead_code, reason = "not every suite looks at it in every way")]

use std::{
    collections::HashMap,
    error::Error,
    sync::{Mutex, Once},
    thread::{self, ThreadId},
    time::Duration,
};

use lockcore::{LockError, Locks, MultiLock};

/// Calls every method, and returns the errors.
pub(crate) async fn call_everything(locks: &Locks) -> Vec<LockError> {
    const WAIT: Duration = Duration::from_millis(200);
    let lock = locks.lock("a");
    let (fair, both) = (locks.fair_lock("f"), locks.rw_lock("b"));
    let (leased, plain) = (locks.semaphore("s", 3), locks.plain_semaphore("p", 3));
    let multi = MultiLock::of([locks.lock("m"), both.write(), leased.permits(2)]);
    let latch = locks.latch("l");
    let mut errors = Vec::new();
    let mut note = |error: Option<LockError>| errors.extend(error);
    for one in [&lock, &fair, &both.read(), &both.write(), &leased.permits(2), &plain.permits(1)] {
        let (waited, tried, state, forced) = tokio::join!(
            one.acquire_timeout(WAIT),
            one.try_acquire(),
            one.state(),
            one.force_release()
        );
        note(tried.err());
        note(state.err());
        note(forced.err());
        match waited {
            Err(error) => note(Some(error)),
            Ok(guard) => {
                note(one.condition("c").notify_all(&guard).await.err());
                drop(tokio::time::timeout(WAIT, guard.lost()).await);
                note(guard.release().await.err());
            }
        }
    }
    // One of two gets the fair lock, and the other a place in its queue.
    let (one, other) = tokio::join!(fair.acquire_timeout(WAIT), fair.acquire_timeout(WAIT));
    note(one.err());
    note(other.err());
    if let Ok(Some(guard)) = lock.try_acquire().await {
        note(lock.condition("c").wait_timeout(guard, WAIT).await.err().map(LockError::from));
    }
    let (set, count) = (latch.set_count(2).await, latch.count_down().await);
    let (open, waited, available, resized, multiple) = tokio::join!(
        latch.open(),
        latch.wait_timeout(WAIT),
        leased.available(),
        leased.resize(2),
        multi.acquire_timeout(WAIT),
    );
    [set.err(), count.err(), open.err(), waited.err(), available.err(), resized.err()]
        .into_iter()
        .for_each(&mut note);
    match multiple {
        Err(error) => note(Some(error)),
        Ok(guards) => note(guards.release().await.err()),
    }
    note(locks.close().await.err());
    errors
}

/// Everything that an error shows, including its sources.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    text
}

/// The panics in tasks of this thread since the last call, where nobody sees them. The first call
/// starts recording.
pub(crate) fn panics() -> String {
    static PANICS: Mutex<Option<HashMap<ThreadId, String>>> = Mutex::new(None);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let mut panics = PANICS.lock().unwrap();
            let of_thread =
                panics.get_or_insert_default().entry(thread::current().id()).or_default();
            of_thread.push_str(&panic.to_string());
            drop(panics);
            default(panic);
        }));
    });
    PANICS
        .lock()
        .unwrap()
        .get_or_insert_default()
        .remove(&thread::current().id())
        .unwrap_or_default()
}

pub(crate) fn assert_no_panic() {
    assert_eq!(panics(), "", "a task has panicked");
}
