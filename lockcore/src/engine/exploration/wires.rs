//! [`Call`] and [`Wire`]: requests, and what else is under way.

use std::time::Duration;

use smallvec::SmallVec;

use super::store::{Demand, Reply, StoreId};
use crate::{
    engine::{HoldNumber, ReleaseNumber},
    time::Moment,
};

/// The position of a request.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Leg<T> {
    /// On its way to the store.
    Sent,
    /// It has had its effect. The answer is on its way.
    Answered(T),
}

/// A request, and when it was sent.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Call {
    pub(super) request: Demand,
    pub(super) sent: Moment,
    pub(super) stage: Leg<Reply>,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// It certainly had no effect.
    NotApplied,
    /// It may have had an effect, or may still have one.
    Unknown,
}

/// Something that is under way.
#[derive(Clone, Debug, Hash)]
pub(super) enum Wire {
    /// As `ReleaseWork`.
    Release {
        /// Set until the first answer.
        number: Option<ReleaseNumber>,
        id: StoreId,
        /// The moment after which it is not worth trying.
        until: Moment,
        /// `None` while it pauses after a failure.
        stage: Option<Leg<()>>,
        sent: Moment,
        is_repeated: bool,
    },
    /// A renewal of the watchdog.
    Renewal { hold: HoldNumber, id: StoreId, lease: Duration, sent: Moment, stage: Leg<bool> },
    /// As `Held::extend`.
    Extension {
        task: usize,
        hold: HoldNumber,
        id: StoreId,
        lease: Duration,
        sent: Moment,
        stage: Leg<bool>,
    },
    /// As `Client::store_count`: the count that was sent, if one was.
    StoreCount { hold: HoldNumber, count: Option<u32>, sent: Moment, stage: Leg<()> },
    /// A request whose answer nobody waits for.
    Orphan(Demand),
    /// A forced release of this client has had its effect on these.
    Forced(SmallVec<[StoreId; 2]>),
}

impl Wire {
    /// The count of a hold has to be told to the store.
    pub(super) fn store_count(hold: HoldNumber, sent: Moment) -> Self {
        Self::StoreCount { hold, count: None, sent, stage: Leg::Sent }
    }

    /// The hold that its answer is for.
    pub(super) fn hold(&self) -> Option<HoldNumber> {
        match self {
            Self::Renewal { hold, .. }
            | Self::Extension { hold, .. }
            | Self::StoreCount { hold, .. } => Some(*hold),
            _ => None,
        }
    }

    /// Returns `true` if it keeps other requests with a count of this hold waiting.
    pub(super) fn stores_count_of(&self, hold: HoldNumber) -> bool {
        matches!(self, Self::StoreCount { hold: other, count: Some(_), .. } if *other == hold)
    }

    pub(super) fn is_extension_by(&self, task: usize) -> bool {
        matches!(self, Self::Extension { task: other, .. } if *other == task)
    }

    /// Returns `true` if it waits for the store, or for its answer.
    pub(super) fn is_under_way(&self) -> bool {
        match self {
            Self::Release { stage, .. } => stage.is_some(),
            Self::StoreCount { count, .. } => count.is_some(),
            Self::Renewal { .. } | Self::Extension { .. } | Self::Forced(_) => true,
            // Nobody waits for its answer.
            Self::Orphan(_) => false,
        }
    }

    /// Returns `true` if the store has answered.
    pub(super) fn is_answered(&self) -> bool {
        match self {
            Self::Release { stage, .. } => matches!(stage, Some(Leg::Answered(()))),
            Self::Renewal { stage, .. } | Self::Extension { stage, .. } => {
                matches!(stage, Leg::Answered(_))
            }
            Self::StoreCount { stage, .. } => matches!(stage, Leg::Answered(())),
            Self::Forced(_) => true,
            Self::Orphan(_) => false,
        }
    }

    /// The time when it was sent, if it is under way. After a tick it is no longer waited for.
    pub(super) fn sent(&self) -> Option<Moment> {
        match self {
            Self::Release { sent, .. }
            | Self::StoreCount { sent, .. }
            | Self::Renewal { sent, .. }
            | Self::Extension { sent, .. } => self.is_under_way().then_some(*sent),
            Self::Orphan(_) | Self::Forced(_) => None,
        }
    }
}
