//! A walk over the names of a cluster, at one primary after the other.
//!
//! A lock that moves with its slot to a node where the walk has been would be missed. So at its
//! beginning, the walk notes what each primary claims: its id, its epoch, and the slots that it
//! serves. Together, the primaries must serve each slot once. After each step, the node is asked
//! again, and must claim the same, with no slot in transit. This proves that every step was made at
//! the node that had all keys of its slots, so a name that is in use all the time is found.
//! Otherwise the walk fails: when a slot moves, a replica takes over, or a node is down or
//! restarted.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures_util::future::try_join_all;
use lockcore::{
    BackendError, LockName,
    backend::{Cursor, Page, Start},
};
use redis::from_redis_value;

use super::{Cluster, NodeAddress};
use crate::{
    directory::{Scanned, begin_again, scan, words},
    error,
    server::CommandConnection,
};

/// The first word of a cursor. The position at the first node follows, and then the remaining
/// nodes.
const OF_CLUSTER: &str = "cluster";

/// The number of slots of every cluster.
const SLOTS: usize = 16_384;

/// A page of the names of a cluster, without the prefix.
pub(crate) async fn names(
    cluster: &Arc<Cluster>,
    prefix: &str,
    start: &Start,
) -> Result<Page<LockName>, BackendError> {
    cluster.refresh_if_old();
    let mut place = match start {
        Start::Beginning => Place { scan: 0, nodes: cluster.nodes_to_visit().await? },
        Start::At(cursor) => Place::parse(cursor)?,
    };
    let Some((node, before)) = place.nodes.first().cloned() else {
        return Err(begin_again("the cluster has no primaries"));
    };
    if !cluster.map().primaries().contains(&node) {
        return Err(cluster.has_changed(&node));
    }
    let connection = cluster.nodes.server(&node).connection().await?;
    let Scanned { entries, next } = scan(&connection, prefix, place.scan).await?;
    let now = Claim::of(&connection, &node).await?;
    if now.fingerprint(&connection) != before || now.is_moving {
        return Err(cluster.has_changed(&node));
    }
    if next.is_none() {
        place.nodes.remove(0);
    }
    place.scan = next.unwrap_or_default();
    let next = (!place.nodes.is_empty()).then(|| place.cursor());
    Ok(Page::new(entries, next))
}

/// The place where a walk goes on.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    scan: u64,
    /// The remaining nodes, each with a fingerprint of its claim.
    nodes: Vec<(NodeAddress, u64)>,
}

impl Place {
    fn parse(cursor: &Cursor) -> Result<Self, BackendError> {
        let parsed = || match words(cursor).as_slice() {
            [OF_CLUSTER, scan, nodes @ ..] if !nodes.is_empty() => {
                let nodes = nodes.iter().map(|node| {
                    let (address, fingerprint) = node.rsplit_once('/')?;
                    let (host, port) = address.rsplit_once(':')?;
                    let node = NodeAddress::new(host, port.parse().ok()?);
                    Some((node, u64::from_str_radix(fingerprint, 16).ok()?))
                });
                Some(Self { scan: scan.parse().ok()?, nodes: nodes.collect::<Option<_>>()? })
            }
            _ => None,
        };
        parsed().ok_or_else(|| cursor.refused())
    }

    fn cursor(&self) -> Cursor {
        let nodes = self.nodes.iter().map(|(node, claim)| format!(" {node}/{claim:x}"));
        Cursor::new(format!("{OF_CLUSTER} {}{}", self.scan, nodes.collect::<String>()))
    }
}

impl Cluster {
    /// The primaries, each with a fingerprint of its claim.
    async fn nodes_to_visit(self: &Arc<Self>) -> Result<Vec<(NodeAddress, u64)>, BackendError> {
        let map = self.map();
        let asking = map.primaries().iter().map(async |node| {
            let connection = self.nodes.server(node).connection().await?;
            let claim = Claim::of(&connection, node).await?;
            Ok::<_, BackendError>((node.clone(), claim.fingerprint(&connection), claim))
        });
        let claims = try_join_all(asking).await?;
        let mut served = vec![0_u8; SLOTS];
        for (node, _, claim) in &claims {
            if claim.is_moving {
                return Err(self.has_changed(node));
            }
            for (first, last) in &claim.slots {
                let slots = served.get_mut(*first..=*last).unwrap_or_default();
                slots.iter_mut().for_each(|count| *count = count.saturating_add(1));
            }
        }
        if served.iter().any(|count| *count != 1) {
            self.refresh_soon();
            let message = "not every slot of the cluster is served by one node that can be asked, \
                           so that names would be missed; begin again when it serves all";
            return Err(begin_again(message));
        }
        Ok(claims.into_iter().map(|(node, fingerprint, _)| (node, fingerprint)).collect())
    }

