//! Random faults in every request to every member, from repeatable seeds.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::{Fault, Faulty, History, Op};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{MS, SECOND};

const CLIENTS: u64 = 3;
const LEASE: Duration = SECOND;

/// A small random number generator, which is the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }

    /// The fault of one request. A `bad` member fails half the time.
    fn fault(&mut self, op: Op, is_bad: bool) -> Option<Fault> {
        match self.below(if is_bad { 16 } else { 120 }) {
            0 => Some(Fault::Refuse(BackendErrorKind::Unavailable)),
            1 => Some(Fault::Refuse(BackendErrorKind::Connection)),
            2 => Some(Fault::LostRequest),
            3 => Some(Fault::LostReply),
            4 => Some(Fault::NeverAnswer),
            5 => Some(Fault::NeverReply),
            6 => Some(Fault::Delay(self.millis(700))),
            7 => Some(Fault::DelayReply(self.millis(700))),
            // An acquisition must not arrive after its release. A release may arrive late.
            8 if op == Op::Release => Some(Fault::Straggles(self.millis(3_000))),
            number if number % 4 == 3 => Some(Fault::Delay(self.millis(30))),
            number if number % 4 == 2 => Some(Fault::DelayReply(self.millis(30))),
            _ => None,
        }
    }
}

/// A client whose requests have faults, until those are used up.
fn client(stores: &[MemoryBackend], chance: &mut Chance) -> Locks {
    let bad = chance.below(2 * stores.len() as u64);
    let members: Vec<_> = stores.iter().cloned().map(Faulty::new).collect();
    for (at, member) in members.iter().enumerate() {
        let faults = member.faults();
        for op in [Op::Acquire, Op::Release, Op::Renew, Op::Subscribe, Op::RaiseToken] {
            for _ in 0..400 {
                match chance.fault(op, bad == at as u64) {
                    Some(fault) => faults.next(op, fault),
                    None => faults.next_goes_well(op),
                }
            }
        }
    }
    let mut quorum = Quorum::builder().rejoin_after(chance.millis(2) * 1_000);
    for member in members {
        quorum = quorum.member(member);
    }
    let locks = Locks::builder(quorum.build().unwrap()).lease(LEASE).retry_for(120 * SECOND);
    locks.hand_over(chance.millis(60)).build().unwrap()
}

async fn run(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let count = [2, 3, 3, 4, 5][usize::try_from(chance.below(5)).unwrap()];
    let stores: Vec<_> = (0..count).map(|_| MemoryBackend::new()).collect();
    let history = Arc::new(History::new());
    let mut tasks = JoinSet::new();
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&stores, &mut chance)).collect();
    for (number, locks) in clients.iter().enumerate() {
        for task in 0..2 {
            let (lock, history) = (locks.lock("a"), history.clone());
            let mut chance = Chance(chance.below(u64::MAX - 1) | 1);
            tasks.spawn(async move {
                for _ in 0..12 {
                    sleep(chance.millis(50)).await;
                    if chance.below(4) == 0 {
                        // Dropped half-way.
                        let _ = timeout(chance.millis(40), lock.acquire()).await;
                        continue;
                    }
                    let Ok(guard) = lock.acquire().await else { continue };
                    let inside = history.enter("a", format!("{number}:{task}"), guard.token());
                    let work = if chance.below(8) == 0 { 3_000 } else { 20 };
                    tokio::select! {
                        biased;
                        _ = guard.lost() => {}
                        () = sleep(chance.millis(work)) => {}
                    }
                    inside.leave();
                    let _ = guard.release().await;
                }
            });
        }
    }
    timeout(3_600 * SECOND, tasks.join_all()).await.expect("they are stuck");
    if let Err(violation) = history.check() {
        panic!("seed {seed}, {count} members: {violation:?}");
    }
    assert!(history.beliefs().len() > 10, "seed {seed}: hardly anybody got in");
    for locks in clients {
        let _ = locks.close().await;
    }
    // Requests that did not reach a member end with their lease.
    sleep(2 * LEASE + 4 * SECOND + MS).await;
    let left: usize = stores.iter().map(MemoryBackend::names_in_use).sum();
    assert_eq!(left, 0, "seed {seed}: something is left");
}

/// The number of seeds, from the variable `LOCKCORE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("LOCKCORE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60)
}

#[test]
fn whatever_happens_two_are_never_inside_and_tokens_rise() {
    for seed in 1..=seeds() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(seed));
    }
}
