//! Work that nobody waits for, or that is not part of an acquisition, as in `client/release.rs`,
//! `client/renew.rs` and `client/close.rs`.

use smallvec::SmallVec;

use super::{
    rules::Mutant,
    store::StoreId,
    wires::{Leg, Wire},
    world::{Done, LockWorld},
};
use crate::engine::{HoldNumber, ReleaseNumber};

impl LockWorld<'_> {
    /// A request on its way reaches the store, perhaps once more.
    pub(super) fn reach_store(&mut self, at: usize) {
        let now = self.now;
        match &mut self.wires[at] {
            Wire::Release { id, stage, .. } => {
                let id = *id;
                *stage = Some(Leg::Answered(()));
                let (_, news) = self.store.release(id, 0);
                self.spread(news);
                self.forget_orphans(id);
            }
            Wire::Renewal { id, lease, stage, .. } | Wire::Extension { id, lease, stage, .. } => {
                *stage = Leg::Answered(self.store.renew(*id, *lease, now));
            }
            Wire::StoreCount { hold, count: Some(count), stage, .. } => {
                *stage = Leg::Answered(());
                let (hold, count) = (*hold, *count);
                if let Some(id) = self.lane.hold(hold).map(|hold| hold.facts.id) {
                    self.store.release(id, count);
                    self.forget_orphans(id);
                }
            }
            Wire::Orphan(request) => {
                let request = *request;
                self.wires.remove(at);
                let (_, news) = self.store.acquire(&request, now);
                self.spread(news);
            }
            Wire::StoreCount { count: None, .. } | Wire::Forced(_) => {}
        }
    }

    /// Requests that were sent before a release of the same hold have no effect after it.
    fn forget_orphans(&mut self, id: StoreId) {
        self.wires.retain(|wire| !matches!(wire, Wire::Orphan(request) if request.id == id));
    }

    /// The answer arrives.
    pub(super) fn come_back(&mut self, at: usize) -> Done {
        let wire = self.wires.remove(at);
        match wire {
            Wire::Release { number, is_repeated, .. } => {
                if let Some(number) = number {
                    self.end_release(number)?;
                }
                if is_repeated {
                    // As `ReleaseWork::tell`.
                    let number = self.lane.begin_release();
                    self.end_release(number)?;
                }
                Ok(())
            }
            Wire::Renewal { hold, lease, sent, stage: Leg::Answered(is_held), .. } => {
                self.event(|lane, _, fx| match is_held {
                    true => lane.renewed(hold, lease, sent, fx),
                    false => lane.gone(hold, fx),
                })
            }
            Wire::Extension { hold, lease, sent, stage: Leg::Answered(is_held), .. } => {
                self.event(|lane, now, fx| match is_held {
                    true => {
                        lane.extended(hold, lease, sent, now, fx);
                    }
                    false => lane.gone(hold, fx),
                })
            }
            Wire::StoreCount { hold, count: Some(count), sent, .. } => {
                self.lane.stored(hold, count);
                // It looks again.
                self.wires.push(Wire::store_count(hold, sent));
                Ok(())
            }
            Wire::Forced(ids) => self.forced(&ids),
            _ => Err("an answer without a question".into()),
        }
    }

    fn end_release(&mut self, number: ReleaseNumber) -> Done {
        if self.has(Mutant::ReleaseNeverEnds) {
            return Ok(());
        }
        let wakes = !self.has(Mutant::ReleaseWakesNobody);
        self.event(|lane, _, fx| {
            lane.end_release(number, fx);
            if !wakes {
                fx.wake.clear();
            }
        })
    }

    /// A request fails, or is not answered in time.
    pub(super) fn fail_wire(&mut self, at: usize) -> Done {
        let now = self.now;
        match &mut self.wires[at] {
            Wire::Release { number, until, stage, is_repeated, .. } => {
                let is_over = *until <= now && self.rules.luck.failures > 0;
                let number = number.take();
                (*stage, *is_repeated) = (None, true);
                if is_over {
                    self.wires.remove(at);
                }
                number.map_or(Ok(()), |number| self.end_release(number))
            }
            Wire::Renewal { hold, lease, sent, .. } => {
                let (hold, lease, sent) = (*hold, *lease, *sent);
                self.wires.remove(at);
                self.event(|lane, now, fx| lane.renewal_failed(hold, lease, sent, now, fx))
                    .map(|_| ())
            }
            Wire::Extension { .. } => {
                self.wires.remove(at);
                Ok(())
            }
            Wire::StoreCount { count, .. } => {
                *count = None;
                Ok(())
            }
            Wire::Orphan(_) | Wire::Forced(_) => Err("this cannot fail".into()),
        }
    }

    /// After a pause: a release is tried again, a count is looked at.
    pub(super) fn begin_wire(&mut self, at: usize) {
        let now = self.now;
        match &mut self.wires[at] {
            Wire::Release { stage, sent, .. } => (*stage, *sent) = (Some(Leg::Sent), now),
            Wire::StoreCount { hold, count, sent, stage } => {
                *count = self.lane.count_to_store(*hold);
                (*sent, *stage) = (now, Leg::Sent);
                if count.is_none() {
                    self.wires.remove(at);
                }
            }
            _ => {}
        }
    }

    /// The background looks at the lane, as `Client::look_at_lane`.
    pub(super) fn look_at_due(&mut self) -> Done {
        self.appointment = None;
        let renewals = self.event(|lane, now, fx| lane.due(now, now, fx))?;
        for (hold, lease) in renewals {
            let Some(id) = self.lane.hold(hold).map(|hold| hold.facts.id) else { continue };
            let sent = self.now;
            self.wires.push(Wire::Renewal { hold, id, lease, sent, stage: Leg::Sent });
        }
        Ok(())
    }

    /// The lock is freed by a forced release, `here` or elsewhere.
    pub(super) fn force(&mut self, here: bool) {
        let ids: SmallVec<[StoreId; 2]> =
            self.lane.holds().iter().map(|hold| hold.facts.id).collect();
        let own = self.store.holds.iter().map(|kept| kept.id).filter(|id| *id != StoreId::Stranger);
        self.doomed.extend(own);
        let news = self.store.force();
        self.spread(news);
        if here {
            self.wires.push(Wire::Forced(ids));
        }
    }

    /// The hold of this client that was granted directly, once the client has heard of that. What
    /// is under way in a failover is not believed.
    pub(super) fn believed_grant(&self) -> Option<StoreId> {
        let granted = self.store.granted_directly()?;
        self.lane.holds().iter().any(|hold| hold.facts.id == granted).then_some(granted)
    }

    pub(super) fn forget_grant(&mut self) {
        self.doomed.extend(self.believed_grant());
        let news = self.store.forget_grant(self.now);
        self.spread(news);
    }

    /// As `Client::forced`.
    fn forced(&mut self, ids: &[StoreId]) -> Done {
        self.event(|lane, _, fx| {
            let over = lane.holds().iter().filter(|hold| ids.contains(&hold.facts.id));
            let over: Vec<HoldNumber> = over.map(|hold| hold.number).collect();
            for hold in over {
                lane.gone(hold, fx);
                lane.forget_parked(hold, fx);
            }
        })
    }

    /// As `Client::close`, which looks at the lane once everybody can notice it.
    pub(super) fn close_lane(&mut self) -> Done {
        self.is_lane_closed = true;
        for release in self.event(|lane, now, fx| lane.close(now, fx))? {
            if !self.has(Mutant::CloseForgets) {
                self.release(release);
            }
        }
        Ok(())
    }
}
