//! [`Held`]: one guard's part in a hold.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::Span;

use super::{
    cleanup::Cleanup,
    lanes::{HoldFacts, LaneCell},
    outcome::Entrance,
    release::ReleaseWork,
    shared::Client,
    watch::Watch,
};
use crate::{
    FencingToken, LockError, LossReason, Mode, Owner,
    backend::HoldId,
    engine::{Hold, HoldNumber, Keeping, Parting, Phase},
    time::{Lease, Moment},
};

/// A hold that was entered, and counts one guard for this value. Dropping it counts the guard out;
/// if that was the last guard, the background gives the hold back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) client: Arc<Client>,
    pub(crate) cell: Arc<LaneCell>,
    pub(super) number: HoldNumber,
    /// The id of the hold at the backend, once it was looked up.
    id: OnceLock<Box<HoldId>>,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    token: FencingToken,
    /// Set once somebody asked for the token.
    knows_token: AtomicBool,
    pub(crate) lease: Lease,
    how: Entrance,
    /// Set once the hold has counted this guard out.
    has_left: bool,
}

/// The parts of a parked hold that end when its last guard goes.
struct Parked {
    span: Option<Arc<Span>>,
    watch: Option<Arc<Watch>>,
    acquired_at: Moment,
    /// Set if the hold is kept and nobody listens for other clients yet: that has to be done until
    /// the hold is over.
    listens: Option<(HoldId, oneshot::Receiver<()>)>,
}

impl Parked {
    fn new(facts: &mut HoldFacts, is_kept: bool) -> Self {
        let mut listens = None;
        // A task that listened may be gone with its runtime.
        let is_heard = facts.kept.as_ref().is_some_and(|kept| !kept.is_closed());
        if is_kept && !is_heard {
            let (kept, over) = oneshot::channel();
            facts.kept = Some(Arc::new(kept));
            listens = Some((facts.id.clone(), over));
        }
        let (span, watch) = (facts.span.take(), facts.watch.take());
        Self { span, watch, acquired_at: facts.acquired_at, listens }
    }
}

impl Held {
    /// The part of a guard that the hold has counted already.
    pub(super) fn new(
        client: &Arc<Client>,
        cell: Arc<LaneCell>,
        number: HoldNumber,
        lease: Lease,
    ) -> Option<Self> {
        let of = cell.look_at(number, |hold| Self::identity(hold))?;
        Some(Self::of(client, cell, of, lease))
    }

    /// The parts of a hold that its guards keep.
    pub(super) fn identity(hold: &Hold<HoldFacts>) -> (HoldNumber, Owner, Mode, FencingToken) {
        (hold.number, hold.owner.clone(), hold.mode, hold.token)
    }

    /// The part of a guard in the hold with this identity.
    pub(super) fn of(
        client: &Arc<Client>,
        cell: Arc<LaneCell>,
        (number, owner, mode, token): (HoldNumber, Owner, Mode, FencingToken),
        lease: Lease,
    ) -> Self {
        let (client, id, knows_token) = (client.clone(), OnceLock::new(), AtomicBool::new(false));
        let (how, has_left) = (Entrance::Nested, false);
        Self { client, cell, number, id, owner, mode, token, knows_token, lease, how, has_left }
    }

    /// How its owner got in. The first guard of a hold [began](Self::begun) it.
    pub(super) fn how(&self) -> Entrance {
        self.how
    }

    pub(super) fn set_how(&mut self, how: Entrance) {
        self.how = how;
    }

    /// The id of the hold at the backend. The lane keeps the hold while it has guards, so `None`
    /// does not occur.
    pub(crate) fn id(&self) -> Option<&HoldId> {
        if self.id.get().is_none() {
            let id = self.cell.look_at(self.number, |hold| hold.facts.id.clone())?;
            // Another thread may have set the same value first.
            let _ = self.id.set(Box::new(id));
        }
        self.id.get().map(|id| &**id)
    }

