//! The parts of an answer.

use lockcore::BackendError;
use tokio_postgres::{Row, types::FromSql};

use crate::error;

/// A field of an answer.
pub(crate) fn field<'a, T: FromSql<'a>>(
    row: &'a Row,
    at: usize,
    doing: &str,
) -> Result<T, BackendError> {
    row.try_get(at).map_err(|error| error::unexpected(doing).with_source(error))
}

/// An answer that consists of a code and a number.
pub(crate) fn answer(row: &Row, doing: &str) -> Result<(i32, i64), BackendError> {
    Ok((field(row, 0, doing)?, field::<Option<i64>>(row, 1, doing)?.unwrap_or_default()))
}

/// A count in an answer, capped at the greatest possible one.
pub(crate) fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}
