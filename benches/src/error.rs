//! Errors: a message for the person who runs the benchmark.

use std::io;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// An error with a message.
pub(crate) fn failure(message: impl Into<String>) -> Error {
    io::Error::other(message.into()).into()
}
