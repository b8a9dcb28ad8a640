//! Conversion of errors of the PostgreSQL client and of the server to [`BackendError`].

use std::{io, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

/// The error of a function of the store that was called in another isolation level than the one in
/// which it is right.
const WRONG_ISOLATION: &str = "LC002";

/// Converts the error of a request. `doing` names the operation.
pub(crate) fn of_request(error: Error, doing: &str, address: &str) -> BackendError {
    with_hint(error, doing, address, hint_about)
}

/// Converts the error of a statement that creates the schema.
pub(crate) fn of_creation(error: Error, doing: &str, address: &str) -> BackendError {
    with_hint(error, doing, address, |code| match code.code() {
        "42501" => {
            "; grant the role CREATE on the database, or have an administrator run what \
             `PostgresBackend::schema_script` returns"
        }
        _ => hint_about(code),
    })
}

/// Converts the error of a statement that creates something in the schema.
pub(crate) fn of_migration(error: Error, doing: &str, address: &str) -> BackendError {
    with_hint(error, doing, address, |code| match code.code() {
        "42501" => {
            "; grant the role CREATE on the schema and let it own what is in it, or have an \
             administrator run what `PostgresBackend::schema_script` returns"
        }
        _ => hint_about(code),
    })
}

fn with_hint(
    error: Error,
    doing: &str,
    address: &str,
    hint_about: impl Fn(&SqlState) -> &'static str,
) -> BackendError {
    let Some(said) = error.as_db_error() else {
        let kind = match error.is_closed() || is_io(&error) {
            true => BackendErrorKind::Connection,
            false => BackendErrorKind::Protocol,
        };
        let message = format!("{doing} on PostgreSQL at {address} failed: {error}");
        return BackendError::new(kind, message).with_source(error);
    };
    let kind = kind_of(said);
    let message = format!(
        "{doing} on PostgreSQL at {address} failed: {}{}",
        said.message(),
        hint_about(said.code())
    );
    // A statement that fails is rolled back. The server reports the other errors when it ends a
    // connection, which may be after the commit.
    let is_rolled_back =
        said.parsed_severity() == Some(Severity::Error) && !may_come_after_the_end(said.code());
    let converted = BackendError::new(kind, message);
    let converted =
        if is_rolled_back { converted.not_applied() } else { converted.maybe_applied() };
    converted.with_source(error)
}

/// Converts the error of an attempt to connect. No request has been sent at that point.
pub(crate) fn of_connecting(error: Error, address: &str) -> BackendError {
    let (kind, said) = match error.as_db_error() {
        Some(said) => (kind_of(said), format!("{}{}", said.message(), hint_about(said.code()))),
        None if is_read_only(&error) => {
            (BackendErrorKind::ReadOnly, "the server is a replica".to_owned())
        }
        None if is_io(&error) || error.is_closed() => (BackendErrorKind::Connection, cause(&error)),
        None => (BackendErrorKind::Configuration, cause(&error)),
    };
    let message = format!("could not connect to PostgreSQL at {address}: {said}");
    BackendError::new(kind, message).not_applied().with_source(error)
}

/// The error for a server that takes writes, but not from this role.
pub(crate) fn role_is_read_only(address: &str) -> BackendError {
    let message = format!(
        "could not connect to PostgreSQL at {address}: it takes no writes from this role; set \
         default_transaction_read_only to off for the role, the database and the server"
    );
    BackendError::new(BackendErrorKind::ReadOnly, message).not_applied()
}

/// The error for a connection that did not open in time.
pub(crate) fn not_connected(address: &str, waited: Duration) -> BackendError {
    let message = format!("no connection to PostgreSQL at {address} within {waited:?}");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The error for a connection that nobody opens again.
pub(crate) fn abandoned(address: &str) -> BackendError {
    let message = format!(
        "the connection to PostgreSQL at {address} has ended with its runtime; create the backend \
         in a runtime that outlives it"
    );
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}

/// The error for a connection that was lost while the server carries out a request of it.
pub(crate) fn still_busy(address: &str) -> BackendError {
    let message = format!(
        "PostgreSQL at {address} still carries out a request of a connection that was lost"
    );
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}

/// The error for the name of a host that has no address.
pub(crate) fn not_looked_up(name: &str, error: &io::Error) -> BackendError {
    let message = format!("could not look up `{name}`, a host of PostgreSQL: {error}");
    BackendError::new(BackendErrorKind::Connection, message).not_applied()
}

/// The error for the name of a host whose addresses did not come in time.
pub(crate) fn not_looked_up_within(name: &str, waited: Duration) -> BackendError {
    let message = format!("could not look up `{name}`, a host of PostgreSQL, within {waited:?}");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The error for a request that was sent and not answered.
pub(crate) fn no_answer(doing: &str, address: &str, waited: Duration) -> BackendError {
    let message = format!("{doing}: no answer from PostgreSQL at {address} within {waited:?}");
    BackendError::new(BackendErrorKind::Timeout, message)
}

/// The error for a request that arrived after its undo.
pub(crate) fn undone(address: &str) -> BackendError {
    let message = format!("the request came to PostgreSQL at {address} after it had been undone");
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The error for a request that the server takes for a late one. The next one carries the time of
/// the server's own clock.
pub(crate) fn late(address: &str) -> BackendError {
    let message = format!(
        "the request came too late, or the clock of PostgreSQL at {address} was set; if this goes \
         on, the connections may lead to servers with different clocks"
    );
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// An answer that the function of `doing` never gives.
pub(crate) fn unexpected(doing: &str) -> BackendError {
    let message = format!("unexpected answer to {doing} from PostgreSQL");
    BackendError::new(BackendErrorKind::Protocol, message)
}

/// An error of a configuration that cannot work.
pub(crate) fn configuration(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Configuration, message).not_applied()
}

/// The error of a name that is in use as another kind of lock.
pub(crate) fn wrong_kind(kind: i64) -> BackendError {
    let used = match kind {
        1 => "an exclusive or fair lock",
        2 => "a read-write lock",
        3 => "a semaphore",
        4 => "a plain semaphore",
        _ => "a latch",
    };
    let message = format!("the name is in use as {used}");
    BackendError::new(BackendErrorKind::WrongType, message).not_applied()
}

/// Errors of the connection, of operators, of the machine and of the server itself: a pooler or the
/// server may report them when the transaction was committed already.
fn may_come_after_the_end(code: &SqlState) -> bool {
    matches!(code.code().get(..2), Some("08" | "57" | "58" | "XX"))
}

/// Returns `true` if a request needs another session: this one does not know a prepared statement,
/// so that a pooler must have replaced it, or its server takes no writes any more.
pub(crate) fn needs_another_session(error: &Error) -> bool {
    let codes = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::READ_ONLY_SQL_TRANSACTION];
    error.code().is_some_and(|code| codes.contains(code))
}

fn kind_of(said: &DbError) -> BackendErrorKind {
    use BackendErrorKind as Kind;
    let code = said.code();
    match code.code() {
        "25P03" | "25P04" | "57P01" | "57P02" | "57P05" => return Kind::Connection,
        // From a pooler that has lost the server, or waits for one.
        "57P03" | "55P03" | "40001" | "40P01" | "26000" => return Kind::Unavailable,
        "57014" => return Kind::Timeout,
        "25006" => return Kind::ReadOnly,
        "42501" => return Kind::Permission,
        "3D000" | "3F000" | "42883" | "42P01" | "0A000" | WRONG_ISOLATION => {
            return Kind::Configuration;
        }
        _ => {}
    }
    match code.code().get(..2) {
        Some("08") => Kind::Connection,
        Some("28") => Kind::Auth,
        // The server is overloaded, or its machine has failed: another may take over.
        Some("53" | "58") => Kind::Unavailable,
        _ => Kind::Other,
    }
}

/// A sentence about the cause, for the reader of the message.
fn hint_about(code: &SqlState) -> &'static str {
    match code.code() {
        "42501" => {
            "; the role needs USAGE on the schema, all rights to its tables, and USAGE, SELECT and \
             UPDATE on its sequence"
        }
        "3F000" | "42883" | "42P01" => "; the schema is not there, or not of this version",
        "55P03" => {
            "; what another transaction kept was waited for until the limit: 2 s, or two thirds of \
             `response_timeout` if that is less"
        }
        WRONG_ISOLATION => {
            "; set default_transaction_isolation to 'read committed' for the role of the locks"
        }
        "26000" | "42P05" => {
            "; a pooler has changed the session: give the server's own address with `listen_url`"
        }
        "53200" => "; give the server more memory, or raise max_locks_per_transaction",
        "53300" => "; raise max_connections, or give the backend fewer connections",
        _ => "",
    }
}

/// Errors of the client say `error connecting to server` and leave the rest to their source.
fn cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn is_io(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>())
}

fn is_read_only(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref::<io::Error>()).is_some_and(says_read_only)
}

/// The client says this with an error of its own if `target_session_attrs` finds no server. The
/// operating system may refuse the connection itself, with an error that has a number.
fn says_read_only(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_the_system_refuses_is_not_taken_for_a_replica() {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        let own = "database does not allow writes";
        assert!(says_read_only(&io::Error::new(io::ErrorKind::PermissionDenied, own)));
        for number in [EPERM, EACCES] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(!says_read_only(&error), "{error}");
        }
    }

    #[test]
    fn what_may_come_after_a_commit_is_not_taken_for_a_rollback() {
        for code in ["08006", "57014", "57P01", "58030", "XX000", "XX001"] {
            assert!(may_come_after_the_end(&SqlState::from_code(code)), "{code}");
        }
        for code in ["55P03", "40P01", "53200", "25006", "LC002", "26000", "42501"] {
            assert!(!may_come_after_the_end(&SqlState::from_code(code)), "{code}");
        }
    }
}
