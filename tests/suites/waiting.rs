//! How the suites wait for servers.

use std::{future::Future, time::Duration};

/// Longer than anything here takes on a busy machine: a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Waits for what must happen soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// Asks the server until it gives the answer that is expected of it. It has no event for that.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
