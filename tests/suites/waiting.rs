//! How the suites wait for servers.

use std::{future::Future, time::Duration};

/// The limit of a wait, more than any takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Waits for an event that must come soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// Polls the server until it gives the expected answer. It has no event for that.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
