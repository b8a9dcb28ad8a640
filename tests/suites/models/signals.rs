//! The models of latches and conditions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockcore::{
    BackendError, LockName,
    backend::{Backend, ConditionId, Departure},
};
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::{
    Answer, Model, Target, compare,
    holds::deliveries,
    lease,
    stores::{Difference, Differences, Store},
};

#[derive(Clone, Debug)]
enum LatchRequest {
    Set { count: u32, id: u8 },
    CountDown { id: u8 },
    Count,
    Open,
}

/// A count that only falls, and the answers to each request.
#[derive(Debug, Default)]
struct Latch {
    left: u32,
    set: BTreeMap<u8, bool>,
    counted: Vec<u8>,
}

impl Model for Latch {
    type Request = LatchRequest;

    fn new(_: Differences) -> Self {
        Self::default()
    }

    fn lapses(_: &LatchRequest) -> bool {
        false
    }

    fn expect(&mut self, request: &LatchRequest) -> Answer {
        match *request {
            LatchRequest::Set { count, id } => {
                if let Some(answer) = self.set.get(&id) {
                    return Answer::Flag(*answer);
                }
                let was_open = self.left == 0;
                if was_open {
                    self.left = count;
                }
                self.set.insert(id, was_open);
                Answer::Flag(was_open)
            }
            LatchRequest::CountDown { id } => {
                // A repetition does not count again. Its answer is left open.
                if self.counted.contains(&id) {
                    return Answer::Any;
                }
                self.counted.push(id);
                self.left = self.left.saturating_sub(1);
                Answer::Number(self.left)
            }
            LatchRequest::Count => Answer::Number(self.left),
            LatchRequest::Open => Answer::Number(std::mem::take(&mut self.left)),
        }
    }

    fn lapse(&mut self) {}
}

async fn send_to_latch(
    backend: Arc<dyn Backend>,
    target: Target,
    request: LatchRequest,
) -> Result<Answer, BackendError> {
    let (name, latches) = (&target.name, backend.latches().unwrap());
    Ok(match request {
        LatchRequest::Set { count, id } => {
            Answer::Flag(latches.set_count(name, count, &format!("set {id}")).await?)
        }
        LatchRequest::CountDown { id } => {
            Answer::Number(latches.count_down(name, &format!("down {id}")).await?)
        }
        LatchRequest::Count => Answer::Number(latches.count(name).await?),
        LatchRequest::Open => Answer::Number(latches.open(name).await?),
    })
}

pub(crate) fn latches_do_as_their_model(store: &Store) {
    let request = prop_oneof![
        2 => (1..4_u32, any::<u8>()).prop_map(|(count, id)| LatchRequest::Set { count, id }),
        4 => any::<u8>().prop_map(|id| LatchRequest::CountDown { id }),
        2 => Just(LatchRequest::Count),
        1 => Just(LatchRequest::Open),
    ];
    compare::<Latch, _, _>(store, deliveries(request), send_to_latch);
}

#[derive(Clone, Debug)]
enum ConditionRequest {
    Join { waiter: u8, keep: u64 },
    Stay { waiter: u8, keep: u64 },
    Leave { waiter: u8, departure: Departure },
    Notify(u32),
}

/// A queue of waiters.
#[derive(Debug)]
struct Condition {
    differences: Differences,
    /// The waiters, and how long their places are kept.
    queue: Vec<(u8, u64)>,
    /// Those who have left without a place.
    gone: BTreeSet<u8>,
}

impl Condition {
    fn stay(&mut self, waiter: u8, keep: u64) -> bool {
        let place = self.queue.iter_mut().find(|(other, _)| *other == waiter);
        place.map(|place| place.1 = keep).is_some()
    }

    fn notify(&mut self, count: u32) -> usize {
        let count = self.queue.len().min(usize::try_from(count).unwrap());
        self.queue.drain(..count).count()
    }
}

impl Model for Condition {
    type Request = ConditionRequest;

    fn new(differences: Differences) -> Self {
        Self { differences, queue: Vec::new(), gone: BTreeSet::new() }
    }

    fn adapt(&self, request: ConditionRequest) -> ConditionRequest {
        match request {
            ConditionRequest::Join { waiter, keep }
                if self.differences.has(Difference::KeepsWhoHasLeftOut)
                    && self.gone.contains(&waiter) =>
            {
                ConditionRequest::Stay { waiter, keep }
            }
            request => request,
        }
    }

    fn lapses(request: &ConditionRequest) -> bool {
        matches!(
            request,
            ConditionRequest::Join { keep: 0, .. } | ConditionRequest::Stay { keep: 0, .. }
        )
    }

    fn expect(&mut self, request: &ConditionRequest) -> Answer {
        match *request {
            ConditionRequest::Join { waiter, keep } => {
                if !self.stay(waiter, keep) {
                    self.queue.push((waiter, keep));
                }
                Answer::Any
            }
            ConditionRequest::Stay { waiter, keep } => Answer::Flag(self.stay(waiter, keep)),
            ConditionRequest::Leave { waiter, departure } => {
                let before = self.queue.len();
                self.queue.retain(|(other, _)| *other != waiter);
                let was_in = self.queue.len() < before;
                if !was_in {
                    self.gone.insert(waiter);
                }
                if !was_in && departure == Departure::Cancelled {
                    self.notify(1);
                }
                Answer::Flag(was_in)
            }
            ConditionRequest::Notify(count) => {
                Answer::Number(u32::try_from(self.notify(count)).unwrap())
            }
        }
    }

    fn lapse(&mut self) {
        self.queue.retain(|(_, keep)| *keep > 0);
    }
}

async fn send_to_condition(
    backend: Arc<dyn Backend>,
    target: Target,
    request: ConditionRequest,
) -> Result<Answer, BackendError> {
    let id = ConditionId::new(target.name, LockName::new("filled").unwrap());
    let conditions = backend.conditions().unwrap();
    let text = |waiter: u8| format!("waiter {waiter}");
    Ok(match request {
        ConditionRequest::Join { waiter, keep } => {
            conditions.join(&id, &text(waiter), lease(keep)).await?;
            Answer::Any
        }
        ConditionRequest::Stay { waiter, keep } => {
            Answer::Flag(conditions.stay(&id, &text(waiter), lease(keep)).await?)
        }
        ConditionRequest::Leave { waiter, departure } => {
            Answer::Flag(conditions.leave(&id, &text(waiter), departure).await?)
        }
        ConditionRequest::Notify(count) => Answer::Number(conditions.notify(&id, count).await?),
    })
}

pub(crate) fn conditions_do_as_their_model(store: &Store) {
    let keeps = || prop_oneof![1 => Just(0_u64), 5 => 1..3_u64];
    let departures = prop_oneof![Just(Departure::Cancelled), Just(Departure::TimedOut)];
    let request = prop_oneof![
        4 => (0..4_u8, keeps()).prop_map(|(waiter, keep)| ConditionRequest::Join { waiter, keep }),
        2 => (0..4_u8, keeps()).prop_map(|(waiter, keep)| ConditionRequest::Stay { waiter, keep }),
        2 => (0..4_u8, departures)
            .prop_map(|(waiter, departure)| ConditionRequest::Leave { waiter, departure }),
        2 => prop_oneof![3 => 1..3_u32, 1 => Just(u32::MAX)].prop_map(ConditionRequest::Notify),
    ];
    compare::<Condition, _, _>(store, deliveries(request), send_to_condition);
}
