//! From what the redis crate and the server report to [`BackendError`].

use lockcore::{BackendError, BackendErrorKind};
use redis::{ErrorKind, RedisError};

/// What a failed request means. `doing` says what was attempted.
pub(crate) fn of_request(error: RedisError, doing: &str) -> BackendError {
    let (kind, applied) = classify(&error);
    let mapped = BackendError::new(kind, format!("{doing} on Redis failed"));
    let mapped = if applied == Applied::No { mapped.not_applied() } else { mapped };
    mapped.with_source(error)
}

/// What a failed connection attempt means. Nothing was requested yet.
pub(crate) fn of_connecting(error: RedisError, address: &str) -> BackendError {
    let (kind, _) = classify(&error);
    BackendError::new(kind, format!("no connection to Redis at {address}"))
        .not_applied()
        .with_source(error)
}

/// What the text of an error means that a script returned for one of several holds.
pub(crate) fn of_text(text: &str) -> BackendError {
    let kind = by_code(text).unwrap_or(BackendErrorKind::Other);
    BackendError::new(kind, format!("Redis refused: {text}")).not_applied()
}

/// An answer that is not what the script returns.
pub(crate) fn unexpected(doing: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Protocol,
        format!("the answer to {doing} was not understood"),
    )
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
        // The connection has ended in the middle of an answer, which the redis crate tells so.
        ErrorKind::Parse if error.to_string().contains("end of input") => {
            (BackendErrorKind::Connection, Applied::Unknown)
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (BackendErrorKind::Protocol, Applied::Unknown)
        }
        // The server has answered. Scripts validate before they write, so a refusal means that nothing was done.
        _ => {
            let text = format!(
                "{} {}",
                error.code().unwrap_or_default(),
                error.detail().unwrap_or_default()
            );
            (by_code(&text).unwrap_or(BackendErrorKind::Other), Applied::No)
        }
    }
}

/// The kind by the error code that begins the text. Servers before 7.0 wrap the error of a script's command into another, so
/// that the code stands further back.
fn by_code(text: &str) -> Option<BackendErrorKind> {
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
        // Redis 7.0 reports a right that a script's command lacks without its code.
        let refused = ["can't run this command", "no permissions", "can't access"];
        refused.iter().any(|part| text.contains(part)).then_some(BackendErrorKind::Permission)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_code_wherever_the_server_puts_it() {
        for (text, kind) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                BackendErrorKind::OutOfMemory,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key",
                BackendErrorKind::WrongType,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                BackendErrorKind::Permission,
            ),
            ("READONLY You can't write against a read only replica.", BackendErrorKind::ReadOnly),
        ] {
            assert_eq!(by_code(text), Some(kind), "{text}");
        }
        assert_eq!(by_code("ERR something else"), None);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_a_broken_connection() {
        for half in [&b"*2\r\n:1\r\n$16\r\n17000"[..], b"*2\r\n:1\r", b"*2\r\n", b"$5\r\nab"] {
            let error = of_request(redis::parse_redis_value(half).unwrap_err(), "acquire");
            assert_eq!(error.kind(), BackendErrorKind::Connection, "{error}");
            assert!(error.is_outcome_unknown() && error.is_retryable());
        }
    }

    #[test]
    fn a_time_out_may_have_been_carried_out_and_a_refusal_not() {
        let timeout =
            of_request(std::io::Error::from(std::io::ErrorKind::TimedOut).into(), "acquire");
        assert!(timeout.is_outcome_unknown() && timeout.is_retryable());
        assert_eq!(timeout.kind(), BackendErrorKind::Timeout);
        assert!(!of_text("WRONGTYPE Operation").is_outcome_unknown());
    }
}
