//! The servers of the tests of the metrics.
