//! Locks that a failover has left held: their release only reached the old primary.

use std::collections::BTreeSet;

use lockcore_testkit::{Operations, RedisServer, What, checks::Ending, monotonic};

use super::Scene;
use crate::protocol::Result;

/// A release that was confirmed this long ago has arrived.
const ARRIVED: u64 = 200_000_000;

/// The end of a writer's field.
const WRITER: &str = ":lockcore:write";

impl Scene {
    /// Looks for locks that were released, according to the old primary, and that the primaries
    /// still have. They stay held until their lease ends, which the checks at the end take into
    /// account. Returns their number.
    pub(crate) async fn stranded(&mut self) -> Result<usize> {
        let looked = monotonic();
        let mut stored = Vec::new();
        for server in self.servers.primaries().await {
            // A server that is cut off may refuse to answer.
            stored.extend(owners(server).await.unwrap_or_default());
        }
        stored.extend(self.servers.owners().await.unwrap_or_default());
        let events = self.events()?;
        let operations = Operations::of(&events);
        let faults = events.iter().filter(|event| matches!(event.what, What::Fault { .. }));
        let fault = faults.map(|event| event.t).max().unwrap_or(0);
        // Dropping a guard confirms nothing, but sends the release at once.
        let is_released = |end: Option<(u64, Ending)>| match end {
            Some((t, Ending::Released)) => t + ARRIVED < looked,
            Some((t, Ending::Dropped)) => t < fault,
            _ => false,
        };
        let released: BTreeSet<_> = operations
            .granted()
            .filter(|operation| operation.nested_in.is_none())
            .filter(|operation| is_released(operation.end))
            .map(|operation| operation.owner.as_str())
            .collect();
        let stranded = stored.into_iter().filter(|(_, owner)| released.contains(owner.as_str()));
        let stranded: BTreeSet<_> = stranded.map(|(name, _)| name).collect();
        let count = stranded.len();
        self.stranded.extend(stranded);
        Ok(count)
    }
}

/// The names and owners of all holds that a server has.
async fn owners(server: &RedisServer) -> Result<Vec<(String, String)>> {
    let keys: Vec<String> = server.try_query(&["KEYS", "*"]).await?;
    let mut owners = Vec::new();
    for key in keys {
        let kind: String = server.try_query(&["TYPE", &key]).await?;
        if kind != "hash" {
            continue;
        }
        let fields: Vec<(String, String)> = server.try_query(&["HGETALL", &key]).await?;
        let book = key.strip_prefix("lockcore_permits:{").and_then(|key| key.strip_suffix('}'));
        for (field, value) in fields {
            let owner = match book {
                Some(_) => value.splitn(3, ':').nth(2).unwrap_or_default(),
                None => field.trim_end_matches(WRITER),
            };
            owners.push((book.unwrap_or(&key).to_owned(), owner.to_owned()));
        }
    }
    Ok(owners)
}
