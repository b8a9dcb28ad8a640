//! The directory of a [`RedisBackend`]: the names in use, and the records of clients.
//!
//! Names are found with `SCAN`, a hundred keys at a time, and judged by `names.lua` in the same
//! step. On a cluster, this is done at one node after the other: see
//! [`cluster::walk`](crate::cluster::walk).
//!
//! A cursor of `SCAN` belongs to one process of the server. Another process would skip keys
//! silently. So a cursor of this backend also names the process, and a walk fails if another one
//! answers.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{Cursor, Directory, Page, Start, StoredEntry, async_trait},
};
use redis::Value;

use crate::{
    RedisBackend,
    backend::Deployment,
    cluster::walk,
    error,
    reply::{hex, text},
    script::{self, ScriptCall},
    server::CommandConnection,
    storage::Stored,
    wire::millis,
};

/// The approximate number of keys in one step, which takes the server less than a millisecond.
const KEYS_AT_ONCE: u32 = 100;

/// The most records in one page. Each has up to 64 KiB.
const RECORDS_AT_ONCE: u32 = 32;

/// How long the ids of clients are kept, which is longer than any record.
const IDS_TTL: Duration = Duration::from_secs(2 * 60 * 60);

/// The first words of cursors.
const OF_SERVER: &str = "server";
const OF_CLIENT: &str = "client";

#[async_trait]
impl Directory for RedisBackend {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let page = match self.deployment() {
            Deployment::Cluster(cluster) => walk::names(cluster, self.key_prefix(), start).await,
            Deployment::Single(server) => {
                let connection = server.connection().await?;
                names_of_server(&connection, self.key_prefix(), start).await
            }
        };
        page.map_err(|error| with_rights(error, "+scan, and on a cluster +cluster|nodes"))
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let keys = ClientKeys::of(self);
        let args = vec![
            id.into(),
            record.into(),
            millis(lifetime).to_string(),
            keys.prefix.clone(),
            millis(IDS_TTL).to_string(),
        ];
        let call = keys.call(&script::CLIENT_PUT, Some(id), args);
        let put = self.call(&call, |reply| crate::reply::flag(&reply, "put_client").map(drop));
        put.await.map_err(with_rights_to_records)
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        let call = ClientKeys::of(self).call(&script::CLIENT_REMOVE, Some(id), vec![id.into()]);
        let removed = self.call(&call, |reply| crate::reply::flag(&reply, "remove_client"));
        removed.await.map(drop).map_err(with_rights_to_records)
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let after = match start {
            Start::Beginning => String::new(),
            Start::At(cursor) => match words(cursor).as_slice() {
                [OF_CLIENT, id] if is_hex(id) => (*id).to_owned(),
                _ => return Err(cursor.refused()),
            },
        };
        let keys = ClientKeys::of(self);
        let args = vec![after, RECORDS_AT_ONCE.to_string(), keys.prefix.clone()];
        let call = keys.call(&script::CLIENTS, None, args);
        self.call(&call, clients_page).await.map_err(with_rights_to_records)
    }

    /// A server cannot list the conditions of a name without looking at all of its keys.
    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let stored = Stored::new(&self.keys(name)?, conditions);
        let looked = self.call(&stored.call(), |reply| stored.entries(reply)).await;
        looked.map_err(|error| with_rights(error, "+exists +type +pttl +hget +hkeys"))
    }
}

/// The keys of the records of clients, all in one slot.
struct ClientKeys {
    /// The ids.
    ids: String,
    /// The prefix of the keys of the records, which the id follows.
    prefix: String,
}

impl ClientKeys {
    fn of(backend: &RedisBackend) -> Self {
        let tag = format!("{{{}clients}}", backend.key_prefix());
        Self { ids: format!("lockcore_clients:{tag}"), prefix: format!("lockcore_client:{tag}:") }
    }

    fn call(
        &self,
        script: &'static script::LuaScript,
        id: Option<&str>,
        args: Vec<String>,
    ) -> ScriptCall {
        let record = id.map(|id| format!("{}{id}", self.prefix));
        let optional = usize::from(record.is_some());
        let keys = [self.ids.clone()].into_iter().chain(record).collect();
        ScriptCall { script, keys, args, optional }
    }
}

fn clients_page(reply: Value) -> Result<Page<(String, String)>, BackendError> {
    let unexpected = || error::unexpected("clients");
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [last, Value::Array(records)] = parts.as_slice() else { return Err(unexpected()) };
    let Value::BulkString(last) = last else { return Err(unexpected()) };
    // Other programs can write to these keys. Bytes that are not UTF-8 are replaced, and the parser
    // of the record then rejects it.
    let lossy = |value: &Value| match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    };
    let entry = |entry: &[Value]| match entry {
        [id, record] => Some((lossy(id)?, lossy(record)?)),
        _ => None,
    };
    let entries = records.chunks(2).map(entry).collect::<Option<_>>().ok_or_else(unexpected)?;
    // Other programs may have written an id of any bytes.
    let next = (!last.is_empty()).then(|| Cursor::new(format!("{OF_CLIENT} {}", hex(last))));
    Ok(Page::new(entries, next))
}

