//! Conversion of errors of the redis crate and of the server to [`BackendError`].

use std::fmt::Display;

use lockcore::{BackendError, BackendErrorKind};
use redis::{ErrorKind, RedisError};

/// Converts the error of a request on an open connection. `doing` names the operation.
pub(crate) fn of_request(error: RedisError, doing: &str) -> BackendError {
    converted(error, format!("{doing} on Redis failed"))
}

/// Converts the error of a request to the `node` of a cluster.
pub(crate) fn of_node(error: RedisError, doing: &str, node: impl Display) -> BackendError {
    let message = match error.code() {
        Some("CLUSTERDOWN") => format!(
            "{doing} on Redis failed: the cluster of {node} does not serve; it has too few \
             primaries, or slots without one, see CLUSTER INFO there"
        ),
        _ => format!("{doing} on Redis at {node} failed"),
    };
    converted(error, message)
}

fn converted(error: RedisError, message: String) -> BackendError {
    let (kind, applied) = classify(&error);
    let message = match kind {
        BackendErrorKind::WrongType => {
            format!("{message}: the name is in use as another kind of lock, or for something else")
        }
        _ if error.code() == Some("NOAUTH") => {
            format!("{message}: the connection is not logged in any more")
        }
        _ => message,
    };
    let mapped = BackendError::new(kind, message);
    let mapped = if applied == Applied::No { mapped.not_applied() } else { mapped };
    mapped.with_source(error)
}

/// Converts the error of an attempt to connect. No request has been sent at that point.
pub(crate) fn of_connecting(error: RedisError, address: &str) -> BackendError {
    BackendError::new(kind_at_opening(&error), format!("could not connect to Redis at {address}"))
        .not_applied()
        .with_source(error)
}

/// Converts the error of the first request on a new connection, which shows whether the server
/// needs credentials. It has no effect.
pub(crate) fn of_first_request(error: RedisError, doing: &str) -> BackendError {
    BackendError::new(kind_at_opening(&error), format!("{doing} on Redis failed"))
        .not_applied()
        .with_source(error)
}

/// A connection that was never logged in lacks credentials, and the next one would lack them, too.
fn kind_at_opening(error: &RedisError) -> BackendErrorKind {
    match error.code() {
        Some("NOAUTH") => BackendErrorKind::Auth,
        _ => classify(error).0,
    }
}

/// Converts the text of an error that a script returned for one of several holds.
pub(crate) fn of_text(text: &str) -> BackendError {
    let kind = kind_of_message(text).unwrap_or(BackendErrorKind::Other);
    BackendError::new(kind, format!("Redis refused the request: {text}")).not_applied()
}

/// The error if `doing` something has panicked. tokio panics on a runtime without I/O or timers.
pub(crate) fn panicked(doing: &str) -> BackendError {
    let message = format!("{doing} panicked; the runtime needs I/O and timers (`enable_all`)");
    BackendError::new(BackendErrorKind::Configuration, message).not_applied()
}

/// A reply that the script of `doing` never returns.
pub(crate) fn unexpected(doing: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Protocol, format!("unexpected reply to {doing} from Redis"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applied {
    No,
    Unknown,
}

fn classify(error: &RedisError) -> (BackendErrorKind, Applied) {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => (BackendErrorKind::Timeout, Applied::Unknown),
        ErrorKind::Io => (BackendErrorKind::Connection, Applied::Unknown),
        ErrorKind::AuthenticationFailed => (BackendErrorKind::Auth, Applied::No),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            (BackendErrorKind::Configuration, Applied::No)
        }
        // The redis crate reports a connection that ended within a reply as a parse error.
        ErrorKind::Parse if error.to_string().contains("end of input") => {
            (BackendErrorKind::Connection, Applied::Unknown)
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (BackendErrorKind::Protocol, Applied::Unknown)
        }
        // The server has replied. Scripts check before they write, and a command that fails does
        // nothing, so an error means no effect.
        _ => {
            let text = text_of(error);
            (kind_of_message(&text).unwrap_or(BackendErrorKind::Other), Applied::No)
        }
    }
}

