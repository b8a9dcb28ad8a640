//! The directory of a [`PostgresBackend`]: the names in use, and the records of clients.
//!
//! A walk goes through the names, or the ids, in their order. Each page is one statement, and so a
//! view of the database at one moment: a name that passes from a hold to a waiter is in it.

use std::time::Duration;

use lockcore::{
    BackendError, LockName,
    backend::{Cursor, Directory, Page, Start, StoredEntry, StoredKind, async_trait},
};
use tokio_postgres::{Row, types::Type};

use crate::{PostgresBackend, answer::field, calls::microseconds, connection::Parameter, error};

/// The names in one page.
const NAMES_AT_ONCE: usize = 500;

/// The records in one page. Each has up to 64 KiB.
const RECORDS_AT_ONCE: usize = 32;

/// The beginning of a cursor. The last entry of the page follows.
const AFTER_NAME: &str = "after name ";
const AFTER_CLIENT: &str = "after client ";

/// The entry that a page begins after. All entries come after the empty text.
fn after<'a>(start: &'a Start, word: &str) -> Result<&'a str, BackendError> {
    match start {
        Start::Beginning => Ok(""),
        Start::At(cursor) => cursor.as_str().strip_prefix(word).ok_or_else(|| cursor.refused()),
    }
}

/// The place where the walk goes on after a page with `count` entries, unless it is over.
fn next(count: usize, most: usize, word: &str, last: Option<&str>) -> Option<Cursor> {
    last.filter(|_| count >= most).map(|last| Cursor::new(format!("{word}{last}")))
}

impl PostgresBackend {
    /// Asks for a page after the entry `after`.
    async fn page(
        &self,
        doing: &str,
        sql: &str,
        after: &str,
        most: usize,
    ) -> Result<Vec<Row>, BackendError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 2] = [(&after, Type::TEXT), (&most, Type::INT8)];
        let answer = self.connection_at("").call(doing, sql, &parameters).await;
        answer.map_err(BackendError::not_applied)
    }
}

#[async_trait]
impl Directory for PostgresBackend {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        const DOING: &str = "listing names";
        let after = after(start, AFTER_NAME)?;
        let rows = self.page(DOING, &self.calls().names_in_use, after, NAMES_AT_ONCE).await?;
        let names: Vec<String> =
            rows.iter().map(|row| field(row, 0, DOING)).collect::<Result<_, _>>()?;
        let last = names.last().map(String::as_str);
        let next = next(names.len(), NAMES_AT_ONCE, AFTER_NAME, last);
        // Names that no lock can have are left out: another program must have stored them.
        let names = names.into_iter().filter_map(|name| LockName::new(name).ok());
        Ok(Page::new(names.collect(), next))
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let lifetime = microseconds(lifetime);
        let parameters: [Parameter<'_>; 3] =
            [(&id, Type::TEXT), (&record, Type::TEXT), (&lifetime, Type::INT8)];
        let connection = self.connection_at(id);
        let sql = &self.calls().put_client;
        connection.call("writing the record of a client", sql, &parameters).await.map(drop)
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        let parameters: [Parameter<'_>; 1] = [(&id, Type::TEXT)];
        let connection = self.connection_at(id);
        let sql = &self.calls().remove_client;
        connection.call("removing the record of a client", sql, &parameters).await.map(drop)
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        const DOING: &str = "listing clients";
        let after = after(start, AFTER_CLIENT)?;
        let rows = self.page(DOING, &self.calls().clients, after, RECORDS_AT_ONCE).await?;
        let entry = |row| Ok::<_, BackendError>((field(row, 0, DOING)?, field(row, 1, DOING)?));
        let entries: Vec<(String, String)> = rows.iter().map(entry).collect::<Result<_, _>>()?;
        let last = entries.last().map(|(id, _)| id.as_str());
        let next = next(entries.len(), RECORDS_AT_ONCE, AFTER_CLIENT, last);
        Ok(Page::new(entries, next))
    }

    async fn storage(
        &self,
        name: &LockName,
        _: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let parameters: [Parameter<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let connection = self.connection(name);
        let rows = connection.call(LOOKING, &self.calls().stored, &parameters).await;
        rows.map_err(BackendError::not_applied)?.iter().map(stored).collect()
    }
}

/// The name of the request in errors.
const LOOKING: &str = "looking at what is stored";

/// A row of a name, labelled with its table.
fn stored(row: &Row) -> Result<StoredEntry, BackendError> {
    let (table, id): (&str, &str) = (field(row, 0, LOOKING)?, field(row, 1, LOOKING)?);
    let kind = match table {
        "hold" => StoredKind::Hold,
        "place" => StoredKind::Queue,
        "semaphore" => StoredKind::Permits,
        "latch" => StoredKind::Latch,
        "waiter" => {
            let condition = LockName::new(id);
            StoredKind::Condition(condition.map_err(|_| error::unexpected(LOOKING))?)
        }
        "fence" => StoredKind::Fence,
        "proposed" => StoredKind::LastToken,
        _ => StoredKind::Request,
    };
    let key = if id.is_empty() { table.to_owned() } else { format!("{table} {id}") };
    let number: Option<i64> = field(row, 2, LOOKING)?;
    let left: Option<i64> = field(row, 3, LOOKING)?;
    let left = left.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
    let number = number.and_then(|number| u64::try_from(number).ok());
    Ok(StoredEntry::new(key, kind).with_number(number).with_left(left))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use lockcore::BackendErrorKind;

    use super::*;

    #[test]
    fn a_page_that_is_not_full_is_the_last_one() {
        assert_eq!(next(0, 2, AFTER_NAME, None), None);
        assert_eq!(next(1, 2, AFTER_NAME, Some("a")), None);
        let cursor = next(2, 2, AFTER_NAME, Some("a b\n")).unwrap();
        let start = Start::At(cursor);
        assert_eq!(after(&start, AFTER_NAME).unwrap(), "a b\n");
        assert_eq!(after(&start, AFTER_CLIENT).unwrap_err().kind(), BackendErrorKind::Other);
    }
}
