//! [`Doubts`]: members that may still carry out an old request for a hold, or may have issued another
//! token for it.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use lockcore::{
    FencingToken, LockName,
    backend::{AcquireOutcome, HoldId},
};
use tokio::{task::AbortHandle, time::Instant};

use crate::{member::MemberSet, round::Round};

/// How long a doubt is kept beyond the life of its hold.
const KEEP: Duration = Duration::from_secs(60);

/// A waiter with an older doubt should ask for another hold.
const OLD: Duration = Duration::from_secs(5);

/// With fewer doubts than this, doubts that are over are not cleaned up.
const FEW: usize = 64;

/// The members at which a request for a hold was left without an answer, and the tokens of holds for
/// which a member may have issued another one.
///
/// The request may still be on its way, with its undo behind it. A later grant of such a member to
/// this hold may end with that undo, so it does not count. Another hold is not affected, and the
/// core asks with another one after an error whose outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    doubts: HashMap<(LockName, HoldId), Doubt>,
    /// The number of doubts at which the next clean-up is due.
    enough: usize,
}

struct Doubt {
    members: MemberSet,
    /// Since when there have been such members.
    since: Instant,
    /// The token of the hold, if that of a member might be another one.
    token: Option<FencingToken>,
    until: Instant,
    late: Option<Late>,
}

/// The rest of a round that was decided without it: acquisitions of a hold that counts. Their
/// answers are trusted, because they were not given up.
struct Late {
    requests: Arc<Requests>,
    task: AbortHandle,
}

type Requests = Mutex<Option<Round<AcquireOutcome>>>;

impl Late {
    /// Drops the requests now, rather than at some later time.
    fn recall(self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.task.abort();
    }
}

impl Doubts {
    /// Notes that some `members` may still carry out a request for `hold`, which is in use for the
    /// next `time`.
    pub(crate) fn note(&self, name: &LockName, hold: &HoldId, time: Duration, members: MemberSet) {
        if members.is_empty() {
            return;
        }
        self.add(name, hold, time, |doubt| {
            if doubt.members.is_empty() {
                doubt.since = Instant::now();
            }
            doubt.members = doubt.members.with(members);
        });
    }

    /// Notes the token of `hold`, which is in use for the next `time`. Members may have issued other
    /// ones.
    pub(crate) fn note_token(
        &self,
        name: &LockName,
        hold: &HoldId,
        time: Duration,
        token: FencingToken,
    ) {
        self.add(name, hold, time, |doubt| doubt.token = Some(token));
    }

    fn add(&self, name: &LockName, hold: &HoldId, time: Duration, to: impl FnOnce(&mut Doubt)) {
        let mut notes = self.lock();
        notes.clean();
        let doubt = notes.doubts.entry((name.clone(), hold.clone())).or_default();
        to(doubt);
        doubt.keep_for(time);
    }

    /// Lets the unanswered requests of `round` be answered. Until then, and if that fails, the
    /// members are doubtful.
    pub(crate) fn finish(
        self: &Arc<Self>,
        name: &LockName,
        hold: &HoldId,
        lease: Duration,
        round: Round<AcquireOutcome>,
    ) {
        let pending = round.pending();
        if pending.is_empty() {
            return;
        }
        self.note(name, hold, lease, pending);
        let (requests, key) = (Arc::new(Mutex::new(Some(round))), (name.clone(), hold.clone()));
        let mut notes = self.lock();
        let Some(doubt) = notes.doubts.get_mut(&key) else { return };
        let (doubts, own) = (self.clone(), requests.clone());
        let task = tokio::spawn(async move {
            poll_fn(|context| doubts.poll_late(&own, pending, &key, context)).await;
        });
        doubt.late = Some(Late { requests, task: task.abort_handle() });
    }

