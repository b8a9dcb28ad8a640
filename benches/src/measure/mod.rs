//! Measurements: load, time, the server's commands, processes, and statistics of the samples.

pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod samples;
pub(crate) mod server;
pub(crate) mod stats;
