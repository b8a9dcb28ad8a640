//! The floor: the commands of an exclusive lock through a bare multiplexed connection of the
//! `redis` crate, with its defaults. On a cluster, there is one to each primary.
//!
//! These are the commands by which lockcore acquires and releases a recently released lock, and the
//! fewest that can keep its promises: in one step, a hash with a lease if there is none, and a
//! token; then the removal of the owner's field, and a message. A lock whose last token is unknown
//! cannot be acquired with them, but needs a script. All holds have one owner, whose hash is built
//! once. Nothing waits, nothing is renewed, and no loss is reported. Whatever lockcore takes longer
//! than this is the cost of its own code.

use std::{sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::{
    error::{Result, failure},
    measure::load::Lock,
    subjects::nodes::Nodes,
};

pub(crate) struct Peer {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Nodes,
    connections: Vec<MultiplexedConnection>,
    publish: &'static str,
    owner: String,
    /// A hash with the owner's field, as `DUMP` returns it.
    hash: Vec<u8>,
    /// The lease in milliseconds.
    lease: u64,
}

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let nodes = Nodes::find(url).await?;
        // A message to all nodes would cost much more than lockcore's.
        let publish = if nodes.urls().len() > 1 { "SPUBLISH" } else { "PUBLISH" };
        let mut connections = Vec::new();
        for url in nodes.urls() {
            let client = redis::Client::open(url.as_str())?;
            connections.push(client.get_multiplexed_async_connection().await?);
        }
        let (client, lease) = (Uuid::new_v4(), u64::try_from(lease.as_millis())?);
        let (owner, sample) = (format!("{client}:1"), format!("sample:{client}"));
        let mut dump = redis::pipe();
        dump.hset(&sample, &owner, 1).ignore().cmd("DUMP").arg(&sample).del(&sample).ignore();
        let mut connection = connections[nodes.of(&sample)].clone();
        let (hash,): (Vec<u8>,) = dump.query_async(&mut connection).await?;
        let shared = Shared { nodes, connections, publish, owner, hash, lease };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        Handle {
            client: self.shared.clone(),
            connection: self.shared.connections[self.shared.nodes.of(name)].clone(),
            key: name.to_owned(),
            token: format!("redisson_lock_token:{{{name}}}"),
            channel: format!("redisson_lock__channel:{{{name}}}"),
        }
    }
}

pub(crate) struct Handle {
    client: Arc<Shared>,
    connection: MultiplexedConnection,
    key: String,
    token: String,
    channel: String,
}

impl Lock for Handle {
    type Hold = ();

    async fn acquire(&self) -> Result<()> {
        let Shared { hash, lease, .. } = &*self.client;
        let mut commands = redis::pipe();
        commands.atomic().cmd("RESTORE").arg(&self.key).arg(lease).arg(hash).ignore();
        commands.cmd("INCRBY").arg(&self.token).arg(1);
        // The error of any command is one of the transaction.
        let (_token,): (u64,) = commands.query_async(&mut self.connection.clone()).await?;
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        let Shared { owner, publish, .. } = &*self.client;
        let mut commands = redis::pipe();
        commands.cmd("HDEL").arg(&self.key).arg(owner);
        commands.cmd(publish).arg(&self.channel).arg(0).ignore();
        match commands.query_async(&mut self.connection.clone()).await? {
            (1_u64,) => Ok(()),
            reply => Err(failure(format!("{} was not held: {reply:?}", self.key))),
        }
    }
}
