//! Who waits for whom: what a client writes of itself, and what follows from the records of all.
//! No I/O: records go in, waits and cycles come out.

mod description;
mod graph;
mod record;
mod report;

pub use self::{
    description::ClientDescription,
    report::{ClientInfo, CycleKind, HeldBeside, WaitCycle, WaitLink, Waiting, Waits},
};
pub(crate) use self::{
    record::{ClientRecord, HoldRecord, WaitRecord, is_client_id, site_text},
    report::{Candidate, Reading},
};
