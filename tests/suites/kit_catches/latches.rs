//! The latches of [`Flawed`], and how the flaws change them.

use lockcore::{
    BackendError, LockName,
    backend::{Latches, Wakeups, async_trait},
};
use lockcore_testkit::Op;
use tokio::task::yield_now;

use super::{flaw::Flaw, kinds::another_kind, listening::Topic, store::Flawed};

#[derive(Debug, Default)]
pub(super) struct Latch {
    /// Negative for the flaw that counts below zero.
    left: i64,
    /// The answer to each request.
    answered: Vec<(String, i64)>,
    has_been_set: bool,
}

impl Latch {
    fn is_open(&self) -> bool {
        self.left <= 0
    }

    /// Returns `true` if something of it would stay forever.
    pub(super) fn stays(&self, flaw: Flaw) -> bool {
        match flaw {
            Flaw::KeepsOpenLatches => self.has_been_set,
            Flaw::KeepsLatchesAskedFor => !self.has_been_set || !self.is_open(),
            Flaw::KeepsTheIdsOfCounts => !self.answered.is_empty() || !self.is_open(),
            _ => !self.is_open(),
        }
    }
}

impl Flawed {
    fn latch_key(&self, name: &LockName) -> String {
        if self.has(Flaw::OneLatchForAllNames) { "the latch".into() } else { self.key(name) }
    }

    fn latch_topic(&self, name: &LockName) -> String {
        format!("latch {}", self.latch_key(name))
    }

    fn with_latch<T>(&self, name: &LockName, change: impl FnOnce(&mut Latch) -> T) -> T {
        let key = self.latch_key(name);
        change(self.store().signals.latches.entry(key).or_default())
    }

    pub(super) fn is_closed_latch(&self, name: &LockName) -> bool {
        let key = self.latch_key(name);
        self.store().signals.latches.get(&key).is_some_and(|latch| !latch.is_open())
    }

    fn known_id(&self, id: &str) -> String {
        match self.flaw {
            Flaw::KnowsIdsOfItsOwnClientOnly => format!("{} {id}", self.client),
            _ => id.into(),
        }
    }

    fn answered(&self, latch: &Latch, id: &str) -> Option<i64> {
        let id = self.known_id(id);
        latch.answered.iter().find(|(known, _)| *known == id).map(|(_, answer)| *answer)
    }

    fn remember(&self, latch: &mut Latch, id: &str, answer: i64) {
        latch.answered.push((self.known_id(id), answer));
    }

    fn set_now(&self, latch: &mut Latch, count: u32, id: &str) -> bool {
        let forgets = self.has(Flaw::RefusesARepeatedSet) || self.has(Flaw::SetsAgainWhenRepeated);
        if let Some(answer) = self.answered(latch, id).filter(|_| !forgets) {
            return answer == 1;
        }
        let is_higher = i64::from(count) > latch.left;
        let is_free = match self.flaw {
            Flaw::SetsAClosedLatch => true,
            Flaw::SetsAHigherCount => is_higher,
            Flaw::SetsAgainWhenRepeated => latch.is_open() || self.answered(latch, id).is_some(),
            Flaw::IsSetOnceForAll => !latch.has_been_set,
            Flaw::NeverOpensAtZero => !latch.has_been_set || latch.left < 0,
            _ => latch.is_open(),
        };
        if is_free {
            latch.left = match self.flaw {
                Flaw::CutsCountsToSixteenBits => i64::from(count & 0xffff),
                Flaw::CountsBelowZero => latch.left + i64::from(count),
                _ => i64::from(count),
            };
            latch.has_been_set = true;
        }
        if is_free || !self.has(Flaw::ForgetsARefusedSet) {
            self.remember(latch, id, i64::from(is_free));
        }
        is_free || self.has(Flaw::SaysThatItWasSet)
    }