    /// Clears the doubt about each of the `asked` members that has answered.
    fn poll_late(
        &self,
        late: &Arc<Requests>,
        asked: MemberSet,
        key: &(LockName, HoldId),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut round = late.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(requests) = round.as_mut() else { return Poll::Ready(()) };
        requests.poll(context);
        let certain = asked.without(requests.unsure());
        let is_over = requests.pending().is_empty();
        if is_over {
            *round = None;
        }
        // The two must not be locked together.
        drop(round);
        let mut notes = self.lock();
        let is_own = |own: &Late| Arc::ptr_eq(&own.requests, late);
        if let Some(doubt) = notes.doubts.get_mut(key)
            && doubt.late.as_ref().is_some_and(is_own)
        {
            doubt.members = doubt.members.without(certain);
            if is_over {
                doubt.late = None;
            }
            if doubt.is_over() {
                notes.doubts.remove(key);
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Gives up the requests that [`finish`](Self::finish) waits for, and forgets the token: the hold
    /// is over or about to be acquired again, and none of its requests may be sent after its release.
    pub(crate) fn recall(&self, name: &LockName, hold: &HoldId) {
        let late = {
            let mut notes = self.lock();
            if notes.doubts.is_empty() {
                return;
            }
            let key = (name.clone(), hold.clone());
            let Some(doubt) = notes.doubts.get_mut(&key) else { return };
            doubt.token = None;
            let late = doubt.late.take();
            if doubt.is_over() {
                notes.doubts.remove(&key);
            }
            late
        };
        if let Some(late) = late {
            late.recall();
        }
    }

    /// The members whose grants to `hold` do not count. Remembered for longer, since the hold is in
    /// use for the next `time`.
    pub(crate) fn of(&self, name: &LockName, hold: &HoldId, time: Duration) -> MemberSet {
        let mut notes = self.lock();
        if notes.doubts.is_empty() {
            return MemberSet::default();
        }
        let Some(doubt) = notes.doubts.get_mut(&(name.clone(), hold.clone())) else {
            return MemberSet::default();
        };
        doubt.keep_for(time);
        doubt.members
    }

    /// The token of `hold`, if a member may have issued another one.
    pub(crate) fn token_of(&self, name: &LockName, hold: &HoldId) -> Option<FencingToken> {
        let notes = self.lock();
        if notes.doubts.is_empty() {
            return None;
        }
        notes.doubts.get(&(name.clone(), hold.clone()))?.token
    }

    /// Returns `true` if there has been a doubt about `hold` for a while.
    pub(crate) fn is_old(&self, name: &LockName, hold: &HoldId) -> bool {
        let notes = self.lock();
        let doubt = notes.doubts.get(&(name.clone(), hold.clone()));
        doubt.is_some_and(|doubt| doubt.since.elapsed() > OLD)
    }

    /// Forgets a hold that is over.
    pub(crate) fn forget(&self, name: &LockName, hold: &HoldId) {
        let mut notes = self.lock();
        if !notes.doubts.is_empty() {
            notes.doubts.remove(&(name.clone(), hold.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    /// Forgets doubts that are over, whenever there are twice as many as were left the last time.
    fn clean(&mut self) {
        if self.doubts.len() < self.enough.max(FEW) {
            return;
        }
        let now = Instant::now();
        self.doubts.retain(|_, doubt| doubt.until > now);
        self.enough = self.doubts.len() * 2;
        self.doubts.shrink_to(self.enough.max(FEW));
    }
}

impl Default for Doubt {
    fn default() -> Self {
        let now = Instant::now();
        Self { members: MemberSet::default(), token: None, since: now, until: now, late: None }
    }
}

impl Doubt {
    fn keep_for(&mut self, time: Duration) {
        self.until = self.until.max(Instant::now() + time + KEEP);
    }

    fn is_over(&self) -> bool {
        self.members.is_empty() && self.token.is_none()
    }
}

impl std::fmt::Debug for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { members, token, .. } = self;
        let mut doubt = f.debug_struct("Doubt");
        doubt.field("members", members).field("token", token).finish_non_exhaustive()
    }
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
            tokio::time::advance(LEASE + KEEP / 2).await;
        }
        tokio::time::advance(LEASE + KEEP).await;
        for number in 0..2 * FEW {
            doubts.note(&name, &HoldId::unique(format!("b:{number}")), LEASE, first);
        }
        assert!(doubts.of(&name, &hold, LEASE).is_empty(), "it is kept for ever");
        doubts.note(&name, &hold, LEASE, first);
        doubts.forget(&name, &hold);
        assert!(doubts.of(&name, &hold, LEASE).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn doubts_that_are_over_leave_no_memory() {
        let (doubts, name) = (Doubts::default(), LockName::new("a").unwrap());
        for number in 0..100_000 {
            doubts.note(&name, &HoldId::unique(format!("{number}")), KEEP, MemberSet::of(0));
            tokio::time::advance(KEEP / 100).await;
        }
        let notes = doubts.lock();
        assert!(notes.doubts.len() <= 1_000, "{}", notes.doubts.len());
        assert!(notes.doubts.capacity() <= 2_000, "{}", notes.doubts.capacity());
    }
}
