//! Random acquisitions with faults, timeouts, cancellation and panics: every waiter that was
//! counted is forgotten, and nothing is left at the backend.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::{BackendErrorKind, LockError, Locks, Owner};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op, poll_times};

use crate::clients::SECOND;

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

const SEATS: usize = 6;

async fn one_run(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    let locks = Locks::builder(backend)
        .max_waiters(SEATS)
        .max_waiters_per_lock(4)
        .retry_for(2 * SECOND)
        .lease(5 * SECOND)
        .build()
        .unwrap();
    let owners = [Owner::new(), Owner::named("n")];
    let mut tasks = Vec::new();
    for _ in 0..60 {
        if dice.below(3) == 0 {
            let fault = match dice.below(7) {
                0 => Fault::Refuse(BackendErrorKind::Unavailable),
                1 => Fault::Refuse(BackendErrorKind::Protocol),
                2 => Fault::LostReply,
                3 => Fault::NeverReply,
                4 => Fault::NeverAnswer,
                5 => Fault::Delay(6 * SECOND),
                _ => Fault::DelayReply(Duration::from_millis(300)),
            };
            let ops = [Op::Acquire, Op::Acquire, Op::Release, Op::Subscribe];
            faults.next(ops[dice.below(4) as usize], fault);
        }
        let name = ["a", "b", "c"][dice.below(3) as usize];
        let lock = match dice.below(5) {
            0 => locks.rw_lock(format!("rw{name}")).read(),
            1 => locks.rw_lock(format!("rw{name}")).write(),
            2 => locks.fair_lock(name),
            3 => locks.semaphore(format!("s{name}"), 2).permits(1),
            _ => locks.lock(name),
        };
        let lock = match dice.below(4) {
            0 if dice.below(2) == 0 => lock.owned_by(&owners[0]).lease(9 * SECOND),
            0 => lock.owned_by(&owners[1]),
            _ => lock,
        };
        let how = dice.below(4);
        let keep = Duration::from_millis(dice.below(3000));
        let acquire = async move {
            let got = match how {
                0 => lock.try_acquire().await,
                1 => lock.acquire_timeout(Duration::ZERO).await.map(Some),
                2 => lock.acquire_timeout(Duration::from_millis(700)).await.map(Some),
                _ => lock.acquire().await.map(Some),
            };
            if let Ok(Some(guard)) = got {
                tokio::time::sleep(keep).await;
                drop(guard);
            }
        };
        match dice.below(4) {
            0 => {
                let times = dice.below(4) as usize;
                poll_times(times, acquire).await;
            }
            1 => {
                let within = Duration::from_millis(dice.below(8000));
                tasks.push(tokio::spawn(async move {
                    let _ = tokio::time::timeout(within, acquire).await;
                }));
            }
            _ => tasks.push(tokio::spawn(acquire)),
        }
        if dice.below(2) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.below(900))).await;
        }
    }
    faults.heal();
    for task in tasks {
        tokio::time::timeout(300 * SECOND, task).await.expect("it ends").unwrap();
    }
    tokio::time::sleep(30 * SECOND).await;
    let mut held = Vec::new();
    for at in 0..2 {
        held.push(locks.lock(format!("q{at}")).acquire().await.unwrap());
    }
    let mut seated = Vec::new();
    for at in 0..SEATS {
        let mut waiting = Box::pin(locks.lock(format!("q{}", at % 2)).acquire());
        let polled = poll_times(1, &mut waiting).await;
        assert!(polled.is_none(), "seed {seed}, seat {at}: {polled:?}; {locks:?}");
        seated.push(waiting);
    }
    let refused = poll_times(1, locks.lock("q9").acquire()).await;
    assert!(
        matches!(refused, Some(Err(LockError::TooManyWaiters { .. }))),
        "seed {seed}: one too many: {refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn every_seat_comes_back() {
    for seed in 1..300 {
        one_run(seed).await;
    }
}

/// Panics, yields or stalls in every call, at random.
#[derive(Debug)]
struct Wild(Mutex<u64>, AtomicBool);

impl Wild {
    fn below(&self, limit: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        let mut dice = Dice(*state);
        let below = dice.below(limit);
        *state = dice.0;
        below
    }

