//! Traces of the library, and a suspended host.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore::{Clock, LockError, Locks, LossReason, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};

use crate::log::Log;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_warned_with_both_places() {
    let (log, _logging) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let held = locks.lock("self").acquire().await.unwrap();
    let held_since = line!() - 1;
    assert!(locks.lock("self").acquire_timeout(SECOND).await.is_err());
    let waiting_at = line!() - 1;
    let warning = log.line_with("probably a deadlock");
    assert!(warning.contains("WARN") && warning.contains("lock=self"), "{warning}");
    assert!(
        warning.contains(&format!("observing.rs:{held_since}:")),
        "where it is held: {warning}"
    );
    assert!(warning.contains(&format!("observing.rs:{waiting_at}:")), "where it waits: {warning}");
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_somebody_else_is_not_warned() {
    let (log, _logging) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let lock = locks.lock("other");
    let held = tokio::spawn(async move { lock.acquire().await.unwrap() }).await.unwrap();
    assert!(locks.lock("other").acquire_timeout(SECOND).await.is_err());
    // Nested acquisitions of one owner do not wait at all.
    let nested = locks.lock("other").owned_by(held.owner()).acquire().await.unwrap();
    assert_eq!(log.lines_with("deadlock"), Vec::<String>::new());
    drop((held, nested));
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_hold_is_traced_with_its_times() {
    let (log, _logging) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let first = locks.lock("traced").acquire().await.unwrap();
    let token = first.token();
    let lock = locks.lock("traced").owned_by(&Owner::named("second"));
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(2 * SECOND).await;
    first.release().await.unwrap();
    let second = waiting.await.unwrap();

    let released = log.line_with("released");
    assert!(
        released.contains(" lockcore.hold{lock=traced"),
        "inside the span of the hold: {released}"
    );
    assert!(
        released.contains(&format!("token={token}")) && released.contains("held_for=2s"),
        "{released}"
    );
    let acquired = log.lines_with("acquired");
    assert_eq!(acquired.len(), 2, "{acquired:#?}");
    assert!(acquired[1].contains("lockcore.acquire{lock=traced owner=second"), "{}", acquired[1]);
    assert!(acquired[1].contains("wait=2s"), "with the time that it waited: {}", acquired[1]);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_and_the_loss_they_lead_to_are_traced_once() {
    let (log, _logging) = Log::start();
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::builder(backend).lease(3 * SECOND).build().unwrap();
    let guard = locks.lock("failing").acquire().await.unwrap();
    faults.every(Op::Renew, Fault::LostRequest);
    assert_eq!(guard.lost().await, LossReason::LeaseEnded);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    let failure = log.line_with("renewal failed, will be retried");
    assert!(failure.contains("WARN") && failure.contains("lock=failing"), "{failure}");
    assert!(failure.contains("remaining=1."), "{failure}");
    let more = log.lines_with("renewal failed again, will be retried");
    assert!(!more.is_empty() && more.iter().all(|line| line.contains("DEBUG")), "{more:#?}");
    let lost = log.line_with("hold lost");
    assert!(
        lost.contains("WARN") && lost.contains("lock=failing") && lost.contains("lease ended"),
        "{lost}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_that_slept_through_its_lease_knows_when_it_wakes_up() {
    let asleep = Arc::new(AtomicU64::new(0));
    let clock = Clock::with_suspension({
        let asleep = asleep.clone();
        move || Duration::from_secs(asleep.load(Ordering::SeqCst))
    });
    let store = MemoryBackend::new();
    let locks = Locks::builder(store.clone()).clock(clock).build().unwrap();
    let guard = locks.lock("laptop").acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    let run = tokio::spawn({
        let lock = locks.lock("other");
        async move { lock.run(async |_| std::future::pending::<()>().await).await }
    });
    // The clock advances when every task waits: both holds exist, and both signals are awaited.
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(locks.lock("other").state().await.unwrap().is_held() && !lost.is_finished());

    // The host sleeps for an hour. Its timers do not count that, but the server does.
    asleep.store(3600, Ordering::SeqCst);
    assert!(!guard.is_held(), "at once, for whoever looks");
    let woken = tokio::time::Instant::now();
    assert_eq!(lost.await.unwrap(), LossReason::LeaseEnded);
    assert!(matches!(run.await.unwrap(), Err(LockError::Lost { .. })));
    assert!(woken.elapsed() <= SECOND, "and soon for whoever waits: {:?}", woken.elapsed());
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
}

/// The loss is noticed before the body runs again, not when a timer fires.
#[tokio::test(start_paused = true)]
async fn run_does_not_go_on_after_a_suspension_that_was_longer_than_the_lease() {
    let asleep = Arc::new(AtomicU64::new(0));
    let clock = Clock::with_suspension({
        let asleep = asleep.clone();
        move || Duration::from_secs(asleep.load(Ordering::SeqCst))
    });
    let locks = Locks::builder(MemoryBackend::new()).clock(clock).build().unwrap();
    let (wake, woken) = tokio::sync::oneshot::channel();
    let went_on = AtomicBool::new(false);
    let mut run = pin!(locks.lock("laptop").run(async |_| {
        woken.await.unwrap();
        went_on.store(true, Ordering::SeqCst);
    }));
    assert!(poll_times(1, run.as_mut()).await.is_none(), "the body waits");
    asleep.store(3600, Ordering::SeqCst);
    wake.send(()).unwrap();
    let ended = poll_times(1, run.as_mut()).await;
    assert!(matches!(ended, Some(Err(LockError::Lost { .. }))), "{ended:?}");
    assert!(!went_on.load(Ordering::SeqCst), "the body runs without the lock");
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_guards_that_were_dropped_before() {
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let store = backend.inside().clone();
    let locks = Locks::new(backend);
    faults.every(Op::Release, Fault::Delay(SECOND));
    drop(locks.lock("dropped").acquire().await.unwrap());
    locks.close().await.unwrap();
    assert_eq!(store.names_in_use(), 0, "it is released when `close()` returns");
}
