//! Steps of cases that break connections: a request that fails meanwhile is repeated.

use std::{future::Future, time::Duration};

use lockcore::{
    BackendError, FencingToken,
    backend::{AcquireOutcome, ReleaseOutcome, ReleaseRequest},
};

use crate::conformance::scene::{LASTING, Rival, soon};

/// The pause before a failed request is repeated.
const RESPITE: Duration = Duration::from_millis(10);

/// Repeats a request that may fail while clients reconnect, and returns its answer.
pub(crate) async fn at_last<T, F>(request: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, BackendError>>,
{
    soon(async {
        loop {
            match request().await {
                Ok(answer) => return answer,
                Err(error) if error.is_retryable() => tokio::time::sleep(RESPITE).await,
                Err(error) => panic!("a broken connection is nothing that lasts: {error:?}"),
            }
        }
    })
    .await
}

impl Rival<'_> {
    /// Asks as soon as the store answers a read. A request over a connection that has just broken
    /// would have an unknown outcome, after which a waiter asks with another hold: a quorum may
    /// refuse this one for good.
    pub(crate) async fn asks_at_last(self) -> AcquireOutcome {
        at_last(async || self.backend.inspect(self.name).await).await;
        let request = self.acquire_request(LASTING);
        at_last(async || self.backend.acquire(&request).await).await
    }

    pub(crate) async fn enters_at_last(self) -> FencingToken {
        let answer = self.asks_at_last().await;
        answer.token().unwrap_or_else(|| panic!("it should have got the lock: {answer:?}"))
    }

    /// Shows that the request is refused because of another owner, and returns the remaining lease.
    pub(crate) async fn is_refused_at_last(self) -> Duration {
        match self.asks_at_last().await {
            AcquireOutcome::Held { remaining: Some(remaining) } => remaining,
            answer => panic!("it should have been refused: {answer:?}"),
        }
    }

    pub(crate) async fn asks_to_release_at_last(self) -> ReleaseOutcome {
        self.send_at_last(self.release_request()).await
    }

    /// Undoes a request whose effect is unknown.
    pub(crate) async fn undoes_at_last(self) {
        self.send_at_last(self.acquire_request(LASTING).undo()).await;
    }

    async fn send_at_last(self, request: ReleaseRequest) -> ReleaseOutcome {
        at_last(async || self.backend.release(&request).await).await
    }
}
