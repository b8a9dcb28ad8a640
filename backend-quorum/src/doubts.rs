//! [`Doubts`]: members that may still carry out an old request for a hold, or may have issued
//! another token for it.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use lockcore::{
    BackendError, FencingToken, LockName,
    backend::{AcquireOutcome, HoldId},
};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, timeout},
};

use crate::{failure::doubtful, member::MemberSet, round::Round};

/// How long a doubt is kept beyond the life of its hold.
const KEEP: Duration = Duration::from_secs(60);

/// A waiter with an older doubt should ask for another hold.
const OLD: Duration = Duration::from_secs(5);

/// The members at which a request for a hold was left without an answer, and the tokens of holds
/// for which a member may have issued another one.
///
/// The request may still be on its way, with its undo behind it. A later grant of such a member to
/// this hold may end with that undo, so it does not count. Another hold is not affected, and the
/// core asks with another one after an error whose outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    doubts: HashMap<Key, Doubt>,
    /// When the next clean-up is due.
    clean_at: Option<Instant>,
}

type Key = (LockName, HoldId);

struct Doubt {
    /// The members that never answered a request.
    stuck: MemberSet,
    /// Since when there have been such members.
    since: Instant,
    /// The token of the hold, if that of a member might be another one.
    token: Option<FencingToken>,
    until: Instant,
    /// The requests that may be answered yet.
    late: Vec<Late>,
}

/// The rest of a round that was decided without it. Its answers are trusted, because the requests
/// were not given up.
struct Late {
    fate: Fate,
    requests: Arc<Requests>,
    rest: watch::Sender<Rest>,
    task: AbortHandle,
}

/// The effect of the answers to late requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The hold counts, and the answers count for it.
    Counts,
    /// The hold was refused, and the requests include the release of what is granted.
    IsGivenBack,
}

/// How far late requests are.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    pending: MemberSet,
    /// The members that did not answer in time.
    stuck: MemberSet,
}

type Requests = Mutex<Option<Round<AcquireOutcome>>>;

impl Late {
    fn pending(&self) -> MemberSet {
        self.rest.borrow().pending
    }

    /// Drops the requests now, rather than at some later time.
    fn recall(self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.task.abort();
    }
}

/// The members that still have to answer refused requests for a hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaving(Vec<watch::Receiver<Rest>>);

impl Leaving {
    pub(crate) fn members(&self) -> MemberSet {
        self.0.iter().fold(MemberSet::default(), |all, rest| all.with(rest.borrow().pending))
    }

    /// Returns `true` if there were none when this was made.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for at most `time` until `member` has nothing of the hold any more, so that it can be
    /// asked for it again.
    pub(crate) async fn left(mut self, member: usize, time: Duration) -> Result<(), BackendError> {
        let left = async {
            for rest in &mut self.0 {
                let is_over = rest.wait_for(|rest| !rest.pending.contains(member)).await;
                match is_over {
                    Ok(rest) if !rest.stuck.contains(member) => {}
                    // It is in doubt, or the hold was released meanwhile.
                    Ok(_) | Err(_) => return Err(doubtful().maybe_applied()),
                }
            }
            Ok(())
        };
        // If the time is up, it is still in doubt because of the refused request alone.
        timeout(time, left).await.unwrap_or_else(|_| Err(doubtful().not_applied()))
    }
}

impl Doubts {
    /// Notes that some `members` may still carry out a request for `hold`, which is in use for the
    /// next `time`.
    pub(crate) fn note(&self, name: &LockName, hold: &HoldId, time: Duration, members: MemberSet) {
        if !members.is_empty() {
            self.add(name, hold, time, |doubt| doubt.add(members));
        }
    }