    /// Returns the rest, and whether this opened the latch.
    fn count_now(&self, latch: &mut Latch, id: &str) -> (i64, bool) {
        if let Some(answer) =
            self.answered(latch, id).filter(|_| !self.has(Flaw::CountsWhatIsRepeated))
        {
            return (answer, false);
        }
        let (before, was_open) = (latch.left, latch.is_open());
        latch.left = match self.flaw {
            Flaw::CountsBelowZero => before - 1,
            Flaw::CountsByTwo => (before - 2).max(0),
            Flaw::OpensAtOne if before <= 2 => 0,
            Flaw::CountingClosesAnOpenLatch if was_open => 1,
            _ => (before - 1).max(0),
        };
        let left = latch.left;
        self.remember(latch, id, left);
        self.forget_if_open(latch);
        let answer = if self.has(Flaw::AnswersTheFormerCount) { before } else { left };
        (answer, latch.is_open() && !was_open)
    }

    fn forget_if_open(&self, latch: &mut Latch) {
        if latch.is_open() && self.has(Flaw::OpeningForgetsTheIds) {
            latch.answered.clear();
        }
    }

    /// Records the request one step before it counts, or counts one step after it has checked the
    /// record.
    async fn count_in_two_steps(&self, name: &LockName, id: &str) {
        let (is_known, left) =
            self.with_latch(name, |latch| (self.answered(latch, id).is_some(), latch.left));
        match self.flaw {
            Flaw::LooksThenCounts => {
                yield_now().await;
                self.with_latch(name, |latch| latch.left = left);
            }
            Flaw::LooksForTheIdThenCounts if !is_known => {
                yield_now().await;
                let id = self.known_id(id);
                self.with_latch(name, |latch| latch.answered.retain(|(known, _)| *known != id));
            }
            Flaw::KnowsTheIdThenCounts if !is_known => {
                self.with_latch(name, |latch| self.remember(latch, id, left - 1));
                yield_now().await;
                let id = self.known_id(id);
                self.with_latch(name, |latch| latch.answered.retain(|(known, _)| *known != id));
            }
            _ => {}
        }
    }
}

fn shown(left: i64) -> u32 {
    u32::try_from(left.max(0)).unwrap()
}

#[async_trait]
impl Latches for Flawed {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let busy = self.send(Op::SetCount).await;
        let is_lock = self.with(name, |cell, _| self.kind_in_use(cell).is_some());
        if is_lock && !self.has(Flaw::SetsCountsOfLocks) {
            self.reply(busy).await;
            return Err(another_kind());
        }
        if self.has(Flaw::LooksThenSets) && self.with_latch(name, |latch| latch.is_open()) {
            yield_now().await;
            self.with_latch(name, |latch| latch.left = 0);
        }
        let is_set = self.with_latch(name, |latch| self.set_now(latch, count, id));
        self.reply(busy).await;
        Ok(is_set)
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        let busy = self.send(Op::CountDown).await;
        self.count_in_two_steps(name, id).await;
        let (left, opened) = self.with_latch(name, |latch| self.count_now(latch, id));
        if opened && !self.has(Flaw::LastCountWakesNobody) {
            self.signal(&self.latch_topic(name));
        }
        self.reply(busy).await;
        Ok(shown(left))
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        let busy = self.send(Op::Count).await;
        let left = self.with_latch(name, |latch| latch.left);
        if self.has(Flaw::LookingCounts) {
            self.with_latch(name, |latch| latch.left = (left - 1).max(0));
        }
        self.reply(busy).await;
        Ok(shown(left))
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        let busy = self.send(Op::Open).await;
        let left = self.with_latch(name, |latch| {
            let left = if self.has(Flaw::OpenCountsDown) { latch.left - 1 } else { 0 };
            let former = std::mem::replace(&mut latch.left, left.max(0));
            self.forget_if_open(latch);
            former
        });
        if !self.has(Flaw::OpenWakesNobody) {
            self.signal(&self.latch_topic(name));
        }
        self.reply(busy).await;
        Ok(if self.has(Flaw::OpenAnswersNothing) { 0 } else { shown(left) })
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        Ok(self.listen_to(Topic::Signal(self.latch_topic(name))).await)
    }
}
