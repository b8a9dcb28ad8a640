//! The engine decides; it does nothing. It consists of pure state machines: an event and the time
//! go in, and actions come out. It has no async, no runtime, no backend, no clock, no locks and no
//! logging, so that every order of events can be tried, and is: see `exploration/`.
//!
//! [`Lane`] is the protocol. Everything else here is a part of it that has a rule of its own.

mod hold;
mod lane;
mod limits;
mod queue;
mod schedule;
mod turns;

#[cfg(test)]
mod exploration;

pub(crate) use self::{
    hold::{Grant, Growth, HoldNumber, MAX_HOLD_COUNT, Offer, Phase, ReleaseNumber},
    lane::{Effect, Effects, Hold, Keeping, Lane, Nesting, Parting, Release, Step},
    limits::WaiterLimits,
    queue::{Asker, Ticket},
    schedule::{Appointment, Schedule},
    turns::HandOver,
};
