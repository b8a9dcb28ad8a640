//! [`SlotMap`]: which node serves which slot. Pure: no I/O and no clock.

use std::{fmt, sync::Arc};

use lockcore::{BackendError, BackendErrorKind};
use redis::Value;

/// The number of slots of every cluster.
const SLOTS: u16 = 16_384;
/// Marks a slot that no node serves.
const NOBODY: u16 = u16::MAX;

/// The address of a node, as other nodes announce it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeAddress {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl NodeAddress {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Parses the address in a redirection: `host:port`, or `:port` for another node on the host of
    /// `sender`. Returns `None` if `sender` does not know the address.
    pub(crate) fn parse(address: &str, sender: &Self) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        // Zero stands for a port that the node does not know.
        let port = port.parse().ok().filter(|port| *port != 0)?;
        match host {
            UNKNOWN => None,
            "" => Some(Self { host: sender.host.clone(), port }),
            host => Some(Self::new(host, port)),
        }
    }

    /// Parses a node in the reply of `sender` to `CLUSTER SLOTS`: its host, its port, its id, and
    /// since Redis 7.0 its other addresses. A node that is told not to announce hosts sends none:
    /// clients use the host that they know.
    pub(crate) fn announced(node: &[Value], sender: &Self) -> Option<Self> {
        let [host, Value::Int(port), more @ ..] = node else { return None };
        let port = u16::try_from(*port).ok()?;
        let host = match host {
            Value::Nil => "",
            host => text(host)?,
        };
        // The node has no hostname, although the cluster announces hostnames.
        let host = match (host, more) {
            (UNKNOWN, [_, others, ..]) => address_in(others).unwrap_or_default(),
            (UNKNOWN, _) => "",
            (host, _) => host,
        };
        let host = if host.is_empty() { sender.host.clone() } else { host.into() };
        Some(Self { host, port })
    }
}

/// The host of a node whose hostname is not known.
const UNKNOWN: &str = "?";

/// The IP address among the other addresses of a node, which RESP3 sends as a map.
fn address_in(others: &Value) -> Option<&str> {
    let is_ip = |key: &Value| text(key) == Some("ip");
    let ip = match others {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| is_ip(key)).map(|(_, ip)| ip),
        Value::Array(words) => {
            words.chunks_exact(2).find(|pair| is_ip(&pair[0])).map(|pair| &pair[1])
        }
        _ => None,
    };
    text(ip?)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The primaries of a cluster, and the slots that each serves.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotMap {
    primaries: Vec<NodeAddress>,
    /// For each slot, the index of its primary.
    owners: Box<[u16]>,
}

/// Omits the slots, which are many.
impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap").field("primaries", &self.primaries).finish_non_exhaustive()
    }
}

impl Default for SlotMap {
    fn default() -> Self {
        Self { primaries: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)].into() }
    }
}

impl SlotMap {
    /// Parses the reply of `sender` to `CLUSTER SLOTS`: for each range of slots the first, the
    /// last, the primary, and its replicas. Returns `None` for anything else.
    pub(crate) fn parse(reply: &Value, sender: &NodeAddress) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut map = Self::default();
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
            else {
                return None;
            };
            let (first, last) = (slot(*first)?, slot(*last)?);
            let owner = map.index_of(NodeAddress::announced(primary, sender)?);
            map.owners.get_mut(first..=last)?.fill(owner);
        }
        Some(map)
    }

    fn index_of(&mut self, node: NodeAddress) -> u16 {
        let known = self.primaries.iter().position(|known| *known == node);
        let index = known.unwrap_or_else(|| {
            self.primaries.push(node);
            self.primaries.len() - 1
        });
        u16::try_from(index).unwrap_or(NOBODY)
    }

    /// The node that serves a slot, if one does.
    pub(crate) fn owner(&self, slot: u16) -> Option<&NodeAddress> {
        let index = *self.owners.get(usize::from(slot))?;
        self.primaries.get(usize::from(index))
    }

    /// Moves a slot to another node.
    pub(crate) fn set_owner(&mut self, slot: u16, node: NodeAddress) {
        let index = self.index_of(node);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = index;
        }
    }

    pub(crate) fn primaries(&self) -> &[NodeAddress] {
        &self.primaries
    }

    /// The number of slots that no node serves.
    pub(crate) fn unserved(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == NOBODY).count()
    }
}

fn slot(number: i64) -> Option<usize> {
    usize::try_from(number).ok().filter(|slot| *slot < usize::from(SLOTS))
}

/// The slot of a key or channel: that of the text in the first braces, if there is any.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// The slot of the keys of a call. They must not be in several slots.
pub(crate) fn slot_of_keys(keys: &[String]) -> Result<u16, BackendError> {
    let mut keys = keys.iter();
    let first = keys.next().map_or("", String::as_str);
    let slot = slot_of(first);
    match keys.find(|key| slot_of(key) != slot) {
        None => Ok(slot),
        Some(other) => {
            let message = format!(
                "the keys `{first}` and `{other}` are in different slots of the cluster; \
                 choose a name without braces, or with one pair of braces"
            );
            Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied())
        }
    }
}

