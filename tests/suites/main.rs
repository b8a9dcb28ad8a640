//! The workspace's own suites: one binary, a module a subject.

mod memory_conformance;