fn text_of(error: &RedisError) -> String {
    format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
}

/// Returns `true` if the connection has to be given up after this error of a request: it is broken,
/// it does not answer, its answers cannot be trusted, the server says that it is not the place for
/// locks, or the connection is not logged in any more.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    use BackendErrorKind::{Connection, Protocol, Timeout};
    matches!(classify(error).0, Connection | Timeout | Protocol) || says_not_here(&text_of(error))
}

/// Returns `true` if a server answers with this error because it is not the primary, or not any
/// more. Another server may have the address by now.
pub(crate) fn says_not_here(text: &str) -> bool {
    find_code(text).is_some_and(|code| ["READONLY", "MASTERDOWN", "LOADING"].contains(&code))
}

/// Returns `true` if a node of a cluster has refused to select a database.
pub(crate) fn is_of_cluster_database(error: &RedisError) -> bool {
    text_of(error).contains("SELECT is not allowed in cluster mode")
}

/// Returns `true` if a node of a cluster answers with this error because it is not the right place,
/// or not now. The map of the cluster may be out of date.
pub(crate) fn is_of_cluster(error: &RedisError) -> bool {
    use BackendErrorKind::{Configuration, ReadOnly, Unavailable};
    matches!(classify(error).0, Unavailable | ReadOnly | Configuration)
}

/// Returns `true` if a script has met a key whose slot is not on this node of a cluster, or on its
/// way there or away, or a cluster that does not serve.
pub(crate) fn is_of_slot(text: &str) -> bool {
    let hindrances = ["non local key", "slot not served", "the cluster is down"];
    hindrances.iter().any(|hindrance| text.contains(hindrance))
}

/// Returns `true` if the server refused a whole call because of one of its keys, without running
/// it: the user has no right to the key, or the keys belong to different servers of a cluster. A
/// call for each name fails only where it has to.
pub(crate) fn is_of_one_key(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOPERM" | "CROSSSLOT"))
}

const CODES: [(&str, BackendErrorKind); 20] = [
    // The connection is not logged in any more, as behind a proxy that has another one to the
    // server by now. The next one is logged in, or fails with an error of its own.
    ("NOAUTH", BackendErrorKind::Connection),
    ("WRONGPASS", BackendErrorKind::Auth),
    ("NOPERM", BackendErrorKind::Permission),
    ("READONLY", BackendErrorKind::ReadOnly),
    ("OOM", BackendErrorKind::OutOfMemory),
    ("WRONGTYPE", BackendErrorKind::WrongType),
    ("LOADING", BackendErrorKind::Unavailable),
    ("BUSY", BackendErrorKind::Unavailable),
    ("TRYAGAIN", BackendErrorKind::Unavailable),
    ("CLUSTERDOWN", BackendErrorKind::Unavailable),
    ("MASTERDOWN", BackendErrorKind::Unavailable),
    ("NOREPLICAS", BackendErrorKind::Unavailable),
    ("MISCONF", BackendErrorKind::Unavailable),
    ("UNKILLABLE", BackendErrorKind::Unavailable),
    ("UNBLOCKED", BackendErrorKind::Unavailable),
    ("MOVED", BackendErrorKind::Configuration),
    ("ASK", BackendErrorKind::Configuration),
    ("CROSSSLOT", BackendErrorKind::Configuration),
    ("NOPROTO", BackendErrorKind::Configuration),
    ("EXECABORT", BackendErrorKind::Other),
];

/// Finds the error code in a message. It is usually the first word. Servers before 7.0 wrap the
/// error of a script's command into a message that has the code further back.
fn find_code(text: &str) -> Option<&'static str> {
    let code_of = |word: &str| CODES.iter().map(|(code, _)| *code).find(|code| *code == word);
    text.split([' ', ':', '-', '\'', '"']).filter(|word| !word.is_empty()).find_map(code_of)
}

