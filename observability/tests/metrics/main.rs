//! Every metric, with every label.

mod acquiring;
mod backend;
mod cancelling;
mod figures;
mod groups;
mod holding;
mod recorders;
