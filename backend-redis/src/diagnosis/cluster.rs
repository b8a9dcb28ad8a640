//! The nodes of a cluster.

use std::collections::{BTreeMap, HashMap};

use lockcore::{BackendError, Diagnosis, Finding, Severity};
use redis::Value;

use super::{Facts, Scope, Session, examine as examine_server, server_at, unreachable};
use crate::{
    cluster::{ClusterSeeds, NodeAddress},
    error,
    server::opener::ConnectOptions,
    url::relocated,
};

const SLOTS: &str = "16384";

/// Examines all nodes that one of the `seeds` knows.
///
/// # Errors
/// An error if none of them can be asked.
pub(super) async fn examine(
    seeds: ClusterSeeds,
    options: ConnectOptions,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let nodes = nodes(&seeds, &options).await?;
    judge_roles(&nodes, diagnosis);
    for node in &nodes {
        let info = relocated(&seeds.info, (node.address.host.to_string(), node.address.port));
        let server = server_at(info, &options);
        let examined = async {
            let mut session = Session::open(&server).await?;
            state(&mut session, diagnosis).await?;
            let facts = Facts::of(&mut session).await?;
            let slots = Some(node.slots.first().copied().unwrap_or((0, u16::MAX)));
            let may_be_replica = node.is_replica;
            let scope = Scope { slots, may_be_replica, ..scope };
            // A node without slots keeps no locks.
            if !node.is_replica && node.slots.is_empty() {
                return Ok(());
            }
            examine_server(&mut session, &server, facts, scope, diagnosis).await
        };
        if let Err(error) = examined.await {
            diagnosis.add(
                unreachable(&format!("the node {}", node.address), &error)
                    .because("the locks in its slots wait, or have lost a copy")
                    .to_do(REMOVE),
            );
        }
    }
    Ok(())
}

/// The advice about a node that is away.
const REMOVE: &str = "start it; only if it never comes back, and another node has its slots, \
                      remove it with CLUSTER FORGET on every other node within a minute; not while \
                      its slots have no other primary, or a failover or a resharding is under way";

/// A node, as another node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    id: String,
    address: NodeAddress,
    is_replica: bool,
    /// Set if the reporting node considers it down.
    is_failing: bool,
    /// The primary of a replica.
    primary: String,
    slots: Vec<(u16, u16)>,
}

/// Asks the seeds in turn for all nodes.
async fn nodes(seeds: &ClusterSeeds, options: &ConnectOptions) -> Result<Vec<Node>, BackendError> {
    let mut failure = None;
    for seed in &seeds.nodes {
        match nodes_of(seed, seeds, options).await {
            Ok(nodes) => return Ok(nodes),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| error::unexpected("CLUSTER NODES").not_applied()))
}

async fn nodes_of(
    seed: &NodeAddress,
    seeds: &ClusterSeeds,
    options: &ConnectOptions,
) -> Result<Vec<Node>, BackendError> {
    let info = relocated(&seeds.info, (seed.host.to_string(), seed.port));
    let mut session = Session::open(&server_at(info, options)).await?;
    let slots = session.words::<Value>(&["CLUSTER", "SLOTS"]).await??;
    let places = places(&slots, seed);
    match session.words::<String>(&["CLUSTER", "NODES"]).await? {
        Ok(text) => Ok(parse(&text, seed, &places)),
        // The user may lack the right to it, which the backend does not need.
        Err(_) => Ok(of_places(places)),
    }
}

/// A place that clients are sent to, with the ranges of its slots and its role.
#[derive(Clone, Debug)]
struct PlaceOfNode {
    address: NodeAddress,
    is_replica: bool,
    slots: Vec<(u16, u16)>,
}

/// The nodes in the answer to `CLUSTER SLOTS`, by their ids.
fn places(reply: &Value, sender: &NodeAddress) -> BTreeMap<String, PlaceOfNode> {
    let mut places = BTreeMap::new();
    let Value::Array(ranges) = reply else { return places };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = range.as_slice() else { continue };
        let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(*last)) else { continue };
        for (index, node) in nodes.iter().enumerate() {
            let Value::Array(node) = node else { continue };
            let Some(address) = NodeAddress::announced(node, sender) else { continue };
            let id = node.get(2).cloned().unwrap_or(Value::Nil);
            let id: Option<String> = redis::from_redis_value(id).ok().flatten();
            let new = || PlaceOfNode { address, is_replica: index > 0, slots: Vec::new() };
            let place: &mut PlaceOfNode = places.entry(id.unwrap_or_default()).or_insert_with(new);
            if index == 0 {
                place.slots.push((first, last));
            }
        }
    }
    places
}

fn of_places(places: BTreeMap<String, PlaceOfNode>) -> Vec<Node> {
    let node = |(id, place): (String, PlaceOfNode)| Node {
        id,
        address: place.address,
        is_replica: place.is_replica,
        is_failing: false,
        primary: String::new(),
        slots: place.slots,
    };
    places.into_iter().map(node).collect()
}

