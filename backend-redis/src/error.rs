//! Conversion of errors of the redis crate and of the server to [`BackendError`].

use lockcore::{BackendError, BackendErrorKind};
use redis::{ErrorKind, RedisError};

/// Converts the error of a request. `doing` names the operation.
pub(crate) fn of_request(error: RedisError, doing: &str) -> BackendError {
    let (kind, applied) = classify(&error);
    let mapped = BackendError::new(kind, format!("{doing} on Redis failed"));
    let mapped = if applied == Applied::No { mapped.not_applied() } else { mapped };
    mapped.with_source(error)
}

/// Converts the error of an attempt to connect. No request has been sent at that point.
pub(crate) fn of_connecting(error: RedisError, address: &str) -> BackendError {
    let (kind, _) = classify(&error);
    BackendError::new(kind, format!("could not connect to Redis at {address}"))
        .not_applied()
        .with_source(error)
}

/// Converts the text of an error that a script returned for one of several holds.
pub(crate) fn of_text(text: &str) -> BackendError {
    let kind = kind_of_message(text).unwrap_or(BackendErrorKind::Other);
    BackendError::new(kind, format!("Redis refused the request: {text}")).not_applied()
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
        // The server has replied. Scripts check before they write, so an error means no effect.
        _ => {
            let text = format!(
                "{} {}",
                error.code().unwrap_or_default(),
                error.detail().unwrap_or_default()
            );
            (kind_of_message(&text).unwrap_or(BackendErrorKind::Other), Applied::No)
        }
    }
}

/// Finds the kind for the error code in a message. The code is usually the first word. Servers
/// before 7.0 wrap the error of a script's command into a message that has the code further back.
fn kind_of_message(text: &str) -> Option<BackendErrorKind> {
    const CODES: [(&str, BackendErrorKind); 19] = [
        ("NOAUTH", BackendErrorKind::Auth),
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
        ("MOVED", BackendErrorKind::Configuration),
        ("ASK", BackendErrorKind::Configuration),
        ("CROSSSLOT", BackendErrorKind::Configuration),
        ("NOPROTO", BackendErrorKind::Configuration),
        ("EXECABORT", BackendErrorKind::Other),
    ];
    let kind_of = |word: &str| CODES.iter().find(|(code, _)| *code == word).map(|(_, kind)| *kind);
    let mut words = text.split([' ', ':', '-', '\'', '"']).filter(|word| !word.is_empty());
    if let Some(kind) = words.next().and_then(kind_of) {
        return Some(kind);
    }
    words.find_map(kind_of).or_else(|| {
        if text.contains("max number of clients") {
            return Some(BackendErrorKind::Unavailable);
        }
        // Redis 7.0 omits the code if a command of a script lacks a right.
        let refusals = ["can't run this command", "no permissions", "can't access"];
        refusals
            .iter()
            .any(|refusal| text.contains(refusal))
            .then_some(BackendErrorKind::Permission)
    })
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
            ("READONLY You can't write against a read only replica.", BackendErrorKind::ReadOnly),
        ] {
            assert_eq!(kind_of_message(text), Some(kind), "{text}");
        }
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
    fn a_timeout_leaves_the_outcome_unknown_and_a_refusal_does_not() {
        let timeout =
            of_request(std::io::Error::from(std::io::ErrorKind::TimedOut).into(), "acquire");
        assert!(timeout.is_outcome_unknown() && timeout.is_retryable());
        assert_eq!(timeout.kind(), BackendErrorKind::Timeout);
        assert!(!of_text("WRONGTYPE Operation").is_outcome_unknown());
    }
}
