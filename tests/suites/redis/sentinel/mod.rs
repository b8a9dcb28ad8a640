//! A primary that Sentinels monitor.

mod conformance;
mod credentials;
mod failover;
mod sentinels;
mod wrong_input;

use std::time::{Duration, Instant};

use lockcore::{FencingToken, Locks, LocksBuilder};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::RedisSentinel;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::support::{LONG, soon};

/// A backend that finds the primary of `group`.
fn backend(group: &RedisSentinel) -> RedisBackendBuilder {
    RedisBackend::sentinel(group.addresses(), group.master_name())
}

async fn builder(group: &RedisSentinel) -> LocksBuilder {
    Locks::builder(backend(group).connect().await.unwrap())
}

async fn locks(group: &RedisSentinel) -> Locks {
    builder(group).await.build().unwrap()
}

/// A client that acquires and releases one lock all the time, whatever happens.
struct Worker {
    grants: UnboundedReceiver<(Instant, FencingToken)>,
}

impl Worker {
    async fn start(group: &RedisSentinel, name: &'static str) -> Self {
        let lock = locks(group).await.lock(name);
        let (granted, grants) = unbounded_channel();
        tokio::spawn(async move {
            while !granted.is_closed() {
                // A release fails while there is no primary, and goes on in the background.
                if let Ok(guard) = lock.acquire_timeout(LONG).await {
                    let _ = granted.send((Instant::now(), guard.token()));
                    let _ = guard.release().await;
                }
            }
        });
        Self { grants }
    }

    /// Stops after the first grant after `moment`. Returns how much later that came, and checks
    /// that the tokens have risen all the time.
    async fn stop_after(mut self, moment: Instant) -> Duration {
        let mut last = None;
        loop {
            let grant = soon("a grant", self.grants.recv()).await;
            let (granted, token) = grant.expect("the worker works");
            assert!(last < Some(token), "{last:?} {token:?}");
            last = Some(token);
            if granted > moment {
                return granted - moment;
            }
        }
    }
}
