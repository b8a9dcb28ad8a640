//! [`ClientMetrics`] and its companions when nothing is measured: all of them are empty.

use std::time::Duration;

use super::outcome::{BackendCall, RenewalEnd};
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

/// The counts of a waiter.
#[derive(Debug, Default)]
pub(super) struct WaiterMetrics(());

impl ClientMetrics {
    pub(super) fn new(_: Grouping) -> Self {
        Self
    }

    pub(super) fn acquiring<F>(&self, _: &LockName, _: Mode, acquisition: F) -> F {
        acquisition
    }

    pub(super) fn call<F>(&self, _: BackendCall, call: F) -> F {
        call
    }

    pub(super) fn nested(&self, _: &LockName, _: Mode) {}

    pub(super) fn began(&self, _: &LockName, _: Mode) {}

    pub(super) fn released(&self, _: &LockName, _: Mode, _: Duration) {}

    pub(super) fn lost(&self, _: &LockName, _: Mode, _: LossReason, _: Duration) {}

    pub(super) fn renewal(&self, _: RenewalEnd) {}

    pub(super) fn margin(&self, _: Duration, _: Duration) {}
}

impl WaiterMetrics {
    pub(super) fn waits(&mut self, _: &ClientMetrics, _: &LockName, _: Mode) {}

    pub(super) fn woken(&mut self) {}

    pub(super) fn asked(&mut self, _: &ClientMetrics, _: bool) {}
}