    /// The token of the hold. From now on, no other hold gets the same token.
    pub(crate) fn token(&self) -> FencingToken {
        // The thread that drops the guard has synchronized with the one that asked.
        self.knows_token.store(true, Ordering::Relaxed);
        self.token
    }

    /// The token, for the log. Nobody relies on a token that is only logged.
    pub(super) fn token_unasked(&self) -> FencingToken {
        self.token
    }

    /// How the hold stands now. `None` if it is over.
    pub(crate) fn phase(&self) -> Option<Phase> {
        let now = self.client.clock.now();
        self.client.with(&self.cell, |lane, fx| lane.phase(self.number, now, fx))
    }

    /// Fails if the hold has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let lock = || self.cell.name().clone();
        match self.phase() {
            Some(Phase::Live) => Ok(()),
            Some(Phase::Lost(reason)) => Err(LockError::Lost { lock: lock(), reason }),
            Some(Phase::Parked | Phase::Closed) | None => Err(LockError::NotHeld { lock: lock() }),
        }
    }

    /// How many guards the hold has.
    pub(crate) fn hold_count(&self) -> u32 {
        self.cell.look_at(self.number, |hold| hold.state.count()).unwrap_or_default()
    }

    /// How many replicas acknowledged the hold, if they were asked.
    pub(crate) fn replicas(&self) -> Option<u32> {
        self.cell.look_at(self.number, |hold| hold.facts.replicas).flatten()
    }

    /// How long the client may still rely on the hold.
    pub(crate) fn remaining(&self) -> Duration {
        let deadline = self.client.deadline(&self.cell, self.number);
        deadline.map(|deadline| deadline.since(self.client.clock.now())).unwrap_or_default()
    }

    /// Resolves when the hold ends: with the reason if it was lost.
    ///
    /// Each poll looks at the deadline, since timers know nothing of a suspension of the host.
    pub(crate) fn ended(
        &self,
    ) -> impl Future<Output = Option<LossReason>> + Send + 'static + use<> {
        let (client, cell, number) = (self.client.clone(), self.cell.clone(), self.number);
        // Requested right now, so that a later poll hears of an end that came before it.
        let watch = cell.look_at(number, |hold| {
            let watch = hold.facts.watch.get_or_insert_default().clone();
            (watch, hold.state.phase())
        });
        let (watch, phase) = watch.unzip();
        let watch = watch.unwrap_or_default();
        // It may have ended before anybody asked.
        match phase {
            Some(Phase::Lost(reason)) => watch.end(Some(reason)),
            Some(Phase::Closed) => watch.end(Some(LossReason::Closed)),
            Some(Phase::Live | Phase::Parked) | None => {}
        }
        async move {
            let deadline = async {
                while let Some(deadline) = client.deadline(&cell, number) {
                    client.clock.sleep_until(deadline).await;
                }
            };
            let (mut deadline, mut ended) = (pin!(deadline), pin!(watch.ended()));
            poll_fn(|context| {
                // This is where a passed deadline is noticed.
                let is_live = client.deadline(&cell, number).is_some();
                if let Poll::Ready(end) = ended.as_mut().poll(context) {
                    return Poll::Ready(end);
                }
                if is_live && deadline.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                Poll::Ready(client.loss(&cell, number))
            })
            .await
        }
    }

    /// Counts the guard out. Returns the release to carry out if it was the last guard, or the
    /// reason why it cannot be released.
    fn depart(&mut self, keeping: Keeping) -> Result<Option<ReleaseWork>, LockError> {
        self.has_left = true;
        let knows_token = *self.knows_token.get_mut();
        let Self { client, cell, number, lease, .. } = &*self;
        let now = client.clock.now();
        let (mut parting, mut parked, mut is_unreported) = (Parting::Closed, None, false);
        // Written from inside the closure: as its result, it would be copied several times.
        client.with(cell, |lane, fx| {
            parting = lane.depart(*number, *lease, knows_token, keeping, now, fx);
            match parting {
                Parting::HandedOver | Parting::Kept => {
                    let is_kept = matches!(parting, Parting::Kept);
                    let hold = lane.hold_mut(*number);
                    parked = hold.map(|hold| Parked::new(&mut hold.facts, is_kept));
                }
                Parting::Release(_) => client.pending_releases.add(),
                // The hold is gone already, and with it the data for the report of its loss.
                Parting::Lost { release: Some(_), .. } => {
                    client.pending_releases.add();
                    is_unreported = fx.has_lost(*number);
                }
                _ => {}
            }
        });
        let lock = || cell.name().clone();
        match parting {
            Parting::Nested { store: false } => Ok(None),
            Parting::Nested { store: true } => {
                let (client, cell) = (client.clone(), cell.clone());
                Cleanup::StoreCount { client, cell, hold: *number }.submit();
                Ok(None)
            }
            Parting::HandedOver => {
                self.leave_parked(parked, "handed on", now);
                Ok(None)
            }
            Parting::Kept => {
                self.leave_parked(parked, "kept", now);
                Ok(None)
            }
            Parting::Release(release) => {
                let facts = &release.facts;
                self.report_end(facts.span.as_deref(), facts.acquired_at, "released", now);
                Ok(Some(client.release_of(cell, release)))
            }
            Parting::Lost { reason, release } => {
                if let Some(release) = release {
                    if is_unreported {
                        self.report_loss(reason, &release.facts);
                    }
                    client.release_of(cell, release).submit();
                }
                Err(LockError::Lost { lock: lock(), reason })
            }
            Parting::Closed => Err(LockError::NotHeld { lock: lock() }),
        }
    }

    /// The hold goes on, but is over for this guard.
    fn leave_parked(&self, parked: Option<Parked>, how: &str, now: Moment) {
        let Some(Parked { span, watch, acquired_at, listens }) = parked else { return };
        if let Some((hold, over)) = listens {
            self.client.listen_for_demand(&self.cell, hold, over);
        }
        self.report_end(span.as_deref(), acquired_at, how, now);
        if let Some(watch) = watch {
            watch.end(None);
        }
    }

    /// How long the lane may keep the hold. It keeps one for a while only if a background task runs
    /// that can give it back.
    fn keeping(&self) -> Keeping {
        match self.client.is_running() {
            true => Keeping::ForAWhile,
            false => Keeping::ForWaiters,
        }
    }

    /// Releases, unless the hold is handed over or kept. Returns when the backend has confirmed it.
    pub(crate) fn release(
        self,
    ) -> impl Future<Output = Result<(), LockError>> + Send + 'static + use<> {
        let keeping = self.keeping();
        self.release_keeping(keeping)
    }

    /// Releases, and returns when the backend has confirmed it.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` has room for its arguments twice")]
    pub(crate) fn release_keeping(
        mut self,
        keeping: Keeping,
    ) -> impl Future<Output = Result<(), LockError>> + Send + 'static + use<> {
        async move {
            // Boxed, because a guard that is nested or hands over needs no room for it.
            let confirmed = match self.depart(keeping)? {
                Some(work) => Box::pin(work.confirm()),
                None => return Ok(()),
            };
            confirmed.await
        }
    }
}

impl Client {
    /// The deadline of a hold, if it is live.
    fn deadline(self: &Arc<Self>, cell: &Arc<LaneCell>, hold: HoldNumber) -> Option<Moment> {
        let now = self.clock.now();
        self.with(cell, |lane, fx| match lane.phase(hold, now, fx) {
            Some(Phase::Live) => lane.hold(hold).map(|hold| hold.state.deadline()),
            _ => None,
        })
    }

    /// How a hold was lost, if it was.
    fn loss(self: &Arc<Self>, cell: &Arc<LaneCell>, hold: HoldNumber) -> Option<LossReason> {
        let now = self.clock.now();
        self.with(cell, |lane, fx| match lane.phase(hold, now, fx)? {
            Phase::Lost(reason) => Some(reason),
            Phase::Closed => Some(LossReason::Closed),
            Phase::Live | Phase::Parked => None,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        // A loss was reported when it happened.
        let keeping = self.keeping();
        if let Ok(Some(work)) = self.depart(keeping) {
            work.submit();
        }
    }
}