    async fn wild(&self) {
        if !self.1.load(Ordering::SeqCst) {
            return;
        }
        let what = self.below(12);
        if what < 3 {
            tokio::task::yield_now().await;
        } else if what < 5 {
            tokio::time::sleep(Duration::from_millis(self.below(9000))).await;
        }
        assert!(self.below(9) != 0, "wild on purpose");
    }
}

#[lockcore::backend::async_trait]
impl crate::hooked::Hooks for Wild {
    async fn acquire(
        &self,
        _: &lockcore::backend::AcquireRequest,
    ) -> Option<Result<lockcore::backend::AcquireOutcome, lockcore::BackendError>> {
        self.wild().await;
        None
    }

    async fn release(&self) {
        self.wild().await;
    }

    async fn subscribe(
        &self,
        _: Option<lockcore::Mode>,
    ) -> Option<Box<dyn lockcore::backend::Wakeups>> {
        self.wild().await;
        None
    }
}

async fn wild_run(seed: u64, closes: bool) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let store = MemoryBackend::new();
    let wild = Arc::new(Wild(Mutex::new(dice.below(u64::MAX) | 1), AtomicBool::new(true)));
    let backend = crate::hooked::Hooked::new(store.clone(), wild.clone());
    let locks = Locks::builder(backend)
        .max_waiters(SEATS)
        .max_waiters_per_lock(4)
        .retry_for(2 * SECOND)
        .lease(5 * SECOND)
        .build()
        .unwrap();
    let owners = [Owner::new(), Owner::named("n")];
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let name = ["a", "b"][dice.below(2) as usize];
        let lock = match dice.below(5) {
            0 => locks.rw_lock(format!("rw{name}")).read(),
            1 => locks.rw_lock(format!("rw{name}")).write(),
            2 => locks.fair_lock(name),
            3 => locks.semaphore(format!("s{name}"), 2).permits(1),
            _ => locks.lock(name),
        };
        let lock = match dice.below(4) {
            0 if dice.below(2) == 0 => lock.owned_by(&owners[0]).lease(9 * SECOND),
            0 => lock.owned_by(&owners[1]),
            _ => lock,
        };
        let how = dice.below(4);
        let keep = Duration::from_millis(dice.below(1500));
        let within = Duration::from_millis(dice.below(12_000));
        let acquire = async move {
            let got = match how {
                0 => lock.try_acquire().await,
                1 => lock.acquire_timeout(Duration::ZERO).await.map(Some),
                2 => lock.acquire_timeout(Duration::from_millis(700)).await.map(Some),
                _ => lock.acquire().await.map(Some),
            };
            if let Ok(Some(guard)) = got {
                tokio::time::sleep(keep).await;
                drop(guard);
            }
        };
        tasks.push(tokio::spawn(async move {
            let _ = tokio::time::timeout(within, acquire).await;
        }));
        if dice.below(2) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.below(700))).await;
        }
    }
    if closes {
        wild.1.store(false, Ordering::SeqCst);
        let _ = locks.close().await;
    }
    for task in tasks {
        // Some panic together with the backend.
        let _ = tokio::time::timeout(300 * SECOND, task).await.expect("it ends");
    }
    wild.1.store(false, Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(store.names_in_use(), 0, "seed {seed}: {locks:?}");
    if closes {
        return;
    }
    let held = locks.lock("q").acquire().await.unwrap();
    let other = locks.lock("r").acquire().await.unwrap();
    let mut seated = Vec::new();
    for at in 0..SEATS {
        let mut waiting = Box::pin(locks.lock(["q", "r"][at % 2]).acquire());
        let polled = poll_times(1, &mut waiting).await;
        assert!(polled.is_none(), "seed {seed}, seat {at}: {polled:?}; {locks:?}");
        seated.push(waiting);
    }
    let refused = poll_times(1, locks.lock("z").acquire()).await;
    assert!(matches!(refused, Some(Err(LockError::TooManyWaiters { .. }))), "{refused:?}");
    drop((seated, held, other));
}

#[tokio::test(start_paused = true)]
async fn every_seat_comes_back_after_panics() {
    for seed in 1..200 {
        wild_run(seed, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_after_a_close_amid_panics() {
    for seed in 1..200 {
        wild_run(seed, true).await;
    }
}