    fn has_changed(self: &Arc<Self>, node: &NodeAddress) -> BackendError {
        self.refresh_soon();
        let message = format!(
            "slots of {node} are moving or have moved, or another node has replaced it, so that \
             names would be missed; begin the walk again"
        );
        begin_again(message)
    }
}

/// A node's description of itself.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    id: String,
    /// Rises whenever the node takes over slots.
    epoch: String,
    /// The first and the last of each range.
    slots: Vec<(usize, usize)>,
    /// Set if some of its slots are moving to another node, or to this one.
    is_moving: bool,
}

impl Claim {
    async fn of(connection: &CommandConnection, node: &NodeAddress) -> Result<Self, BackendError> {
        let command = redis::cmd("CLUSTER").arg("NODES").take();
        let reply = connection.query(command).await;
        let reply = reply.map_err(|error| error::of_node(error, "CLUSTER NODES", node));
        let nodes: Option<String> = from_redis_value(reply?).ok();
        let claim = nodes.as_deref().and_then(Self::parse);
        claim.ok_or_else(|| error::unexpected("CLUSTER NODES").not_applied())
    }

    /// Parses the line of the node itself: id, address, flags, primary, two times, epoch, state of
    /// the link, and then the slots.
    fn parse(nodes: &str) -> Option<Self> {
        let lines = nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let own = |line: &Vec<&str>| line.get(2).is_some_and(|flags| has_flag(flags, "myself"));
        let line = lines.into_iter().find(own)?;
        let [id, _, flags, _, _, _, epoch, _, slots @ ..] = line.as_slice() else { return None };
        let (moving, slots): (Vec<_>, Vec<_>) = slots
            .iter()
            .filter(|slots| !slots.is_empty())
            .partition(|slots| slots.starts_with('['));
        let range = |slots: &&&str| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Self {
            id: (*id).to_owned(),
            epoch: (*epoch).to_owned(),
            slots: slots.iter().map(range).collect::<Option<_>>()?,
            is_moving: !moving.is_empty() || !has_flag(flags, "master"),
        })
    }

    /// A hash of everything that a walk depends on. A restarted process has other cursors.
    fn fingerprint(&self, connection: &CommandConnection) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.id, &self.epoch, &self.slots, connection.process()).hash(&mut hasher);
        hasher.finish()
    }
}

fn has_flag(flags: &str, flag: &str) -> bool {
    flags.split(',').any(|one| one == flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
        07c3 127.0.0.1:30004@31004,host4 slave e7d1 0 1426238317239 4 connected\n\
        67ed 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922\n\
        e7d1 127.0.0.1:30001@31001 myself,master - 0 0 12 connected 0-5460 10923 [93-<-292f]\n";

    #[test]
    fn a_node_says_of_itself_who_it_is_and_what_it_serves() {
        let claim = Claim::parse(NODES).unwrap();
        assert_eq!((claim.id.as_str(), claim.epoch.as_str()), ("e7d1", "12"));
        assert_eq!(claim.slots, [(0, 5460), (10_923, 10_923)]);
        assert!(claim.is_moving);
        let calm = NODES.replace(" [93-<-292f]", "");
        assert!(!Claim::parse(&calm).unwrap().is_moving);
        let replica = calm.replace("myself,master", "myself,slave");
        assert!(Claim::parse(&replica).unwrap().is_moving, "not the place for locks");
        for wrong in ["", "a b c", &calm.replace("myself,", ""), &calm.replace("5460", "x")] {
            assert_eq!(Claim::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_cursor_has_the_nodes_that_are_left() {
        let nodes =
            vec![(NodeAddress::new("::1", 7000), 0x1f), (NodeAddress::new("h", 1), u64::MAX)];
        let place = Place { scan: 17, nodes };
        assert_eq!(place.cursor().as_str(), "cluster 17 ::1:7000/1f h:1/ffffffffffffffff");
        assert_eq!(Place::parse(&place.cursor()).unwrap(), place);
        for wrong in ["", "cluster 17", "cluster x h:1/1", "cluster 1 h/1", "server 1 h:1/1"] {
            assert!(Place::parse(&Cursor::new(wrong)).is_err(), "{wrong}");
        }
    }
}
