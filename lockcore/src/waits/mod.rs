//! Who waits for whom: the record that a client writes about itself, and the conclusions from the
//! records of all clients. There is no I/O: records go in, and waits and cycles come out.

mod account;
mod description;
mod graph;
mod reading;
mod record;
mod report;

pub(crate) use self::{
    account::Account,
    reading::{Candidate, Reading},
    record::{ClientRecord, HoldRecord, WaitRecord, is_client_id, site_text},
};
pub use self::{
    description::ClientDescription,
    report::{ClientInfo, CycleKind, HeldBeside, WaitCycle, WaitLink, Waiting, Waits},
};
