//! [`ClientMetrics`] when nothing is measured: it is empty.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::outcome::{BackendCall, Entrance, RenewalEnd};
use crate::{LockName, LossReason, Mode};

/// The groups of names that are measured separately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouping(());

/// The metrics of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientMetrics;

/// Any answer of the backend.
pub(crate) trait MeasuredAnswer {}

impl<T> MeasuredAnswer for T {}

impl ClientMetrics {
    pub(super) fn new(_: Grouping, _: impl Fn(), _: &Arc<AtomicBool>) -> Self {
        Self
    }

    pub(super) fn has_entries(&self) -> bool {
        false
    }

    pub(super) fn is_due(&self) -> bool {
        false
    }

    pub(super) fn is_urgent(&self) -> bool {
        false
    }

    pub(super) fn publish(&self) {}

    pub(super) async fn publish_apart(self) {}

    pub(super) async fn publish_all(&self) {}

    pub(super) fn call<F>(&self, _: BackendCall, call: F) -> F {
        call
    }

    pub(super) fn nested(&self, _: &LockName, _: Mode) {}

    pub(super) fn began(&self, _: &LockName, _: Mode, _: Entrance, _: Duration) {}

    pub(super) fn released(&self, _: &LockName, _: Mode, _: Duration) {}

    pub(super) fn lost(&self, _: &LockName, _: Mode, _: LossReason, _: Duration) {}

    pub(super) fn renewal(&self, _: RenewalEnd) {}

    pub(super) fn margin(&self, _: Duration, _: Duration) {}
}
