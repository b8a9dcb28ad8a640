//! Entering a hold of the same owner, or reading beside it, where that needs a request.

use std::{sync::Arc, time::Duration};

use super::{
    acquisition::Acquisition,
    asking::late,
    cleanup::{Cleanup, OnDrop, Undo},
    held::Held,
    lanes::LaneCell,
    outcome::{BackendCall, Entrance},
    shared::Client,
};
use crate::{
    BackendError, BackendErrorKind, LockError, LossReason,
    backend::{AcquireOutcome, AcquireRequest, RenewOutcome, RenewRequest},
    engine::{Asker, Grant, Growth, HoldNumber, MAX_HOLD_COUNT, Nesting, Phase},
    time::{Backoff, Lease, Moment, lease},
};

impl Acquisition {
    /// Asks the backend to extend the lease of a hold for a nested acquisition that needs more.
    /// `None` if the hold ended meanwhile.
    pub(super) async fn grow(
        &self,
        cell: &Arc<LaneCell>,
        number: HoldNumber,
        is_patient: bool,
    ) -> Result<Option<Held>, LockError> {
        let (client, lease) = (&self.client, self.lease);
        let (start, mut backoff) = (client.clock.now(), Backoff::default());
        let growth = loop {
            match client.ask_for_more(cell, number, lease).await {
                Err(LockError::Backend(error))
                    if is_patient
                        && error.is_retryable()
                        && client.clock.now().since(start) < client.settings.retry_for =>
                {
                    tracing::debug!(%error, "attempt failed, will be retried");
                    tokio::time::sleep(backoff.next()).await;
                }
                growth => break growth?,
            }
        };
        match growth {
            Growth::Enough => Ok(Held::new(client, cell.clone(), number, lease)),
            Growth::Lost(reason) => Err(LockError::Lost { lock: self.name.clone(), reason }),
            Growth::TooDeep => {
                Err(LockError::TooDeep { lock: self.name.clone(), limit: MAX_HOLD_COUNT })
            }
            Growth::Ended | Growth::Ask { .. } => Ok(None),
        }
    }

