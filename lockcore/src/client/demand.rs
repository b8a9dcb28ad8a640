//! Listening for other clients that want a lock which this client keeps.

use std::{pin::pin, sync::Arc};

use tokio::sync::oneshot;

use super::{
    lanes::LaneCell,
    listener::{Heard, Listener},
    shared::Client,
};
use crate::backend::{Awaited, HoldId, SubscribeRequest};

impl Client {
    /// Makes the background listen for other clients that want the lock, until one does, the hold
    /// is `over` or the client is closed. This keeps the client alive, because somebody has to give
    /// the hold back.
    pub(super) fn listen_for_demand(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        hold: HoldId,
        mut over: oneshot::Receiver<()>,
    ) {
        let (client, cell) = (self.clone(), cell.clone());
        self.submit(async move {
            let mut closed = pin!(client.closed());
            let mut listener = Listener::default();
            let request = || {
                SubscribeRequest::new(cell.name().clone(), hold.clone()).awaited(Awaited::Demand)
            };
            let with = (&client.clock, &client.measure);
            let heard = loop {
                let heard = tokio::select! {
                    biased;
                    _ = &mut over => return,
                    () = &mut closed => return,
                    heard = listener.heard(&client.backend, with, request) => heard,
                };
                // If somebody waited before, the backend sends a wake-up.
                if !matches!(heard, Ok(Heard::Subscribed)) {
                    break heard;
                }
            };
            // Once is enough: no hold of this grant is kept any more.
            drop(listener);
            let now = client.clock.now();
            client.with(&cell, |lane, fx| lane.wanted(now, fx));
            if let Err(error) = heard {
                // Without listening, other clients would be kept out unheard. This holds for every
                // lock.
                let (lock, error) = (cell.name(), error.with_lock(cell.name()));
                client.is_deaf.call_once(|| {
                    tracing::warn!(%lock, %error, "no lock is kept: demand cannot be heard");
                });
            }
        });
    }
}
