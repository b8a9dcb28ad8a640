//! [`Prometheus`], for tests of what is in this folder.

mod prometheus;

pub use crate::prometheus::{Prometheus, Sample, free_port, promtool};
