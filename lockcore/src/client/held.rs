//! [`Held`]: one guard's part in a hold.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use super::{Client, cleanup::Cleanup, lanes::LaneCell, release::ReleaseWork};
use crate::{
    FencingToken, LockError, LossReason, Mode, Owner,
    backend::HoldId,
    engine::{HoldNumber, Parting, Phase},
    time::Lease,
};

/// A hold that was entered: it has one guard for this. Dropped, the guard is gone, and if it was the
/// last one the background gives the hold back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) client: Arc<Client>,
    pub(crate) cell: Arc<LaneCell>,
    pub(crate) number: HoldNumber,
    pub(crate) id: HoldId,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) lease: Lease,
    /// The hold knows that this guard is gone.
    has_left: bool,
}

impl Held {
    /// The part of a guard that the hold has counted already.
    pub(super) fn new(
        client: &Arc<Client>,
        cell: &Arc<LaneCell>,
        number: HoldNumber,
        lease: Lease,
    ) -> Option<Self> {
        cell.look_at(number, |hold| Self {
            client: client.clone(),
            cell: cell.clone(),
            number,
            id: hold.facts.id.clone(),
            owner: hold.owner.clone(),
            mode: hold.mode,
            token: hold.token,
            lease,
            has_left: false,
        })
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

    /// For how long the client may still believe in the hold.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.client.clock.now();
        let phase = self.client.with(&self.cell, |lane, fx| lane.phase(self.number, now, fx));
        if phase != Some(Phase::Live) {
            return Duration::ZERO;
        }
        let left = self.cell.look_at(self.number, |hold| hold.state.deadline().since(now));
        left.unwrap_or_default()
    }

    /// Resolves when the hold ends: with the reason if it was lost.
    ///
    /// Each poll looks at the deadline, since timers know nothing of a suspension of the host.
    pub(crate) fn ended(&self) -> impl Future<Output = Option<LossReason>> + Send + 'static + use<> {
        let (client, cell, number) = (self.client.clone(), self.cell.clone(), self.number);
        // Asked for at once: whoever polls this later hears of an end that came before.
        let watch = self.cell.watch(number).unwrap_or_default();
        async move {
            let deadline = async {
                // A deadline that was extended meanwhile is waited for again.
                while let Some(deadline) = cell.look_at(number, |hold| hold.state.deadline()) {
                    client.clock.sleep_until(deadline).await;
                    let now = client.clock.now();
                    client.with(&cell, |lane, fx| lane.phase(number, now, fx));
                    if watch.get().is_some() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            };
            let (mut deadline, mut ended) = (pin!(deadline), pin!(watch.ended()));
            poll_fn(|context| {
                if watch.get().is_none() {
                    let now = client.clock.now();
                    client.with(&cell, |lane, fx| lane.phase(number, now, fx));
                }
                if let Poll::Ready(end) = ended.as_mut().poll(context) {
                    return Poll::Ready(end);
                }
                deadline.as_mut().poll(context).map(|()| None)
            })
            .await
        }
    }

    /// Counts the guard out. Returns what has to be released, if it was the last one, or why it
    /// cannot be.
    pub(crate) fn depart(&mut self) -> Result<Option<ReleaseWork>, LockError> {
        self.has_left = true;
        let Self { client, cell, number, lease, .. } = &*self;
        if client.is_abandoned() {
            return Ok(None);
        }
        let now = client.clock.now();
        let parting = client.with(cell, |lane, fx| {
            let parting = lane.depart(*number, *lease, now, fx);
            if matches!(parting, Parting::HandedOver)
                && let Some(hold) = lane.hold_mut(*number)
            {
                let (span, watch) = (hold.facts.span.take(), hold.facts.watch.take());
                return (parting, Some((span, watch, hold.facts.acquired_at)));
            }
            (parting, None)
        });
        let lock = cell.name();
        match parting {
            (Parting::Nested { store: false }, _) => Ok(None),
            (Parting::Nested { store: true }, _) => {
                client.clean_up(Cleanup::StoreCount { cell: cell.clone(), hold: *number });
                Ok(None)
            }
            (Parting::HandedOver, over) => {
                if let Some((span, watch, acquired_at)) = over {
                    let held_for = now.since(acquired_at);
                    tracing::debug!(
                        parent: span.as_deref().unwrap_or(&tracing::Span::none()),
                        %lock, token = %self.token, ?held_for, "handed on"
                    );
                    if let Some(watch) = watch {
                        watch.end(None);
                    }
                }
                Ok(None)
            }
            (Parting::Release(release), _) => {
                let held_for = now.since(release.facts.acquired_at);
                tracing::debug!(
                    parent: release.facts.span(), %lock, token = %self.token, ?held_for, "released"
                );
                Ok(Some(client.release_of(cell, release)))
            }
            (Parting::Lost { reason, release }, _) => {
                if let Some(release) = release {
                    let work = client.release_of(cell, release);
                    client.clean_up(Cleanup::Release(Box::new(work)));
                }
                Err(LockError::Lost { lock: lock.clone(), reason })
            }
            (Parting::Closed, _) => Err(LockError::NotHeld { lock: lock.clone() }),
        }
    }

    /// Releases, and returns when the backend has confirmed it.
    pub(crate) async fn release(mut self) -> Result<(), LockError> {
        // In a box: a task that releases now and then need not have room for it all the time.
        match self.depart()?.map(|work| Box::pin(work.confirm())) {
            Some(confirmed) => confirmed.await,
            None => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        // A loss was reported when it happened.
        if let Ok(Some(work)) = self.depart() {
            self.client.clean_up(Cleanup::Release(Box::new(work)));
        }
    }
}
