//! [`ClusterSubscription`]: a subscription that follows its slot.

use std::{future::Future, pin::Pin, sync::Arc, task::Poll, time::Duration};

use lockcore::{
    BackendError,
    backend::{Wakeup, Wakeups, async_trait},
};
use tokio::sync::watch;

use super::{
    Cluster,
    redirect::Redirect,
    refresh::REFRESH_EVERY,
    slots::{NodeAddress, SlotMap, slot_of},
};
use crate::server::{Audience, RedisSubscription};

/// The range of the pause between attempts to subscribe at another node.
const PAUSES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_millis(500);

/// One listener of one channel, at the node that serves its slot. When the slot moves, it
/// subscribes at the new node and is woken, since it may have missed a message.
#[derive(Debug)]
pub(crate) struct ClusterSubscription {
    cluster: Arc<Cluster>,
    channel: String,
    audience: Audience,
    slot: u16,
    topology: watch::Receiver<Arc<SlotMap>>,
    /// `None` after the subscription was lost.
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    node: NodeAddress,
    /// One for each set of channels.
    subscriptions: Vec<RedisSubscription>,
}

impl Cluster {
    /// Subscribes to `channel`. The subscription is in effect when this returns.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        channel: String,
        audience: Audience,
    ) -> Result<ClusterSubscription, BackendError> {
        let (cluster, slot) = (self.clone(), slot_of(&channel));
        let topology = self.topology.subscribe();
        let mut subscription =
            ClusterSubscription { cluster, channel, audience, slot, topology, place: None };
        subscription.settle().await?;
        Ok(subscription)
    }
}

impl ClusterSubscription {
    /// Subscribes at the node that serves the slot.
    async fn settle(&mut self) -> Result<(), BackendError> {
        let mut moves = 0;
        loop {
            let node = self.cluster.owner(self.slot)?;
            match self.subscribe_at(&node).await {
                Ok(subscriptions) => {
                    self.place = Some(Place { node, subscriptions });
                    return Ok(());
                }
                Err(error) => match Redirect::of_converted(&error, &node) {
                    Redirect::Moved(owner) if moves < super::MAX_HOPS => {
                        moves += 1;
                        self.cluster.note_move(self.slot, owner);
                    }
                    Redirect::Nowhere => {
                        self.cluster.refresh_soon();
                        return Err(error);
                    }
                    Redirect::Somewhere(address) => {
                        return Err(self.cluster.address_unknown(self.slot, &node, &address));
                    }
                    Redirect::Moved(_) | Redirect::Ask(_) => {
                        return Err(self.cluster.owner_unclear(self.slot));
                    }
                },
            }
        }
    }

    async fn subscribe_at(
        &mut self,
        node: &NodeAddress,
    ) -> Result<Vec<RedisSubscription>, BackendError> {
        let server = self.cluster.nodes.server(node);
        let (publishing, channel) = (self.cluster.publishing(), self.channel.clone());
        let audience = self.audience;
        let subscribing = async {
            let mut subscriptions = Vec::new();
            if publishing.is_sharded() {
                subscriptions.push(server.subscribe_sharded(channel.clone(), audience).await?);
            }
            if publishing.is_plain() {
                subscriptions.push(server.subscribe(channel, audience).await?);
            }
            Ok(subscriptions)
        };
        tokio::select! {
            subscriptions = subscribing => subscriptions,
            // The slot was found to be elsewhere, so this node may be down.
            () = moved_away(&mut self.topology, self.slot, node) => {
                Err(super::moved_meanwhile(node))
            }
        }
    }

    /// Subscribes again. Retries until it succeeds.
    async fn settle_again(&mut self) {
        let mut pause = *PAUSES.start();
        while let Err(error) = self.settle().await {
            tracing::debug!(%error, "failed to subscribe to wake-ups again");
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(*PAUSES.end());
        }
    }
}

#[async_trait]
impl Wakeups for ClusterSubscription {
    async fn woken(&mut self) -> Wakeup {
        loop {
            let Some(place) = &mut self.place else {
                // A message may have been missed, so this counts as a wake-up.
                self.settle_again().await;
                return Wakeup::Changed;
            };
            tokio::select! {
                wakeup = any_woken(&mut place.subscriptions) => {
                    if place.subscriptions.iter().any(RedisSubscription::is_lost) {
                        self.place = None;
                    }
                    return wakeup;
                }
                () = moved_away(&mut self.topology, self.slot, &place.node) => self.place = None,
                () = tokio::time::sleep(REFRESH_EVERY) => self.cluster.refresh_if_old(),
            }
        }
    }
}

/// Resolves when one of the subscriptions is woken.
async fn any_woken(subscriptions: &mut [RedisSubscription]) -> Wakeup {
    let mut woken: Vec<Pin<Box<dyn Future<Output = Wakeup> + Send + '_>>> =
        subscriptions.iter_mut().map(|subscription| subscription.woken()).collect();
    std::future::poll_fn(|context| {
        let mut polled = woken.iter_mut().map(|woken| woken.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Resolves when the map has another node for the slot.
pub(super) async fn moved_away(
    topology: &mut watch::Receiver<Arc<SlotMap>>,
    slot: u16,
    node: &NodeAddress,
) {
    let is_elsewhere = |map: &Arc<SlotMap>| map.owner(slot).is_some_and(|owner| owner != node);
    if topology.wait_for(is_elsewhere).await.is_err() {
        // The cluster is gone, and so are all waiters.
        std::future::pending::<()>().await;
    }
}
