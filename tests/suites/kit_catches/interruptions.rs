//! Broken connections of [`FlawedFixture`], and what the flaws make of them.

use std::sync::Arc;

use lockcore::{
    BackendError, BackendErrorKind,
    backend::{AcquireOutcome, AcquireRequest},
};
use lockcore_testkit::{Interrupts, Withholds};

use super::{
    flaw::Flaw,
    flawed::FlawedFixture,
    store::{Flawed, Store, Subscriber},
};

/// The connections between the store and its clients.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// The number of times that they were broken.
    broken: u64,
    /// The acquires that are withheld; `None` if nothing is.
    withheld: Option<Vec<AcquireRequest>>,
    /// The acquires that were withheld on connections that are broken by now.
    abandoned: Vec<AcquireRequest>,
}

impl Store {
    /// The subscribers to anything.
    fn listeners(&mut self) -> impl Iterator<Item = &mut Vec<Arc<Subscriber>>> {
        let cells = self.cells.values_mut();
        let of_locks = cells.flat_map(|cell| [&mut cell.listeners, &mut cell.wanting]);
        of_locks.chain(self.signals.all_listeners())
    }

    /// Breaks the connections. Those who listen may have missed something.
    pub(super) fn break_connections(&mut self, flaw: Flaw) {
        self.connections.broken += 1;
        for listeners in self.listeners() {
            if flaw != Flaw::SubscriptionsEndWithTheConnection {
                listeners.iter().for_each(|listener| listener.notify.notify_one());
            }
            let ends =
                [Flaw::SubscriptionsEndWithTheConnection, Flaw::SubscriptionsHearOfOneInterruption];
            if ends.contains(&flaw) {
                listeners.clear();
            }
        }
        if flaw == Flaw::HoldsEndWithTheConnection {
            self.cells.values_mut().for_each(|cell| cell.hold = None);
        }
    }
}

impl Flawed {
    /// Completes when the request reaches the store, which is never if it is withheld.
    pub(super) async fn unless_withheld(&self, request: &AcquireRequest) {
        let is_withheld = match &mut self.store().connections.withheld {
            Some(withheld) => {
                withheld.push(request.clone());
                true
            }
            None => false,
        };
        if is_withheld {
            std::future::pending().await
        }
    }

    /// The number of interruptions so far.
    pub(super) fn interruptions(&self) -> u64 {
        self.store().connections.broken
    }

    /// The answer to a request that was carried out, if the connection was broken since `before`.
    pub(super) fn answer_since(
        &self,
        before: u64,
        outcome: AcquireOutcome,
    ) -> Result<AcquireOutcome, BackendError> {
        if self.interruptions() == before {
            return Ok(outcome);
        }
        let error = BackendError::new(BackendErrorKind::Connection, "the connection was broken");
        Err(match self.flaw {
            Flaw::CallsTheInterruptedNotApplied => error.not_applied(),
            _ => error.maybe_applied(),
        })
    }
}

impl Interrupts for FlawedFixture {
    async fn interrupt(&self) {
        self.store.lock().unwrap().break_connections(self.flaw);
    }
}

impl Withholds for FlawedFixture {
    async fn withhold(&self) {
        self.store.lock().unwrap().connections.withheld = Some(Vec::new());
    }

    async fn abandon(&self) {
        let connections = &mut self.store.lock().unwrap().connections;
        connections.abandoned = connections.withheld.take().unwrap();
    }

    /// All of these requests were undone.
    async fn deliver(&self) {
        let late = std::mem::take(&mut self.store.lock().unwrap().connections.abandoned);
        for request in late.iter().filter(|_| self.flaw == Flaw::LateRequestsIgnoreTheirUndo) {
            let client = self.new_client();
            let token = client.next_token(&request.name, &request.hold);
            client.acquire_now(request, token);
        }
    }
}
