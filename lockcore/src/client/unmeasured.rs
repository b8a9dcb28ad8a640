//! [`ClientMetrics`] and its companions when nothing is measured: all of them are empty.

use std::{
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::{
    acquire::Acquisition,
    outcome::{BackendCall, Entrance, RenewalEnd},
};
use crate::{LockName, LossReason, Mode, time::Moment};

/// The groups of names that are measured separately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouping(());

/// The metrics of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientMetrics;

/// Any answer of the backend.
pub(crate) trait MeasuredAnswer {}

impl<T> MeasuredAnswer for T {}

/// The beginning of an acquisition.
#[derive(Debug, Default)]
pub(crate) struct Beginning(());

/// An acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredAcquisition<'a>(PhantomData<&'a ()>);

/// The counts of a waiter.
#[derive(Debug)]
pub(super) struct WaiterMetrics<'a>(PhantomData<&'a ()>);

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

    pub(super) fn try_publish(&self) {}

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

impl<'a> MeasuredAcquisition<'a> {
    pub(super) fn new(Acquisition { beginning: Beginning(()), .. }: &'a Acquisition) -> Self {
        Self(PhantomData)
    }

    pub(super) fn during<F>(self, acquiring: F) -> F {
        acquiring
    }

    pub(super) fn waiter(self, _: Moment) -> WaiterMetrics<'a> {
        WaiterMetrics(PhantomData)
    }
}

impl WaiterMetrics<'_> {
    pub(super) fn waits(&mut self) {}

    pub(super) fn woken(&mut self) {}

    pub(super) fn refused(&mut self) {}

    pub(super) fn begins(&mut self, _: Entrance, _: bool, _: Moment) {}
}
