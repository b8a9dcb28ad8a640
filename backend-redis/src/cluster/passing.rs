//! Messages of a slot that is on its way. A script that runs at the target publishes there, but the
//! listeners of sharded channels stay at the source until the slot has arrived.

use std::sync::Arc;

use redis::Value;

use super::{Cluster, NodeAddress};

impl Cluster {
    /// Takes the reply of a script at `target`, which a slot is on its way to, and publishes its
    /// messages at the source as well. Returns the reply of the script proper.
    pub(super) fn pass_on(
        self: &Arc<Self>,
        slot: u16,
        target: &NodeAddress,
        reply: Value,
    ) -> Value {
        let Some((reply, messages)) = split(reply) else { return Value::Nil };
        let map = self.map();
        if let Some(source) = map.owner(slot)
            && source != target
            && !messages.is_empty()
            && self.publishing().is_sharded()
        {
            let source = self.nodes.server(source);
            tokio::spawn(async move {
                let Ok(connection) = source.connection().await else { return };
                for [channel, message] in messages {
                    let publish = redis::cmd("SPUBLISH").arg(channel).arg(message).take();
                    if let Err(error) = connection.query(publish).await {
                        tracing::debug!(%error, "failed to wake the listeners of a moving slot");
                    }
                }
            });
        }
        reply
    }
}

/// A channel and its message.
type Message = [Vec<u8>; 2];

/// Splits the reply of a script that was told to return its messages: see `cluster_end.lua`.
fn split(reply: Value) -> Option<(Value, Vec<Message>)> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.into_iter();
    let reply = parts.next()?;
    let texts = parts.map(|part| match part {
        Value::BulkString(text) => Some(text),
        _ => None,
    });
    let texts = texts.collect::<Option<Vec<_>>>()?;
    let messages = texts.chunks_exact(2).map(|message| [message[0].clone(), message[1].clone()]);
    Some((reply, messages.collect()))
}
