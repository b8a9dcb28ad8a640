//! [`Prometheus`], for tests of the files in this folder.

mod prometheus;

pub use crate::prometheus::{Prometheus, Sample, free_port, promtool};
