//! The turn of a waiter for a fair lock: it hears that it is the first in the queue, and that the
//! lock may be free.
//!
//! The release of a fair hold tells the first in the queue, on a channel of that waiter. The release
//! of a hold that was acquired without the queue does not, be it one of Redisson's `RLock`: it is
//! published on the channel of the lock. So a waiter listens to both. There, releases of fair holds
//! have a message of their own, which does not wake it: see `release_fair.lua`.

use futures_util::future::try_join;
use lockcore::{
    BackendError,
    backend::{Wakeup, Wakeups, async_trait},
};

use crate::{RedisBackend, keys::LockKeys, server::Audience};

/// Subscribes for a waiter in the queue. The subscription is in effect when this returns.
pub(crate) async fn subscribe(
    backend: &RedisBackend,
    keys: &LockKeys,
    owner: &str,
) -> Result<Box<dyn Wakeups>, BackendError> {
    let turn = backend.listen(keys.owner_channel(owner));
    let ends = backend.listen_as(Audience::Queued, keys.channel().to_string());
    let (turn, ends) = try_join(turn, ends).await?;
    Ok(Box::new(TurnSubscription { turn, ends }))
}

#[derive(Debug)]
struct TurnSubscription {
    /// The channel of the waiter.
    turn: Box<dyn Wakeups>,
    /// The channel of the lock, without the releases of fair holds.
    ends: Box<dyn Wakeups>,
}

#[async_trait]
impl Wakeups for TurnSubscription {
    async fn woken(&mut self) -> Wakeup {
        tokio::select! {
            biased;
            wakeup = self.turn.woken() => wakeup,
            // Nobody is granted the lock there, whatever a message says.
            _ = self.ends.woken() => Wakeup::Changed,
        }
    }
}
