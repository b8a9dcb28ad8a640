//! [`View`]: what one node of a cluster knows about all nodes.

use std::{collections::BTreeMap, fmt::Write as _, ops::RangeInclusive};

/// The answer to `CLUSTER NODES`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The state of each node, by id.
    pub(super) nodes: BTreeMap<String, NodeState>,
    /// The id of the node that answers.
    pub(super) myself: String,
}

/// The state of a node, without the fields that differ between observers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    /// The id of its primary; `None` if it is one itself.
    pub(super) primary: Option<String>,
    pub(super) epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
    pub(super) is_met: bool,
    pub(super) is_connected: bool,
    /// When the observer last got a pong, in milliseconds since the Unix epoch; 0 for never.
    pub(super) last_pong: u64,
}

/// The primary of a node, its epoch, and its slots.
type Place<'a> = (Option<&'a str>, u64, &'a [RangeInclusive<u16>]);

impl NodeState {
    fn place(&self) -> Place<'_> {
        (self.primary.as_deref(), self.epoch, &self.slots)
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        self.primary.is_none() && self.slots.iter().any(|range| range.contains(&slot))
    }
}

impl View {
    /// Reads the answer: `id address flags primary ping pong epoch link slots..` in each line.
    pub(super) fn parse(answer: &str) -> Option<Self> {
        let mut nodes = BTreeMap::new();
        let mut myself = None;
        for line in answer.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [id, _, flags, primary, _, pong, epoch, link, slots @ ..] = words.as_slice() else {
                return None;
            };
            let has = |flag: &str| flags.split(',').any(|it| it == flag);
            if has("myself") {
                myself = Some((*id).to_owned());
            }
            let state = NodeState {
                primary: has("slave").then(|| (*primary).to_owned()),
                epoch: epoch.parse().ok()?,
                slots: slots.iter().filter_map(|range| parse_range(range)).collect(),
                is_met: !has("handshake") && !has("noaddr"),
                is_connected: *link == "connected" && !has("fail") && !has("fail?"),
                last_pong: pong.parse().ok()?,
            };
            nodes.insert((*id).to_owned(), state);
        }
        Some(Self { nodes, myself: myself? })
    }

    /// The facts that nodes agree on eventually: the slots of each node, its primary, and the
    /// epoch. A node that does not know the last epoch may use the same one for its next change;
    /// then a slot may end up at no node at all.
    pub(super) fn topology(&self) -> BTreeMap<&str, Place<'_>> {
        let places = self.nodes.iter().map(|(id, node)| (id.as_str(), node.place()));
        places.collect()
    }

    /// How the topologies of two nodes differ.
    pub(super) fn difference(&self, other: &Self) -> String {
        let (mine, theirs) = (self.topology(), other.topology());
        let mut difference = format!("nodes {} and {} do not agree", self.myself, other.myself);
        for id in mine.keys().chain(theirs.keys().filter(|id| !mine.contains_key(*id))) {
            let (one, another) = (mine.get(id), theirs.get(id));
            if one != another {
                let _ = write!(difference, "; about {id}: {one:?} and {another:?}");
            }
        }
        difference
    }
}

/// `5` or `0-5460`; `None` for a migrating slot, `[5->-id]`.
fn parse_range(range: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::View;

    #[test]
    fn a_view_tells_roles_slots_and_links() {
        let answer = "\
            aa 127.0.0.1:1@10001,, myself,master - 0 0 1 connected 0-99 200 [7->-bb]\n\
            bb 127.0.0.1:2@10002 slave,fail? aa 0 0 1 connected\n\
            cc 127.0.0.1:3@10003 handshake - 0 1700 0 disconnected\n";
        let view = View::parse(answer).unwrap();
        assert_eq!(view.myself, "aa");
        let [a, b, c] = ["aa", "bb", "cc"].map(|id| &view.nodes[id]);
        assert_eq!((a.slots.as_slice(), a.epoch), ([0..=99, 200..=200].as_slice(), 1));
        assert!(a.has(99) && !a.has(100) && a.has(200) && a.is_connected);
        assert_eq!((b.primary.as_deref(), b.is_met, b.is_connected), (Some("aa"), true, false));
        assert!(!c.is_met);
        assert_eq!((b.last_pong, c.last_pong), (0, 1700));
        assert_eq!(View::parse("-ERR"), None);
    }
}