/// The checksum CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = crc16_table();
    bytes.iter().fold(0, |crc, byte| {
        let index = usize::from((crc >> 8) as u8 ^ byte);
        (crc << 8) ^ TABLE[index]
    })
}

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender() -> NodeAddress {
        NodeAddress::new("seed.example", 6379)
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        let replica = Value::Array(vec![text("replica"), Value::Int(1), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary, replica])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    /// The range of a node without a hostname.
    fn unnamed(slot: i64, others: Value) -> Value {
        let primary = Value::Array(vec![text("?"), Value::Int(7000), text("id"), others]);
        Value::Array(vec![Value::Int(slot), Value::Int(slot), primary])
    }

    #[test]
    fn the_slot_of_a_key_is_that_of_its_first_tag() {
        // The values of CLUSTER KEYSLOT.
        for (key, slot) in [
            ("123456789", 12_739),
            ("", 0),
            ("foo", 12_182),
            ("{foo}.bar", 12_182),
            ("a{foo}b{c}", 12_182),
            ("{}foo", 9_500),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("{{foo}}"), crc16(b"{foo") % SLOTS);
        assert_eq!(slot_of("foo{"), crc16(b"foo{") % SLOTS);
    }

    #[test]
    fn a_map_has_the_primary_of_each_slot_and_hosts_may_be_left_out() {
        let reply = Value::Array(vec![
            range(0, 99, text("10.0.0.1"), 7000),
            range(100, 199, text(""), 7001),
            range(200, 299, text("?"), 7002),
            range(300, 399, Value::Nil, 7003),
            range(400, 400, text("node.example"), 7004),
            range(401, 401, text("10.0.0.1"), 7000),
        ]);
        let map = SlotMap::parse(&reply, &sender()).unwrap();
        for (slot, owner) in [
            (0, "10.0.0.1:7000"),
            (199, "seed.example:7001"),
            (200, "seed.example:7002"),
            (399, "seed.example:7003"),
            (400, "node.example:7004"),
            (401, "10.0.0.1:7000"),
        ] {
            assert_eq!(map.owner(slot).unwrap().to_string(), owner, "{slot}");
        }
        assert_eq!(map.owner(402), None);
        assert_eq!((map.primaries().len(), map.unserved()), (5, 16_384 - 402));
    }

    #[test]
    fn a_node_without_a_hostname_has_its_ip_address() {
        let others = || (text("ip"), text("10.0.0.7"));
        let in_map = Value::Map(vec![(text("hostname"), text("")), others()]);
        let in_array = Value::Array(vec![others().0, others().1]);
        let reply = Value::Array(vec![
            unnamed(0, in_map),
            unnamed(1, in_array),
            unnamed(2, Value::Array(vec![])),
        ]);
        let map = SlotMap::parse(&reply, &sender()).unwrap();
        let owner = |slot| map.owner(slot).unwrap().to_string();
        assert_eq!([0, 1, 2].map(owner), ["10.0.0.7:7000", "10.0.0.7:7000", "seed.example:7000"]);
    }

    #[test]
    fn other_replies_are_no_map() {
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![range(0, 16_384, text("h"), 1)]),
            Value::Array(vec![range(-1, 5, text("h"), 1)]),
            Value::Array(vec![range(5, 4, text("h"), 1), range(0, 0, Value::Int(1), 1)]),
            Value::Array(vec![range(0, 1, text("h"), 70_000)]),
        ] {
            assert_eq!(SlotMap::parse(&reply, &sender()), None, "{reply:?}");
        }
    }

    #[test]
    fn a_redirection_may_leave_out_the_host_and_have_an_ipv6_address() {
        for (address, parsed) in [
            ("10.0.0.1:7000", Some(NodeAddress::new("10.0.0.1", 7000))),
            (":7000", Some(NodeAddress::new("seed.example", 7000))),
            ("?:7000", None),
            ("2001:db8::1:7000", Some(NodeAddress::new("2001:db8::1", 7000))),
            ("host:0", None),
            ("host", None),
        ] {
            assert_eq!(NodeAddress::parse(address, &sender()), parsed, "{address}");
        }
    }

    #[test]
    fn a_slot_that_moves_leaves_the_others_where_they_are() {
        let reply = Value::Array(vec![range(0, 16_383, text("h"), 1)]);
        let mut map = SlotMap::parse(&reply, &sender()).unwrap();
        map.set_owner(7, NodeAddress::new("other", 2));
        assert_eq!(map.owner(7).unwrap().to_string(), "other:2");
        assert_eq!(map.owner(8).unwrap().to_string(), "h:1");
    }
}
