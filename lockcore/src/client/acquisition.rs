//! [`Acquisition`]: what the user asked for, and what follows from that.

use std::{panic::Location, sync::Arc};

use tracing::Span;

use super::{
    lanes::HoldFacts,
    measured_acquisition::{Beginning, MeasuredAcquisition},
    shared::Client,
};
use crate::{
    LockError, LockName, Mode, Owner,
    backend::{AcquireRequest, Capabilities, HoldId, Replicas},
    engine::Asker,
    task::TaskKey,
    time::{Lease, Moment},
};

/// The acquisition that the user asked for.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) client: Arc<Client>,
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) lease: Lease,
    /// Given with `replicas`.
    pub(crate) replicas: Option<Replicas>,
    /// The owner given with `owned_by`.
    pub(crate) owner: Option<Owner>,
    pub(crate) site: &'static Location<'static>,
    /// For the metrics.
    pub(crate) beginning: Beginning,
}

impl Acquisition {
    /// The owner of the acquisition, unless it gets a fresh one.
    pub(super) fn known_owner(&self) -> Option<Owner> {
        self.owner.clone().or_else(Owner::current)
    }

    /// The asker that stands for this acquisition in its lane.
    pub(super) fn asker(&self, owner: Option<Owner>, is_patient: bool) -> Asker {
        let has_fresh_owner = owner.is_none();
        let owner = owner.unwrap_or_else(Owner::new);
        let (mode, takes_over) = (self.mode, self.takes_over(&owner));
        let fails_alone = self.replicas.is_some();
        let has_limit = false;
        Asker { owner, has_fresh_owner, mode, is_patient, takes_over, fails_alone, has_limit }
    }

    pub(super) fn measured(&self) -> MeasuredAcquisition<'_> {
        MeasuredAcquisition::new(self)
    }

    /// The span of an acquisition, if anybody listens.
    pub(super) fn span(&self, asker: &Asker) -> Option<Span> {
        let span = tracing::debug_span!(
            "lockcore.acquire", lock = %self.name, owner = %asker.owner, mode = %self.mode,
            wait = tracing::field::Empty, token = tracing::field::Empty,
        );
        Some(span).filter(|span| !span.is_disabled())
    }

    /// Returns `true` if `owner` could take over the hold of another task. It could not if it is
    /// named, because its holds are stored under its name; with a fixed lease, which counts from
    /// its own beginning; or if it asks for replicas, since fewer may have acknowledged the hold.
    fn takes_over(&self, owner: &Owner) -> bool {
        self.client.lanes.hand_over().is_some()
            && self.mode == Mode::Exclusive
            && owner.name().is_none()
            && matches!(self.lease, Lease::Renewed(_))
            && self.replicas.is_none()
    }

    /// Returns `true` if the backend may grant a request of `asker` after having refused it.
    /// Excluded are named owners, whose holds are stored under their names; fixed leases, which
    /// count from their own beginning; and replicas, since none would have acknowledged the hold. A
    /// hold granted this way lasts as long as the place, which must not be longer than a lease.
    pub(super) fn takes_direct_grants(&self, asker: &Asker) -> bool {
        let place = self.client.settings.queue_timeout;
        self.mode == Mode::Fair
            && asker.is_patient
            && asker.owner.name().is_none()
            && matches!(self.lease, Lease::Renewed(lease) if place <= lease)
            && self.replicas.is_none()
            && self.client.backend.capabilities().contains(Capabilities::DIRECT_GRANT)
    }

    pub(super) fn closed(&self) -> LockError {
        LockError::Closed { lock: self.name.clone() }
    }

    /// The facts of a hold of this acquisition.
    pub(super) fn facts(
        &self,
        id: HoldId,
        replicas: Option<u32>,
        acquired_at: Moment,
    ) -> HoldFacts {
        let (site, task) = (self.site, TaskKey::current());
        HoldFacts {
            id,
            replicas,
            site,
            task,
            acquired_at,
            span: None,
            watch: None,
            kept: None,
            renewal_fails: false,
        }
    }

    /// Makes the facts of a hold that is handed over those of this acquisition.
    pub(super) fn take_over(&self, facts: &mut HoldFacts, now: Moment) {
        (facts.site, facts.task, facts.acquired_at) = (self.site, TaskKey::current(), now);
    }

    /// A request of this acquisition.
    pub(super) fn request(&self, id: HoldId, is_patient: bool) -> AcquireRequest {
        let queues = is_patient && matches!(self.mode, Mode::Fair | Mode::Write);
        let queue = queues.then_some(self.client.settings.queue_timeout);
        AcquireRequest::new(self.name.clone(), id, self.lease.duration())
            .mode(self.mode)
            .queue(queue)
            .replicas(self.replicas)
    }
}