/// Finds the kind of the error that a message is about.
fn kind_of_message(text: &str) -> Option<BackendErrorKind> {
    if let Some(code) = find_code(text) {
        return CODES.iter().find(|(listed, _)| *listed == code).map(|(_, kind)| *kind);
    }
    if text.contains("max number of clients") || is_of_slot(text) {
        return Some(BackendErrorKind::Unavailable);
    }
    if text.contains("DB index is out of range") {
        return Some(BackendErrorKind::Configuration);
    }
    // Since Redis 7.0, the code is missing if a command of a script lacks a right.
    let refusals = ["can't run this command", "no permissions", "can't access", "ACL failure"];
    refusals.iter().any(|refusal| text.contains(refusal)).then_some(BackendErrorKind::Permission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_found_wherever_the_server_puts_it() {
        for (text, kind) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                BackendErrorKind::OutOfMemory,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: \
                 WRONGTYPE Operation against a key",
                BackendErrorKind::WrongType,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                BackendErrorKind::Permission,
            ),
            (
                "ERR ACL failure in script: No permissions to access a key",
                BackendErrorKind::Permission,
            ),
            ("READONLY You can't write against a read only replica.", BackendErrorKind::ReadOnly),
            (
                "ERR Script attempted to access a non local key in a cluster node script: f_1",
                BackendErrorKind::Unavailable,
            ),
        ] {
            assert_eq!(kind_of_message(text), Some(kind), "{text}");
        }
        let database = kind_of_message("ERR DB index is out of range");
        assert_eq!(database, Some(BackendErrorKind::Configuration));
        assert_eq!(kind_of_message("ERR something else"), None);
    }

    #[test]
    fn a_truncated_reply_is_a_broken_connection() {
        for truncated in [&b"*2\r\n:1\r\n$16\r\n17000"[..], b"*2\r\n:1\r", b"*2\r\n", b"$5\r\nab"] {
            let error = of_request(redis::parse_redis_value(truncated).unwrap_err(), "acquire");
            assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
            assert!(error.is_outcome_unknown() && error.is_retryable());
        }
    }

    #[test]
    fn a_connection_ends_if_it_is_not_logged_in_any_more_or_leads_to_a_replica() {
        for (reply, ends) in [
            ("-NOAUTH Authentication required.\r\n", true),
            ("-READONLY You can't write against a read only replica.\r\n", true),
            ("-NOPERM this user has no permissions to access one of the keys\r\n", false),
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", false),
        ] {
            let error = redis::parse_redis_value(reply.as_bytes()).unwrap().extract_error();
            assert_eq!(ends_connection(&error.unwrap_err()), ends, "{reply}");
        }
    }

    #[test]
    fn an_open_connection_lost_its_login_and_a_new_one_lacks_credentials() {
        let refused = || {
            let reply = redis::parse_redis_value(b"-NOAUTH Authentication required.\r\n").unwrap();
            reply.extract_error().unwrap_err()
        };
        for error in [of_request(refused(), "acquire"), of_node(refused(), "acquire", "h:1")] {
            assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
            assert!(error.is_retryable() && !error.is_outcome_unknown());
        }
        for error in [of_connecting(refused(), "h:1"), of_first_request(refused(), "INFO")] {
            assert_eq!(error.kind(), BackendErrorKind::Auth, "{error}");
            assert!(!error.is_retryable() && !error.is_outcome_unknown());
        }
    }

    #[test]
    fn a_timeout_leaves_the_outcome_unknown_and_a_refusal_does_not() {
        let timeout =
            of_request(std::io::Error::from(std::io::ErrorKind::TimedOut).into(), "acquire");
        assert!(timeout.is_outcome_unknown() && timeout.is_retryable());
        assert_eq!(timeout.kind(), BackendErrorKind::Timeout);
        assert!(!of_text("WRONGTYPE Operation").is_outcome_unknown());
    }

    #[test]
    fn a_server_that_is_not_the_primary_is_recognized_before_and_since_7_0() {
        for text in [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_1): @user_script:1: \
             -READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "LOADING Redis is loading the dataset in memory",
        ] {
            assert!(says_not_here(text), "{text}");
        }
        for text in ["BUSY Redis is busy running a script.", "WRONGTYPE READONLY", "ERR READONLYX"]
        {
            assert!(!says_not_here(text), "{text}");
        }
    }
}