/// Parses the answer to `CLUSTER NODES`: a line for each with its id, its address, flags, its
/// primary, times, and slots. Clients are sent to the address of `places`, if there is one.
fn parse(text: &str, sender: &NodeAddress, places: &BTreeMap<String, PlaceOfNode>) -> Vec<Node> {
    let node = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, address, flags, primary, _, _, _, _, slots @ ..] = words.as_slice() else {
            return None;
        };
        let has = |flag: &str| flags.split(',').any(|known| known == flag);
        if has("handshake") {
            return None;
        }
        // `ip:port@bus,hostname`
        let address = address.split(['@', ',']).next().unwrap_or_default();
        let place = places.get(*id).map(|place| place.address.clone());
        Some(Node {
            id: (*id).to_owned(),
            address: place.or_else(|| NodeAddress::parse(address, sender))?,
            is_replica: has("slave"),
            is_failing: has("fail") || has("fail?") || has("noaddr"),
            primary: (*primary).to_owned(),
            slots: slots.iter().filter_map(|slots| range(slots)).collect(),
        })
    };
    text.lines().filter_map(node).collect()
}

/// `5` or `0-5460`; not `[5->-id]`, which is on its way.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn judge_roles(nodes: &[Node], diagnosis: &mut Diagnosis) {
    let mut replicas: HashMap<&str, usize> = HashMap::new();
    for node in nodes {
        if node.is_replica && !node.is_failing {
            *replicas.entry(node.primary.as_str()).or_default() += 1;
        }
        if node.is_failing {
            diagnosis.add(
                Finding::new(
                    "node-failing",
                    Severity::Problem,
                    format!("{} is down", node.address),
                )
                .because("the locks in its slots wait for a replica, or have lost a copy")
                .to_do(REMOVE),
            );
        }
    }
    // For nodes that are known from their slots only, the primaries of the replicas are unknown.
    let knows_replicas = nodes.iter().all(|node| !node.is_replica || !node.primary.is_empty());
    for node in nodes.iter().filter(|node| knows_replicas && !node.slots.is_empty()) {
        if !replicas.contains_key(node.id.as_str()) {
            let seen = format!("the primary {} has no replica that is up", node.address);
            diagnosis.add(
                Finding::new("node-alone", Severity::Advice, seen)
                    .because("if it fails, the locks in its slots can be used by nobody")
                    .to_do("add a replica for each primary (CLUSTER REPLICATE)"),
            );
        }
    }
}

/// A node's view of the state of the cluster.
async fn state(session: &mut Session, diagnosis: &mut Diagnosis) -> Result<(), BackendError> {
    // A user may have no right to it.
    let Ok(told) = session.words::<String>(&["CLUSTER", "INFO"]).await? else { return Ok(()) };
    let facts = Facts::parse(&told);
    if facts.text("cluster_state") == "fail" {
        let seen = format!("{} says that the cluster is down", session.address());
        diagnosis.add(
            Finding::new("cluster-down", Severity::Problem, seen)
                .because("it refuses each request for a lock")
                .to_do("bring the missing nodes back; see CLUSTER INFO and CLUSTER NODES there"),
        );
    }
    let assigned = facts.text("cluster_slots_assigned");
    if !assigned.is_empty() && assigned != SLOTS {
        let seen = format!("{} knows a node for {assigned} of {SLOTS} slots", session.address());
        diagnosis.add(
            Finding::new("cluster-slots", Severity::Problem, seen)
                .because("locks in the other slots can be used by nobody")
                .to_do("assign them: redis-cli --cluster fix"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
        a1 10.0.0.1:7000@17000,one.internal myself,master - 0 0 1 connected 0-8191 [5->-b1]\n\
        a2 10.0.0.2:7000@17000 slave,fail? a1 0 0 1 disconnected\n\
        b1 10.0.0.3:7000@17000 master - 0 0 2 connected 8192-16382 16383\n\
        b2 10.0.0.4:7000@17000 slave b1 0 0 2 connected\n\
        c1 :0@0 master,noaddr - 0 0 2 disconnected\n\
        d1 10.0.0.5:7000@17000 handshake - 0 0 0 connected\n";

    #[test]
    fn nodes_are_known_by_their_lines() {
        let sender = NodeAddress::new("seed", 7000);
        let slots = Value::Array(vec![Value::Array(vec![
            Value::Int(0),
            Value::Int(8191),
            Value::Array(vec![
                Value::BulkString(b"one.internal".to_vec()),
                Value::Int(7001),
                Value::BulkString(b"a1".to_vec()),
            ]),
        ])]);
        let nodes = parse(NODES, &sender, &places(&slots, &sender));
        let shown: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
        assert_eq!(shown, ["one.internal:7001", "10.0.0.2:7000", "10.0.0.3:7000", "10.0.0.4:7000"]);
        assert_eq!(nodes[0].slots, [(0, 8191)]);
        assert_eq!(nodes[2].slots, [(8192, 16_382), (16_383, 16_383)]);
        assert!(nodes[1].is_replica && nodes[1].is_failing && !nodes[3].is_failing);

        let mut diagnosis = Diagnosis::new();
        judge_roles(&nodes, &mut diagnosis);
        let found: Vec<_> = diagnosis.findings().iter().map(|f| (f.id(), f.seen())).collect();
        let alone = "the primary one.internal:7001 has no replica that is up";
        assert_eq!(found, [("node-failing", "10.0.0.2:7000 is down"), ("node-alone", alone)]);
    }
}
