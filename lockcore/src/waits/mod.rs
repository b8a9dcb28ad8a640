//! Who waits for whom: what a client writes of itself, and what follows from the records of all.
//! No I/O: records go in, waits and cycles come out.

mod account;
mod description;
mod graph;
mod record;
mod report;

pub(crate) use self::{
    account::Account,
    record::{ClientRecord, HoldRecord, WaitRecord, is_client_id, site_text},
    report::{Candidate, Reading},
};
pub use self::{
    description::ClientDescription,
    report::{ClientInfo, CycleKind, HeldBeside, WaitCycle, WaitLink, Waiting, Waits},
};
