//! The subscriptions of [`Flawed`], and how the flaws change them.

use std::sync::Arc;

use lockcore::{
    LockName,
    backend::{HoldId, Wakeup, Wakeups, async_trait},
};
use lockcore_testkit::Op;
use tokio::{sync::Notify, task::yield_now};

use super::{
    flaw::Flaw,
    store::{Flawed, Subscriber},
};

/// The subject of a subscription.
#[derive(Debug)]
pub(super) enum Topic {
    Lock(LockName, HoldId),
    /// Requests for a lock that are refused.
    Demand(LockName),
    /// A latch, or the notification of a waiter.
    Signal(String),
}

impl Flawed {
    pub(super) async fn listen_to(&self, topic: Topic) -> Box<dyn Wakeups> {
        let busy = self.send(Op::Subscribe).await;
        let listener = Arc::new(Subscriber { client: self.client, notify: Notify::new() });
        let stays = self.has(Flaw::DroppedSubscribeStays);
        let mut subscription = Subscription { backend: self.clone(), topic, listener, stays };
        if !self.has(Flaw::SubscriptionBeginsWithTheFirstWait) {
            subscription.begin();
        }
        self.reply(busy).await;
        subscription.stays = self.has(Flaw::KeepsSubscriptions);
        Box::new(subscription)
    }

    fn with_listeners(&self, topic: &Topic, change: impl FnOnce(&mut Vec<Arc<Subscriber>>)) {
        match topic {
            Topic::Lock(name, _) => self.with(name, |cell, _| change(&mut cell.listeners)),
            Topic::Demand(name) => self.with(name, |cell, _| change(self.wanting(cell))),
            Topic::Signal(topic) => self.store().signals.with_listeners(topic, change),
        }
    }
}

#[derive(Debug)]
struct Subscription {
    backend: Flawed,
    topic: Topic,
    listener: Arc<Subscriber>,
    stays: bool,
}

impl Subscription {
    /// The wake-up to return.
    fn wakeup(&self) -> Wakeup {
        match &self.topic {
            Topic::Lock(name, hold) => self.backend.heard_of(name, hold),
            _ => Wakeup::Changed,
        }
    }

    fn begin(&self) {
        self.backend.with_listeners(&self.topic, |listeners| {
            if !listeners.iter().any(|other| Arc::ptr_eq(other, &self.listener)) {
                listeners.push(self.listener.clone());
            }
        });
        if let Topic::Demand(name) = &self.topic {
            self.backend.begin_demand(name, &self.listener);
        }
    }
}

#[async_trait]
impl Wakeups for Subscription {
    async fn woken(&mut self) -> Wakeup {
        if self.backend.has(Flaw::SubscriptionBeginsWithTheFirstWait) {
            self.begin();
        }
        self.listener.notify.notified().await;
        if self.backend.has(Flaw::DroppedWaitTakesTheWakeup) {
            yield_now().await;
        }
        self.wakeup()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        self.backend.with_listeners(&self.topic, |listeners| {
            let silences = self.backend.has(Flaw::LeavingSilencesTheOthers);
            listeners.retain(|other| !silences && !Arc::ptr_eq(other, &self.listener));
        });
    }
}
