//! [`ask_in_turn`]: asks several servers until one answers.

use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind};
use tokio::task::{JoinError, JoinSet};

use crate::error;

/// The usual time without an answer after which the next server is asked as well.
pub(crate) const HEAD_START: Duration = Duration::from_millis(200);

/// Asks one of the `servers` after the other, each `head_start` after the one before unless that
/// has failed by then, and returns the first answer that `is_good`. If there is none, returns the
/// last of the other answers.
///
/// # Errors
/// The errors of all servers, if none answers.
///
/// # Cancel safety
/// The requests end with the future.
pub(crate) async fn ask_in_turn<S, T, F>(
    servers: Vec<S>,
    head_start: Duration,
    ask: impl Fn(S) -> F,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, Vec<BackendError>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, BackendError>> + Send + 'static,
{
    let mut rest = servers.into_iter();
    let (mut asked, mut failures, mut doubtful) = (JoinSet::new(), Vec::new(), None);
    loop {
        if let Some(server) = rest.next() {
            asked.spawn(ask(server));
        } else if asked.is_empty() {
            return doubtful.ok_or(failures);
        }
        let patience = if rest.len() > 0 { head_start } else { Duration::MAX };
        match tokio::time::timeout(patience, asked.join_next()).await {
            Ok(Some(Ok(Ok(answer)))) if is_good(&answer) => return Ok(answer),
            Ok(Some(Ok(Ok(answer)))) => doubtful = Some(answer),
            Ok(Some(Ok(Err(failure)))) => failures.push(failure),
            // The next one is asked as well.
            Err(_) | Ok(None) => {}
            Ok(Some(Err(ended))) => failures.push(not_asked(ended)),
        }
    }
}

/// The error of a request whose task has not ended by itself.
fn not_asked(ended: JoinError) -> BackendError {
    if ended.is_panic() {
        return error::panicked("asking a server");
    }
    let message = "a server was not asked: the runtime has ended";
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}
