//! [`Doubts`]: members that may still carry out an old request for a hold.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::{LockName, backend::HoldId};
use tokio::time::Instant;

use crate::member::MemberSet;

/// How long a doubt is kept beyond the lease of its hold.
const KEEP: Duration = Duration::from_secs(60);

/// The members at which a request for a hold was left without an answer.
///
/// The request may still be on its way, and its undoing behind it. Whatever such a member grants to
/// this hold later may end with that undoing, so it does not count. Another hold is not affected,
/// and the core asks with another one after an error whose outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Mutex<HashMap<(LockName, HoldId), Doubt>>);

#[derive(Debug)]
struct Doubt {
    members: MemberSet,
    until: Instant,
}

impl Doubts {
    /// Notes that some `members` may still carry out a request for `hold`.
    pub(crate) fn note(&self, name: &LockName, hold: &HoldId, lease: Duration, members: MemberSet) {
        if members.is_empty() {
            return;
        }
        let (now, until) = (Instant::now(), until(lease));
        let mut doubts = self.lock();
        if doubts.len() == doubts.capacity() {
            doubts.retain(|_, doubt| doubt.until > now);
        }
        let doubt = doubts
            .entry((name.clone(), hold.clone()))
            .or_insert(Doubt { members: MemberSet::default(), until });
        doubt.members = doubt.members.with(members);
        doubt.until = doubt.until.max(until);
    }

    /// The members whose grants to `hold` do not count. Remembered for longer, since the hold is in
    /// use.
    pub(crate) fn of(&self, name: &LockName, hold: &HoldId, lease: Duration) -> MemberSet {
        let mut doubts = self.lock();
        if doubts.is_empty() {
            return MemberSet::default();
        }
        let Some(doubt) = doubts.get_mut(&(name.clone(), hold.clone())) else {
            return MemberSet::default();
        };
        doubt.until = doubt.until.max(until(lease));
        doubt.members
    }

    /// Forgets a hold that is over.
    pub(crate) fn forget(&self, name: &LockName, hold: &HoldId) {
        let mut doubts = self.lock();
        if !doubts.is_empty() {
            doubts.remove(&(name.clone(), hold.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(LockName, HoldId), Doubt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn until(lease: Duration) -> Instant {
    Instant::now() + (lease * 2).max(KEEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_doubt_lasts_while_its_hold_is_in_use() {
        const LEASE: Duration = Duration::from_secs(60);
        let (doubts, name) = (Doubts::default(), LockName::new("a").unwrap());
        let [hold, other] = ["a:1", "a:2"].map(HoldId::unique);
        let [first, third] = [0, 2].map(MemberSet::of);
        doubts.note(&name, &hold, LEASE, first);
        doubts.note(&name, &hold, LEASE, third);
        for _ in 0..10 {
            assert_eq!(doubts.of(&name, &hold, LEASE), first.with(third));
            assert!(doubts.of(&name, &other, LEASE).is_empty());
            tokio::time::advance(LEASE).await;
        }
        tokio::time::advance(2 * LEASE).await;
        for number in 0..100 {
            doubts.note(&name, &HoldId::unique(format!("b:{number}")), LEASE, first);
        }
        assert!(doubts.of(&name, &hold, LEASE).is_empty(), "it is kept for ever");
        doubts.note(&name, &hold, LEASE, first);
        doubts.forget(&name, &hold);
        assert!(doubts.of(&name, &hold, LEASE).is_empty());
    }
}
