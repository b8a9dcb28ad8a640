//! [`MeasuredAcquisition`] when nothing is measured: it is empty, and so is everything
//! that belongs to it.

use std::marker::PhantomData;

use super::{acquisition::Acquisition, outcome::Entrance};
use crate::time::Moment;

/// The beginning of an acquisition.
#[derive(Debug, Default)]
pub(crate) struct Beginning(());

/// An acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredAcquisition<'a>(PhantomData<&'a ()>);

/// The counts of a waiter.
#[derive(Debug)]
pub(super) struct WaiterMetrics<'a>(PhantomData<&'a ()>);

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
