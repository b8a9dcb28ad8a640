//! The floor: the two scripts of an exclusive lock through a bare multiplexed connection of the `redis` crate, with its defaults. On a
//! cluster, through one to each primary.
//!
//! Nothing waits, nothing is renewed, nobody is told of a loss. What lockcore takes longer than this is what its own code costs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, aio::MultiplexedConnection};
use uuid::Uuid;

use crate::{
    error::{Result, failure},
    measure::load::Lock,
    subjects::nodes::Nodes,
};

/// The scripts of the backend, of the same files: see `script.rs` there.
macro_rules! script {
    ($($file:literal)+) => {
        concat!($(include_str!(concat!("../../../backend-redis/src/scripts/", $file, ".lua"))),+)
    };
}

const ACQUIRE: &str = script!("token" "overtaken" "hold" "acquire" "issue" "grant");
const RELEASE: &str = script!("release");

/// The arguments of an acquisition, as the backend gives them: owner, lease, count, for how long the token is remembered, the id of
/// the hold (named owners only), how many tokens are wanted.
fn acquire_arguments<'a>(owner: &'a str, lease: &'a str) -> [&'a str; 6] {
    [owner, lease, "1", "86400000", "", "1"]
}

/// The arguments of a release: owner, the count to be reached, the channel, the id of the hold (named owners only).
fn release_arguments<'a>(owner: &'a str, channel: &'a str) -> [&'a str; 4] {
    [owner, "0", channel, ""]
}

pub(crate) struct Peer {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Nodes,
    connections: Vec<MultiplexedConnection>,
    acquire: String,
    release: String,
    lease: String,
    /// Owners are this and a number, a new one for each hold.
    client: Uuid,
    next: AtomicU64,
}

impl Peer {
    pub(crate) async fn connect(url: &str, lease: Duration) -> Result<Self> {
        let nodes = Nodes::find(url).await?;
        let (mut connections, mut acquire, mut release) =
            (Vec::new(), String::new(), String::new());
        // A message to all nodes would cost much more than ours.
        let publish = if nodes.urls().len() > 1 { "'SPUBLISH'" } else { "'PUBLISH'" };
        for url in nodes.urls() {
            let client = redis::Client::open(url.as_str())?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let scripts = [(ACQUIRE, &mut acquire), (RELEASE, &mut release)];
            for (source, digest) in scripts {
                let source = source.replace("'PUBLISH'", publish);
                let mut load = redis::cmd("SCRIPT");
                *digest = load.arg("LOAD").arg(source).query_async(&mut connection).await?;
            }
            connections.push(connection);
        }
        let lease = lease.as_millis().to_string();
        let (client, next) = (Uuid::new_v4(), AtomicU64::new(0));
        let shared = Shared { nodes, connections, acquire, release, lease, client, next };
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
    /// The owner.
    type Hold = String;

    async fn acquire(&self) -> Result<String> {
        let number = self.client.next.fetch_add(1, Ordering::Relaxed);
        let owner = format!("{}:{number}", self.client.client);
        let arguments = acquire_arguments(&owner, &self.client.lease);
        let command = evalsha(&self.client.acquire, &[&self.key, &self.token], &arguments);
        // `{1, token}`, and whatever may come after.
        let reply: Vec<u64> = command.query_async(&mut self.connection.clone()).await?;
        match reply.as_slice() {
            [1, _token, ..] => Ok(owner),
            _ => Err(failure(format!("{} is held: {reply:?}", self.key))),
        }
    }

    async fn release(&self, owner: String) -> Result<()> {
        let arguments = release_arguments(&owner, &self.channel);
        let command = evalsha(&self.client.release, &[&self.key], &arguments);
        match command.query_async(&mut self.connection.clone()).await? {
            1_u64 => Ok(()),
            reply => Err(failure(format!("{} was not held: {reply}", self.key))),
        }
    }
}

fn evalsha(digest: &str, keys: &[&str], arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(digest).arg(keys.len()).arg(keys).arg(arguments);
    command
}