    /// Notes the token of `hold`, which is in use for the next `time`. Members may have issued
    /// other ones.
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
        time: Duration,
        (round, fate): (Round<AcquireOutcome>, Fate),
    ) {
        let pending = round.pending();
        if pending.is_empty() {
            return;
        }
        let (requests, key) = (Arc::new(Mutex::new(Some(round))), (name.clone(), hold.clone()));
        let (doubts, own) = (self.clone(), requests.clone());
        let (rest, _) = watch::channel(Rest { pending, stuck: MemberSet::default() });
        // The task cannot miss its entry, which it looks up under the same lock.
        self.add(name, hold, time, |doubt| {
            let task = tokio::spawn(async move {
                poll_fn(|context| doubts.poll_late(&own, &key, context)).await;
            });
            doubt.late.push(Late { fate, requests, rest, task: task.abort_handle() });
        });
    }

    /// Clears the doubt about each member that has answered.
    fn poll_late(&self, late: &Arc<Requests>, key: &Key, context: &mut Context<'_>) -> Poll<()> {
        let mut round = late.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(requests) = round.as_mut() else { return Poll::Ready(()) };
        requests.poll(context);
        let pending = requests.pending();
        let stuck = requests.unsure().without(pending);
        if pending.is_empty() {
            *round = None;
        }
        // The two must not be locked together.
        drop(round);
        let mut notes = self.lock();
        if let Some(doubt) = notes.doubts.get_mut(key)
            && let Some(at) = doubt.late.iter().position(|own| Arc::ptr_eq(&own.requests, late))
        {
            doubt.add(stuck);
            doubt.late[at].rest.send_replace(Rest { pending, stuck });
            if pending.is_empty() {
                doubt.late.swap_remove(at);
            }
            if doubt.is_over() {
                notes.doubts.remove(key);
            }
        }
        if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Gives up the requests that [`finish`](Self::finish) waits for: the hold is over, and none of
    /// them may be sent after its release.
    pub(crate) fn recall(&self, name: &LockName, hold: &HoldId) {
        self.recall_some(name, hold, |_| true);
    }

    /// The same for those that count for the hold, because it is about to be undone or acquired
    /// again. Also forgets the token.
    pub(crate) fn recall_counting(&self, name: &LockName, hold: &HoldId) {
        self.recall_some(name, hold, |late| late.fate == Fate::Counts);
    }

    fn recall_some(&self, name: &LockName, hold: &HoldId, is_recalled: impl Fn(&Late) -> bool) {
        let recalled: Vec<_> = {
            let mut notes = self.lock();
            if notes.doubts.is_empty() {
                return;
            }
            let key = (name.clone(), hold.clone());
            let Some(doubt) = notes.doubts.get_mut(&key) else { return };
            doubt.token = None;
            let recalled: Vec<_> = doubt.late.extract_if(.., |late| is_recalled(late)).collect();
            for late in &recalled {
                doubt.add(late.pending());
            }
            if doubt.is_over() {
                notes.doubts.remove(&key);
            }
            recalled
        };
        recalled.into_iter().for_each(Late::recall);
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
        doubt.members()
    }

    /// The members that can be asked for `hold` again once they have answered what was refused, and
    /// those that cannot be asked. Remembered for longer, since the hold is in use.
    pub(crate) fn leaving(&self, name: &LockName, hold: &HoldId) -> (Leaving, MemberSet) {
        let mut notes = self.lock();
        if notes.doubts.is_empty() {
            return Default::default();
        }
        let Some(doubt) = notes.doubts.get_mut(&(name.clone(), hold.clone())) else {
            return Default::default();
        };
        doubt.keep_for(Duration::ZERO);
        let (leaving, counting): (Vec<_>, Vec<_>) =
            doubt.late.iter().partition(|late| late.fate == Fate::IsGivenBack);
        // A member may be stuck and, because of another request, leaving.
        let doubtful = counting.iter().fold(doubt.stuck, |all, late| all.with(late.pending()));
        (Leaving(leaving.iter().map(|late| late.rest.subscribe()).collect()), doubtful)
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
        doubt.is_some_and(|doubt| !doubt.stuck.is_empty() && doubt.since.elapsed() > OLD)
    }

    /// Forgets a hold that is over.
    pub(crate) fn forget(&self, name: &LockName, hold: &HoldId) {
        let mut notes = self.lock();
        if !notes.doubts.is_empty() {
            notes.doubts.remove(&(name.clone(), hold.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.clean();
        notes
    }
}

impl Notes {
    /// Forgets doubts that are over, from time to time.
    fn clean(&mut self) {
        if self.doubts.is_empty() {
            return;
        }
        let now = Instant::now();
        match self.clean_at {
            Some(due) if due > now => {}
            Some(_) => {
                self.doubts.retain(|_, doubt| doubt.until > now);
                self.doubts.shrink_to(self.doubts.len() * 2);
                self.clean_at = (!self.doubts.is_empty()).then_some(now + KEEP);
            }
            None => self.clean_at = Some(now + KEEP),
        }
    }
}

impl Default for Doubt {
    fn default() -> Self {
        let (stuck, now) = (MemberSet::default(), Instant::now());
        Self { stuck, token: None, since: now, until: now, late: Vec::new() }
    }
}

impl Doubt {
    fn add(&mut self, stuck: MemberSet) {
        if self.stuck.is_empty() {
            self.since = Instant::now();
        }
        self.stuck = self.stuck.with(stuck);
    }

    fn members(&self) -> MemberSet {
        self.late.iter().fold(self.stuck, |all, late| all.with(late.pending()))
    }

    fn keep_for(&mut self, time: Duration) {
        self.until = self.until.max(Instant::now() + time + KEEP);
    }

    fn is_over(&self) -> bool {
        self.stuck.is_empty() && self.token.is_none() && self.late.is_empty()
    }
}

impl std::fmt::Debug for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut doubt = f.debug_struct("Doubt");
        doubt.field("members", &self.members()).field("token", &self.token);
        doubt.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lockcore_memory::MemoryBackend;

    use super::*;
    use crate::{member::Member, round::About};

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
        assert!(doubts.of(&name, &hold, LEASE).is_empty(), "it is kept for ever");
        doubts.note(&name, &hold, LEASE, first);
        doubts.forget(&name, &hold);
        assert!(doubts.of(&name, &hold, LEASE).is_empty());
    }

    /// It is in use as long as it is asked for.
    #[tokio::test(start_paused = true)]
    async fn a_doubt_lasts_while_its_hold_is_asked_for() {
        let (doubts, name) = (Doubts::default(), LockName::new("a").unwrap());
        let (hold, third) = (HoldId::unique("a:1"), MemberSet::of(2));
        doubts.note(&name, &hold, Duration::ZERO, third);
        for _ in 0..10 {
            let (leaving, doubtful) = doubts.leaving(&name, &hold);
            assert_eq!((leaving.members(), doubtful), (MemberSet::default(), third));
            tokio::time::advance(KEEP / 2).await;
        }
    }

    /// The other members are still waited for.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_panics_late_is_in_doubt_alone() {
        const SECOND: Duration = Duration::from_secs(1);
        let (doubts, name) = (Arc::new(Doubts::default()), LockName::new("a").unwrap());
        let hold = HoldId::unique("a:1");
        let members: Arc<[_]> = (0..3)
            .map(|_| {
                let member = Member::new(String::new(), KEEP, KEEP);
                member.connected(Arc::new(MemoryBackend::new()));
                Arc::new(member)
            })
            .collect();
        let [second, third] = [1, 2].map(MemberSet::of);
        let round = |late| {
            Round::new(&members, late, About::Holds, |at, _| async move {
                tokio::time::sleep(SECOND / 2).await;
                assert_eq!(at, 1, "the member panics on purpose");
                tokio::time::sleep(SECOND).await;
                Ok(AcquireOutcome::Held { remaining: None })
            })
        };
        let mut late = round(second.with(third));
        late.until(|_| true).await;
        doubts.finish(&name, &hold, Duration::ZERO, (late, Fate::IsGivenBack));
        let (leaving, doubtful) = doubts.leaving(&name, &hold);
        assert_eq!((leaving.members(), doubtful), (second.with(third), MemberSet::default()));
        tokio::time::sleep(SECOND).await;
        assert_eq!(leaving.members(), second);
        let (_, doubtful) = doubts.leaving(&name, &hold);
        assert_eq!(doubtful, third);
        leaving.left(1, SECOND).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn doubts_that_are_over_leave_no_memory() {
        let (doubts, name) = (Doubts::default(), LockName::new("a").unwrap());
        for number in 0..100_000 {
            doubts.note(&name, &HoldId::unique(format!("{number}")), KEEP, MemberSet::of(0));
            tokio::time::advance(KEEP / 100).await;
        }
        let sizes = || {
            let notes = doubts.lock();
            (notes.doubts.len(), notes.doubts.capacity())
        };
        let (doubts_left, capacity) = sizes();
        assert!(doubts_left <= 1_000 && capacity <= 2_000, "{doubts_left} in {capacity}");
        // After such a burst, a few do not stay until there are as many again.
        tokio::time::advance(4 * KEEP).await;
        assert_eq!(sizes(), (0, 0));
    }
}
