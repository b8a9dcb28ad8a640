//! The state of servers and clients while nobody does anything.

use lockcore_testkit::{RedisServer, checks::Vitals};

use super::{Scene, is_of_client};
use crate::{
    deployment::Deployment,
    protocol::{Answer, Order, PERMITS, Result},
};

impl Scene {
    pub(super) async fn vitals(&mut self) -> Result<Vitals> {
        let mut vitals = Vitals::default();
        for client in self.clients.iter_mut().filter(|client| client.is_running()) {
            if let Answer::Vitals { tasks, descriptors, memory, .. } =
                client.order(Order::Vitals).await?
            {
                vitals.tasks += tasks;
                vitals.descriptors += descriptors;
                vitals.memory += memory;
            }
        }
        for server in self.servers.primaries().await {
            look_at_keys(server, &mut vitals).await?;
        }
        let rows = self.servers.owners().await?;
        vitals.lock_keys.extend(rows.into_iter().map(|(name, owner)| format!("{name} {owner}")));
        if let Ok(etcd) = self.servers.etcd() {
            let left = etcd.left().await?;
            (vitals.lock_keys, vitals.endless_keys) = (left.keys, left.endless);
            vitals.channels.extend((left.watches > 0).then(|| format!("{} watches", left.watches)));
        }
        for server in self.servers.all().filter(|server| server.is_up()) {
            vitals.channels.extend(channels(self.on, server).await?.into_iter().map(|it| it.name));
        }
        vitals.connections = self.client_connections().await?;
        Ok(vitals)
    }

    /// The connections of clients to all servers that run.
    pub(super) async fn client_connections(&self) -> Result<usize> {
        let mut count = self.servers.connections().await?;
        for server in self.servers.all().filter(|server| server.is_up()) {
            let list: String = server.try_query(&["CLIENT", "LIST"]).await?;
            count += list.lines().filter(is_of_client).count();
        }
        Ok(count)
    }

    /// The channels of the current server that clients listen to.
    pub(crate) async fn channels(&self) -> Result<Vec<Channel>> {
        channels(self.on, self.server()?).await
    }
}

/// Closes the connections of clients to a server that listen to nothing.
pub(crate) async fn end_command_connections(server: &RedisServer) -> Result<()> {
    let list: String = server.try_query(&["CLIENT", "LIST", "TYPE", "normal"]).await?;
    for line in list.lines().filter(is_of_client) {
        if let Some(id) = line.strip_prefix("id=").and_then(|rest| rest.split(' ').next()) {
            // It may have closed already.
            let _ = server.try_query::<redis::Value>(&["CLIENT", "KILL", "ID", id]).await;
        }
    }
    Ok(())
}

/// A channel with subscribers.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) name: String,
    /// The command that publishes on it.
    pub(crate) publish: &'static str,
}

async fn channels(on: Deployment, server: &RedisServer) -> Result<Vec<Channel>> {
    let mut kinds = vec![("CHANNELS", "PUBLISH")];
    kinds.extend((on == Deployment::Cluster).then_some(("SHARDCHANNELS", "SPUBLISH")));
    let mut channels = Vec::new();
    for (kind, publish) in kinds {
        let names: Vec<String> = server.try_query(&["PUBSUB", kind]).await?;
        let of_clients = names.into_iter().filter(|name| name != SENTINEL_CHANNEL);
        channels.extend(of_clients.map(|name| Channel { name, publish }));
    }
    Ok(channels)
}

/// The channel on which Sentinels announce themselves.
const SENTINEL_CHANNEL: &str = "__sentinel__:hello";

async fn look_at_keys(server: &RedisServer, vitals: &mut Vitals) -> Result<()> {
    let keys: Vec<String> = server.try_query(&["KEYS", "*"]).await?;
    for key in keys {
        let ttl: i64 = server.try_query(&["PTTL", &key]).await?;
        if ttl == -1 {
            vitals.endless_keys.push(key.clone());
        }
        if ttl != -2 && is_of_lock(&key) && !is_free_semaphore(server, &key).await? {
            vitals.lock_keys.push(key);
        }
    }
    Ok(())
}

/// A semaphore leaves its number and its book for a day: all permits must be there, or come back
/// with the next request.
async fn is_free_semaphore(server: &RedisServer, key: &str) -> Result<bool> {
    let [book, times] = [key.strip_prefix("lockcore_permits:{"), key.strip_prefix('{')];
    let name = book.and_then(|name| name.strip_suffix('}'));
    let name = name.or(times.and_then(|name| name.strip_suffix("}:timeout"))).unwrap_or(key);
    if !name.contains("sem") {
        return Ok(false);
    }
    let number: Option<i64> = server.try_query(&["GET", name]).await?;
    let [seconds, micros]: [i64; 2] = server.try_query(&["TIME"]).await?;
    let now = (seconds * 1000 + micros / 1000).to_string();
    let times = format!("{{{name}}}:timeout");
    let ended: i64 = server.try_query(&["ZCOUNT", &times, "-inf", &now]).await?;
    // Without a number, the rest of it has no meaning.
    Ok(number.is_none_or(|number| number + ended == i64::from(PERMITS)))
}

/// All keys but tokens and client records, which expire by themselves, and those of the battery.
pub(crate) fn is_of_lock(key: &str) -> bool {
    const OTHERS: [&str; 4] =
        ["redisson_lock_token:", "lockcore_client:", "lockcore_clients:", "battery:"];
    !OTHERS.iter().any(|other| key.starts_with(other))
}
