//! A primary that Sentinels monitor.

mod conformance;
mod credentials;
mod failover;
mod sentinels;
mod tls;
mod wrong_input;

use std::time::{Duration, Instant};

use lockcore::{Locks, LocksBuilder};
use lockcore_redis::{RedisBackend, RedisBackendBuilder};
use lockcore_testkit::{RedisSentinel, RedisServer};
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

/// A client that acquires and releases one lock after another, whatever happens.
struct Worker {
    grants: UnboundedReceiver<(Instant, String)>,
}

impl Worker {
    async fn start(group: &RedisSentinel) -> Self {
        let locks = locks(group).await;
        let (granted, grants) = unbounded_channel();
        tokio::spawn(async move {
            for number in 0.. {
                // A release fails while there is no primary, and continues in the background.
                let name = format!("work:{number}");
                if let Ok(guard) = locks.lock(&*name).acquire_timeout(LONG).await {
                    if granted.send((Instant::now(), name)).is_err() {
                        return;
                    }
                    let _ = guard.release().await;
                }
            }
        });
        Self { grants }
    }

    /// Stops after the first grant of `primary` that comes after `moment`. Returns how much later
    /// it came.
    async fn stop_after(mut self, moment: Instant, primary: &RedisServer) -> Duration {
        loop {
            let (granted, name) = soon("a grant", self.grants.recv()).await.expect("it works on");
            let token = format!("redisson_lock_token:{{{name}}}");
            if granted > moment && primary.query::<bool>(&["EXISTS", &token]).await {
                return granted - moment;
            }
        }
    }
}