    /// Admits the owner of a write hold as a reader. It passes the queue, since everybody in it
    /// waits for this owner. `None` if the write hold has ended.
    pub(super) async fn read_within(
        &self,
        cell: &Arc<LaneCell>,
        write: HoldNumber,
        asker: &Asker,
    ) -> Result<Option<Held>, LockError> {
        let client = &self.client;
        let Some(watch) = cell.watch(write) else { return Ok(None) };
        // One at a time: the next one nests in the hold of the first.
        let _turn = watch.turn().await.map_err(|error| error.with_lock(&self.name))?;
        let mut backoff = Backoff::default();
        let start = client.clock.now();
        loop {
            // A closed hold stays while it has guards, but nobody can read within it any more.
            if client.is_closed() {
                return Err(self.closed());
            }
            let now = client.clock.now();
            let inside = client
                .with(cell, |lane, fx| lane.enter(&asker.owner, self.mode, self.lease, now, fx));
            match inside {
                Some(Nesting::Entered(read)) => {
                    return Ok(Held::new(client, cell.clone(), read, self.lease));
                }
                Some(Nesting::Lost(reason)) => {
                    return Err(LockError::Lost { lock: self.name.clone(), reason });
                }
                Some(Nesting::Within(other)) if other == write => {}
                // The owner may have another write hold by now: the acquisition starts over.
                _ => return Ok(None),
            }
            match self.ask_within(cell, write, asker, (start, now)).await {
                Ok(Some(held)) => return Ok(Some(held)),
                // Late or refused: the write hold is gone, and the next look notices that.
                Ok(None) => {}
                Err(LockError::Backend(error))
                    if asker.is_patient
                        && error.is_retryable()
                        && now.since(start) < client.settings.retry_for =>
                {
                    tracing::debug!(%error, "attempt failed, will be retried");
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks the backend once for a read hold beside the write hold of its owner. The acquisition
    /// began at `start`.
    async fn ask_within(
        &self,
        cell: &Arc<LaneCell>,
        write: HoldNumber,
        asker: &Asker,
        (start, sent): (Moment, Moment),
    ) -> Result<Option<Held>, LockError> {
        let client = &self.client;
        let Some(within) = cell.look_at(write, |hold| hold.facts.id.clone()) else {
            return Ok(None);
        };
        let id = client.hold_id(&asker.owner, client.draw_number());
        let request = self.request(id, asker.is_patient).within(Some(within));
        let (client, until) = (client.clone(), sent.after(request.lease));
        let undo = Undo { client, cell: cell.clone(), request: request.undo(), until };
        let undo = OnDrop::new(Cleanup::Undo(undo));
        let client = &self.client;
        let answer = client.call(BackendCall::Acquire, client.backend.acquire(&request)).await;
        let now = client.clock.now();
        let replicas = answer.as_ref().ok().and_then(AcquireOutcome::replicas);
        match answer {
            Ok(AcquireOutcome::Acquired { token } | AcquireOutcome::Acknowledged { token, .. }) => {
                if now >= lease::deadline(sent, request.lease) {
                    return Err(late(request.lease).with_lock(&self.name).into());
                }
                let grant = Grant::new(sent, self.lease, token, 1, None);
                let facts = self.facts(request.hold.clone(), replicas, sent);
                let (owner, mode) = (asker.owner.clone(), self.mode);
                let (cell, number) = client.in_lane(cell.clone(), |slot, fx| {
                    let lane = &mut slot.lane;
                    (!client.is_closed()).then(|| lane.admit(owner, mode, grant, token, facts, fx))
                });
                let Some(number) = number else { return Err(self.closed()) };
                undo.disarm();
                let held = Held::new(client, cell, number, self.lease);
                Ok(held.map(|held| held.begun(Entrance::Granted, now.since(start))))
            }
            Ok(AcquireOutcome::Held { .. }) => {
                undo.disarm();
                // Nobody else can have it while the write hold is there.
                client.with(cell, |lane, fx| lane.gone(write, fx));
                Ok(None)
            }
            Ok(_) => {
                let message = "a read within a write hold was answered as something else";
                let error = BackendError::new(BackendErrorKind::Protocol, message);
                Err(error.with_lock(&self.name).into())
            }
            Err(error) => {
                if !error.is_outcome_unknown() {
                    undo.disarm();
                }
                Err(error.with_lock(&self.name).into())
            }
        }
    }
}

impl Held {
    /// Extends the lease to at least `lease` from now.
    ///
    /// This is a renewal: an acquire with a count of 1 could take a lost hold again.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        let Self { client, cell, number, mode, .. } = self;
        let lock = cell.name();
        lease::check(lease, client.shortest_lease(), "extend", Some(lock))?;
        let over = |growth| match growth {
            Growth::Lost(reason) => Err(LockError::Lost { lock: lock.clone(), reason }),
            Growth::Ended => Err(LockError::NotHeld { lock: lock.clone() }),
            Growth::Enough | Growth::TooDeep | Growth::Ask { .. } => Ok(()),
        };
        let sent = client.clock.now();
        let growth = client.with(cell, |lane, fx| lane.extend(*number, lease, sent, fx));
        if !matches!(growth, Growth::Ask { .. }) {
            return over(growth);
        }
        let Some(id) = self.id() else { return over(Growth::Ended) };
        let request = RenewRequest::new(lock.clone(), id.clone(), lease).mode(*mode);
        let call = client.backend.renew(std::slice::from_ref(&request));
        let answers = client.call(BackendCall::Renew, call).await;
        let now = client.clock.now();
        match answers.map(|mut answers| answers.pop()) {
            Ok(Some(RenewOutcome::Renewed)) => {
                over(client.with(cell, |lane, fx| lane.extended(*number, lease, sent, now, fx)))
            }
            Ok(Some(RenewOutcome::NotHeld)) => {
                client.with(cell, |lane, fx| lane.gone(*number, fx));
                self.check()
            }
            Ok(Some(RenewOutcome::Failed(error))) | Err(error) => Err(error.with_lock(lock).into()),
            Ok(None) => {
                let message = "a renewal was not answered";
                let error = BackendError::new(BackendErrorKind::Protocol, message);
                Err(error.with_lock(lock).into())
            }
        }
    }
}

impl Client {
    /// Asks the backend for more lease for one more guard, if the hold needs more.
    async fn ask_for_more(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        number: HoldNumber,
        lease: Lease,
    ) -> Result<Growth, LockError> {
        let Some(watch) = cell.watch(number) else { return Ok(Growth::Ended) };
        let _turn = watch.turn().await.map_err(|error| error.with_lock(cell.name()))?;
        let sent = self.clock.now();
        let growth = self.with(cell, |lane, fx| lane.grow(number, lease, sent, fx));
        let (count, longer) = match growth {
            Growth::Ask { count, lease } => (count, lease),
            growth => return Ok(growth),
        };
        let Some((id, mode)) = cell.look_at(number, |hold| (hold.facts.id.clone(), hold.mode))
        else {
            return Ok(Growth::Ended);
        };
        // Lowers the backend's count again after a growth that failed, was dropped, or was
        // overtaken.
        let correction =
            Cleanup::StoreCount { client: self.clone(), cell: cell.clone(), hold: number };
        let correction = OnDrop::new(correction);
        let request = AcquireRequest::new(cell.name().clone(), id, longer).mode(mode).count(count);
        let answer = self.call(BackendCall::Acquire, self.backend.acquire(&request)).await;
        let now = self.clock.now();
        match answer {
            Ok(outcome) if outcome.token().is_some() => {
                let growth = self.with(cell, |lane, fx| lane.grown(number, lease, sent, now, fx));
                if growth == Growth::Enough {
                    correction.disarm();
                }
                Ok(growth)
            }
            Ok(_) => Ok(self.with(cell, |lane, fx| {
                // Its last guard may have gone meanwhile: then the hold was released, not lost.
                match lane.phase(number, now, fx) {
                    None => return Growth::Ended,
                    Some(Phase::Live) => lane.gone(number, fx),
                    Some(_) => {}
                }
                Growth::Lost(LossReason::Gone)
            })),
            Err(error) => Err(error.with_lock(cell.name()).into()),
        }
    }
}