fn is_hex(text: &str) -> bool {
    !text.is_empty()
        && text.len().is_multiple_of(2)
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A page of the names at a single server.
async fn names_of_server(
    connection: &CommandConnection,
    prefix: &str,
    start: &Start,
) -> Result<Page<LockName>, BackendError> {
    let process = connection.process();
    let from = match start {
        Start::Beginning => 0,
        Start::At(cursor) => match words(cursor).as_slice() {
            [OF_SERVER, before, from] => {
                let from = from.parse().map_err(|_| cursor.refused())?;
                if *before != process {
                    let message = "another server answers than the one where the walk began, or it \
                                   was restarted; begin the walk again";
                    return Err(begin_again(message));
                }
                from
            }
            _ => return Err(cursor.refused()),
        },
    };
    let Scanned { entries, next } = scan(connection, prefix, from).await?;
    let next = next.map(|next| Cursor::new(format!("{OF_SERVER} {process} {next}")));
    Ok(Page::new(entries, next))
}

/// A step of `SCAN`.
pub(crate) struct Scanned {
    pub(crate) entries: Vec<LockName>,
    /// The cursor of the server, unless this was the last step.
    pub(crate) next: Option<u64>,
}

/// Looks at the next keys of a server.
pub(crate) async fn scan(
    connection: &CommandConnection,
    prefix: &str,
    from: u64,
) -> Result<Scanned, BackendError> {
    let args = vec![from.to_string(), KEYS_AT_ONCE.to_string(), prefix.to_owned()];
    let call = ScriptCall { script: &script::NAMES, keys: Vec::new(), args, optional: 0 };
    let reply = connection.call(&call).await?;
    connection.decode(reply, scanned)
}

fn scanned(reply: Value) -> Result<Scanned, BackendError> {
    let unexpected = || error::unexpected("names");
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [next, Value::Array(names)] = parts.as_slice() else { return Err(unexpected()) };
    let next: u64 = text(next).and_then(|next| next.parse().ok()).ok_or_else(unexpected)?;
    // Redisson's names may be longer than allowed here, and need not be text. Nothing can be asked
    // about such names here.
    let name = |name: &Value| LockName::new(text(name)?).ok();
    Ok(Scanned {
        entries: names.iter().filter_map(name).collect(),
        next: (next != 0).then_some(next),
    })
}

/// The words of a cursor.
pub(crate) fn words(cursor: &Cursor) -> Vec<&str> {
    cursor.as_str().split(' ').collect()
}

/// The error for a walk that cannot go on without missing names.
pub(crate) fn begin_again(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, message.into()).not_applied()
}

fn with_rights_to_records(error: BackendError) -> BackendError {
    with_rights(error, "~lockcore_* +set +get +del +exists +pexpire +zadd +zrem +zrangebylex")
}

/// Adds the required rights to the error if one is missing.
fn with_rights(error: BackendError, rights: &str) -> BackendError {
    if error.kind() != BackendErrorKind::Permission {
        return error;
    }
    let message = format!(
        "the user has no right to the directory; grant the user the rights that it needs ({rights})"
    );
    BackendError::new(BackendErrorKind::Permission, message).not_applied().with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_step_may_find_nothing_and_go_on() {
        let found = scanned(Value::Array(vec![bulk("17"), Value::Array(vec![])])).unwrap();
        assert_eq!((found.entries.len(), found.next), (0, Some(17)));
        let names = Value::Array(vec![bulk("a"), bulk(""), Value::BulkString(vec![0xff])]);
        let found = scanned(Value::Array(vec![bulk("0"), names])).unwrap();
        assert_eq!((found.entries, found.next), (vec![LockName::new("a").unwrap()], None));
        for reply in [Value::Nil, Value::Array(vec![bulk("x"), Value::Array(vec![])])] {
            assert_eq!(scanned(reply).err().unwrap().kind(), BackendErrorKind::Protocol);
        }
    }

    #[test]
    fn a_page_of_records_goes_on_after_the_last_id_that_was_looked_at() {
        let records = Value::Array(vec![bulk("a"), bulk("{}")]);
        let page = clients_page(Value::Array(vec![bulk("b"), records.clone()])).unwrap();
        assert_eq!(page.entries, [("a".to_owned(), "{}".to_owned())]);
        assert_eq!(page.next.unwrap().as_str(), "client 62");
        assert_eq!(clients_page(Value::Array(vec![bulk(""), records])).unwrap().next, None);
        let garbage = Value::Array(vec![bulk("a"), Value::BulkString(vec![0xff, b'{'])]);
        let last = Value::BulkString(vec![0xff]);
        let page = clients_page(Value::Array(vec![last, garbage])).unwrap();
        assert_eq!(page.entries, [("a".to_owned(), "\u{fffd}{".to_owned())]);
        assert_eq!(page.next.unwrap().as_str(), "client ff");
        let odd = Value::Array(vec![bulk("a")]);
        assert!(clients_page(Value::Array(vec![bulk(""), odd])).is_err());
    }
}
