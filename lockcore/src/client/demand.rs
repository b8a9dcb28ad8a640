//! Listening for other clients that want a lock which is kept here.

use std::{pin::pin, sync::Arc};

use tokio::sync::oneshot;

use super::{
    lanes::LaneCell,
    listener::{Heard, Listener},
    shared::Client,
};
use crate::backend::{Awaited, HoldId, SubscribeRequest};

impl Client {
    /// Has the background listen for others that want the lock, until one does, the hold is `over`
    /// or the client is closed. The client lives as long: somebody has to give the hold back.
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
                // The backend says with a wake-up if somebody waited before.
                if !matches!(heard, Ok(Heard::Subscribed)) {
                    break heard;
                }
            };
            // Once is enough: what is granted with this hold is not kept any more.
            drop(listener);
            let now = client.clock.now();
            client.with(&cell, |lane, fx| lane.wanted(now, fx));
            if let Err(error) = heard {
                // Others would be kept out, and could not say so. It is the same for each lock.
                let (lock, error) = (cell.name(), error.with_lock(cell.name()));
                client.is_deaf.call_once(|| {
                    tracing::warn!(%lock, %error, "no lock is kept: demand cannot be heard");
                });
            }
        });
    }
}
