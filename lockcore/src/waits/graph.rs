//! Cycles in the graph of who waits for whom.
//!
//! A node for a wait stands for the waiter. It leads to the waiter's *need* of a name: shared or
//! exclusive. A need leads to every wait beside which a hold is kept that blocks the need, so that
//! the number of edges is the sum of waits and holds, and not their product. A hold of a named
//! owner leads to all waits of that owner, in whichever client.
//!
//! A writer that waits for readers keeps new readers out (C25), in whichever order they came. So
//! the need for a shared name leads to each wait of a writer for that name as well.
//!
//! Other places in a queue need no edge, neither in the queue of a fair lock nor in the line of a
//! client: an exclusive waiter is blocked by the same holds as the waiters before it. So a cycle
//! through such a place is also a cycle without it. The same is true of a reader behind a writer
//! while a writer holds the name.

use std::collections::{HashMap, VecDeque};

use super::record::{HoldRecord, WaitRecord};

/// The most cycles that are looked for.
const MOST_CYCLES: usize = 64;

/// How certain it is that a cycle is a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Level {
    /// Nothing in it ends by itself, and the waiting owners are the holders.
    Owners,
    /// Nothing in it ends by itself, and some of the holders are other owners used by a task that
    /// waits.
    Tasks,
    /// Some wait or hold in it ends by itself.
    Any,
}

/// A cycle of waits. Each is blocked by a hold that is kept beside the next wait, and the last one
/// by a hold beside the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundCycle {
    /// The index of each wait, and what blocks it.
    pub(crate) links: Vec<(usize, Blocker)>,
    pub(crate) level: Level,
}

/// The obstacle of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocker {
    /// A hold: the index of the wait beside which it is kept, and its index there.
    Hold(usize, usize),
    /// The next wait of the cycle, by a writer for the same name.
    Place,
}

/// The reported facts that were refuted, and are left out of the graph.
pub(crate) struct Refuted<'a> {
    pub(crate) hold: &'a dyn Fn(&HoldRecord) -> bool,
    /// `true` if the writer's wait with this index does not keep readers out.
    pub(crate) place: &'a dyn Fn(usize) -> bool,
}

/// The way in which a name is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Need {
    Shared,
    Alone,
}

impl Need {
    /// The need of a wait in this mode. `None` for permits and unknown modes, which no single hold
    /// blocks.
    fn of(mode: &str) -> Option<Self> {
        match mode {
            "read" => Some(Self::Shared),
            "exclusive" | "fair" | "write" => Some(Self::Alone),
            _ => None,
        }
    }

    /// The needs that a hold in this mode blocks.
    fn against(mode: &str) -> &'static [Self] {
        match Self::of(mode) {
            Some(Self::Alone) => &[Self::Shared, Self::Alone],
            Some(Self::Shared) => &[Self::Alone],
            None => &[],
        }
    }
}

impl Level {
    const ALL: [Self; 3] = [Self::Owners, Self::Tasks, Self::Any];

    fn takes(self, wait: &WaitRecord) -> bool {
        self == Self::Any || !wait.limited
    }

    fn takes_hold(self, hold: &HoldRecord) -> bool {
        match self {
            Self::Owners => hold.renewed && !hold.task,
            Self::Tasks => hold.renewed,
            Self::Any => true,
        }
    }
}

/// An edge, and the obstacle that it stands for, if it comes from a need.
#[derive(Clone, Copy, Debug)]
struct Edge {
    to: usize,
    by: Option<Blocker>,
}

/// The first nodes are the waits.
#[derive(Debug)]
struct Graph {
    next: Vec<Vec<Edge>>,
    waits: usize,
}

/// Finds cycles: at least one if there is any, and no two that share a wait. It looks for the most
/// certain ones first.
pub(crate) fn cycles(waits: &[&WaitRecord], refuted: &Refuted<'_>) -> Vec<FoundCycle> {
    let mut is_free: Vec<bool> = vec![true; waits.len()];
    let mut found = Vec::new();
    for level in Level::ALL {
        let graph = Graph::new(waits, refuted, level, &is_free);
        graph.find(level, &mut is_free, &mut found);
    }
    found
}

impl Graph {
    /// The graph of the waits that are free.
    fn new(waits: &[&WaitRecord], refuted: &Refuted<'_>, level: Level, is_free: &[bool]) -> Self {
        let mut graph = Self { next: vec![Vec::new(); waits.len()], waits: waits.len() };
        let mut needs: HashMap<(&str, Need), usize> = HashMap::new();
        let mut owners: HashMap<&str, usize> = HashMap::new();
        let taken = || {
            let all = waits.iter().enumerate();
            all.filter(|(at, wait)| is_free[*at] && level.takes(wait))
        };
        for (at, wait) in taken() {
            if let Some(need) = Need::of(&wait.mode) {
                let to = *needs.entry((&wait.lock, need)).or_insert_with(|| graph.add());
                graph.next[at].push(Edge { to, by: None });
            }
            if wait.named {
                let owner = *owners.entry(&wait.owner).or_insert_with(|| graph.add());
                graph.next[owner].push(Edge { to: at, by: None });
            }
        }
        for (at, wait) in taken() {
            let holds = wait.holds.iter().enumerate();
            let holds = holds.filter(|(_, hold)| level.takes_hold(hold) && !(refuted.hold)(hold));
            for (number, hold) in holds {
                let owner = owners.get(wait.owner.as_str()).filter(|_| wait.named && !hold.task);
                let by = Some(Blocker::Hold(at, number));
                let edge = Edge { to: owner.copied().unwrap_or(at), by };
                for need in Need::against(&hold.mode) {
                    if let Some(need) = needs.get(&(hold.lock.as_str(), *need)) {
                        graph.next[*need].push(edge);
                    }
                }
            }
            let readers = needs.get(&(wait.lock.as_str(), Need::Shared));
            if let Some(readers) = readers.filter(|_| wait.mode == "write" && !(refuted.place)(at))
            {
                graph.next[*readers].push(Edge { to: at, by: Some(Blocker::Place) });
            }
        }
        graph
    }

    fn add(&mut self) -> usize {
        self.next.push(Vec::new());
        self.next.len() - 1
    }

    /// Adds the cycles to `found`, and takes their waits.
    fn find(&self, level: Level, is_free: &mut [bool], found: &mut Vec<FoundCycle>) {
        let mut is_alive = vec![true; self.next.len()];
        while found.len() < MOST_CYCLES {
            self.trim(&mut is_alive);
            let Some(start) = is_alive.iter().position(|is_alive| *is_alive) else { break };
            let on_cycle = self.walk(start, &is_alive);
            let links = self.shortest(on_cycle, &is_alive);
            for (wait, _) in &links {
                (is_alive[*wait], is_free[*wait]) = (false, false);
            }
            if links.is_empty() {
                break;
            }
            found.push(FoundCycle { links, level });
        }
    }

    /// Keeps alive only the nodes that lead into a cycle, by removing nodes without a living
    /// successor.
    fn trim(&self, is_alive: &mut [bool]) {
        let mut before = vec![Vec::new(); self.next.len()];
        let mut ways = vec![0_usize; self.next.len()];
        for (from, edges) in self.next.iter().enumerate() {
            for edge in edges.iter().filter(|edge| is_alive[edge.to]) {
                before[edge.to].push(from);
                ways[from] += 1;
            }
        }
        let is_dead_end = |node: &usize| ways[*node] == 0;
        let mut dead: Vec<usize> = (0..self.next.len()).filter(is_dead_end).collect();
        while let Some(node) = dead.pop() {
            // A node that was dead before must not be processed again.
            if !std::mem::replace(&mut is_alive[node], false) {
                continue;
            }
            for from in &before[node] {
                ways[*from] -= 1;
                if ways[*from] == 0 {
                    dead.push(*from);
                }
            }
        }
    }

    fn living<'a>(&'a self, node: usize, is_alive: &'a [bool]) -> impl Iterator<Item = Edge> + 'a {
        self.next[node].iter().copied().filter(|edge| is_alive[edge.to])
    }

    /// A node on a cycle that `start`, which is alive after trimming, leads into.
    fn walk(&self, start: usize, is_alive: &[bool]) -> usize {
        let (mut seen, mut node) = (vec![false; self.next.len()], start);
        while !std::mem::replace(&mut seen[node], true) {
            match self.living(node, is_alive).next() {
                Some(edge) => node = edge.to,
                None => break,
            }
        }
        node
    }

    /// The links of the shortest cycle through `start`. None if there is no such cycle.
    fn shortest(&self, start: usize, is_alive: &[bool]) -> Vec<(usize, Blocker)> {
        let mut came: Vec<Option<(usize, Edge)>> = vec![None; self.next.len()];
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for edge in self.living(node, is_alive) {
                if came[edge.to].is_none() {
                    came[edge.to] = Some((node, edge));
                    queue.push_back(edge.to);
                }
            }
            if came[start].is_some() {
                break;
            }
        }
        // From the end to the beginning: each edge out of a need has its obstacle, and the wait
        // that has the need comes before it.
        let (mut links, mut by, mut node) = (Vec::new(), None, start);
        let mut first_wait = None;
        while let Some((from, edge)) = came[node] {
            by = edge.by.or(by);
            if from < self.waits {
                match by.take() {
                    Some(by) => links.push((from, by)),
                    // The edge belongs to the part of the path that is visited last.
                    None => first_wait = Some(from),
                }
            }
            node = from;
            if node == start {
                break;
            }
        }
        links.extend(first_wait.zip(by));
        links.reverse();
        // Starts with the wait that comes first in the input.
        let least = links.iter().enumerate().min_by_key(|(_, (wait, _))| *wait);
        let turn = least.map_or(0, |(at, _)| at);
        links.rotate_left(turn);
        links
    }
}

#[cfg(test)]
mod tests {
    use arbtest::{arbitrary, arbitrary::Unstructured, arbtest};

    use super::*;

    fn hold(lock: &str, mode: &str) -> HoldRecord {
        let (lock, mode) = (lock.into(), mode.into());
        HoldRecord { lock, mode, renewed: true, ..Default::default() }
    }

    fn wait(lock: &str, mode: &str, holds: &[HoldRecord]) -> WaitRecord {
        let (lock, mode, holds) = (lock.into(), mode.into(), holds.to_vec());
        WaitRecord { lock, mode, holds, ..Default::default() }
    }

    fn all_cycles(waits: &[WaitRecord]) -> Vec<FoundCycle> {
        let nothing = Refuted { hold: &|_| false, place: &|_| false };
        cycles(&waits.iter().collect::<Vec<_>>(), &nothing)
    }

    fn found(waits: &[WaitRecord]) -> Vec<(Level, Vec<usize>)> {
        let cycles = all_cycles(waits);
        let of = |cycle: &FoundCycle| cycle.links.iter().map(|(wait, _)| *wait).collect();
        cycles.iter().map(|cycle| (cycle.level, of(cycle))).collect()
    }

    #[test]
    fn three_owners_that_wait_for_each_other_are_one_cycle_in_their_order() {
        let waits = [
            wait("b", "exclusive", &[hold("a", "exclusive")]),
            wait("x", "exclusive", &[hold("y", "exclusive")]),
            wait("c", "fair", &[hold("b", "exclusive")]),
            wait("a", "write", &[hold("other", "read"), hold("c", "exclusive")]),
        ];
        assert_eq!(found(&waits), [(Level::Owners, vec![0, 2, 3])]);
        let cycle = &all_cycles(&waits)[0];
        let blockers: Vec<_> = cycle.links.iter().map(|(_, by)| *by).collect();
        assert_eq!(blockers, [Blocker::Hold(2, 0), Blocker::Hold(3, 1), Blocker::Hold(0, 0)]);
    }

    #[test]
    fn a_reader_waits_for_a_writer_that_waits_for_other_readers() {
        let waits = [
            wait("m", "exclusive", &[hold("l", "read")]),
            wait("l", "read", &[hold("m", "exclusive")]),
            wait("l", "write", &[]),
        ];
        assert_eq!(found(&waits), [(Level::Owners, vec![0, 1, 2])]);
        let blockers: Vec<_> = all_cycles(&waits)[0].links.iter().map(|(_, by)| *by).collect();
        assert_eq!(blockers, [Blocker::Hold(1, 0), Blocker::Place, Blocker::Hold(0, 0)]);
        assert_eq!(found(&waits[..2]), [], "without a writer, readers are together");
        let mut elsewhere = waits.clone();
        elsewhere[2].lock = "k".into();
        assert_eq!(found(&elsewhere), [], "the writer wants another name");
        let mut limited = waits;
        limited[2].limited = true;
        assert_eq!(found(&limited)[0].0, Level::Any, "the writer gives up");
    }

    #[test]
    fn what_is_refuted_hides_nothing() {
        let waits = [
            wait("b", "exclusive", &[hold("a", "exclusive")]),
            wait("a", "exclusive", &[hold("b", "exclusive"), hold("l", "read")]),
            wait("a", "write", &[hold("b", "write")]),
            wait("l", "write", &[]),
            wait("l", "read", &[hold("a", "exclusive")]),
        ];
        assert_eq!(found(&waits)[0].1, [0, 1]);
        let waits: Vec<&WaitRecord> = waits.iter().collect();
        let without_hold = Refuted {
            hold: &|hold| hold.lock == "b" && hold.mode == "exclusive",
            place: &|_| false,
        };
        let again = cycles(&waits, &without_hold);
        assert_eq!(again[0].links, [(0, Blocker::Hold(2, 0)), (2, Blocker::Hold(0, 0))]);
        let is_b = |hold: &HoldRecord| hold.lock == "b";
        let without_holds = Refuted { hold: &is_b, place: &|_| false };
        let third = &cycles(&waits, &without_holds)[0].links;
        assert_eq!(third.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), [1, 4, 3]);
        let nothing_left = Refuted { hold: &is_b, place: &|wait| wait == 3 };
        assert_eq!(cycles(&waits, &nothing_left), []);
    }

    #[test]
    fn readers_wait_for_writers_only_and_permits_are_in_nobodys_way() {
        let pair = |wanted: &str, held: &str| {
            found(&[
                wait("b", wanted, &[hold("a", "exclusive")]),
                wait("a", "exclusive", &[hold("b", held)]),
            ])
            .len()
        };
        for (wanted, held, cycles) in [
            ("read", "write", 1),
            ("write", "read", 1),
            ("read", "read", 0),
            ("permit", "permit", 0),
            ("new", "new", 0),
        ] {
            assert_eq!(pair(wanted, held), cycles, "{wanted} {held}");
        }
    }

    #[test]
    fn what_ends_by_itself_or_is_known_by_the_task_alone_says_less() {
        let level = |limited, renewed, task| {
            let other = HoldRecord { renewed, task, ..hold("b", "exclusive") };
            let first = wait("b", "exclusive", &[hold("a", "exclusive")]);
            found(&[WaitRecord { limited, ..first }, wait("a", "exclusive", &[other])])[0].0
        };
        assert_eq!(level(false, true, false), Level::Owners);
        assert_eq!(level(false, true, true), Level::Tasks);
        assert_eq!(level(true, true, false), Level::Any);
        assert_eq!(level(false, false, true), Level::Any);
    }

    #[test]
    fn a_named_owner_is_the_same_one_in_two_clients() {
        let named = |wait: WaitRecord| WaitRecord { named: true, owner: "job".into(), ..wait };
        let waits = [
            named(wait("elsewhere", "exclusive", &[hold("a", "exclusive")])),
            named(wait("b", "exclusive", &[])),
            wait("a", "exclusive", &[hold("b", "exclusive")]),
        ];
        assert_eq!(found(&waits), [(Level::Owners, vec![1, 2])]);
        let strangers: Vec<WaitRecord> =
            waits.iter().map(|wait| WaitRecord { named: false, ..wait.clone() }).collect();
        assert_eq!(found(&strangers), []);
    }

    #[test]
    fn ten_thousand_readers_and_writers_are_looked_at_at_once() {
        let waits: Vec<WaitRecord> = (0..10_000)
            .map(|at| {
                let (wanted, held) = if at % 2 == 0 { ("x", "y") } else { ("y", "z") };
                wait(wanted, "write", &[hold(held, "read")])
            })
            .collect();
        let start = std::time::Instant::now();
        assert_eq!(found(&waits), []);
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "no edge for each pair");
    }

    const MODES: [&str; 5] = ["read", "write", "exclusive", "fair", "permit"];

    fn random(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<WaitRecord>> {
        let names = u.int_in_range(1..=8)?;
        let waits = (0..u.int_in_range(0..=10)?).map(|_| {
            let name = |u: &mut Unstructured<'_>| Ok(format!("n{}", u.int_in_range(1..=names)?));
            let mut holds = Vec::new();
            for _ in 0..u.int_in_range(0..=2)? {
                let (renewed, task) = (u.ratio(3, 4)?, u.ratio(1, 4)?);
                holds.push(HoldRecord { renewed, task, ..hold(&name(u)?, u.choose(&MODES)?) });
            }
            let (named, limited) = (u.ratio(1, 3)?, u.ratio(1, 4)?);
            let owner = format!("o{}", u.int_in_range(0..=2)?);
            let wait = wait(&name(u)?, u.choose(&MODES)?, &holds);
            Ok(WaitRecord { named, limited, owner, ..wait })
        });
        waits.collect()
    }

    /// Returns `true` if `to` keeps something that blocks `from`: the definition, pair by pair.
    fn waits_for(from: &WaitRecord, to: &WaitRecord, all: &[WaitRecord]) -> bool {
        let is_in_the_way = |hold: &HoldRecord| {
            let alone = ["write", "exclusive", "fair"];
            let (wanted, held) = (from.mode.as_str(), hold.mode.as_str());
            hold.lock == from.lock
                && (alone.contains(&wanted) && (alone.contains(&held) || held == "read")
                    || wanted == "read" && alone.contains(&held))
        };
        if from.mode == "read" && to.mode == "write" && from.lock == to.lock {
            return true;
        }
        let is_same = |other: &WaitRecord| to.named && other.named && other.owner == to.owner;
        to.holds.iter().filter(|hold| hold.task || !to.named).any(is_in_the_way)
            || all
                .iter()
                .filter(|other| is_same(other))
                .any(|other| other.holds.iter().filter(|hold| !hold.task).any(is_in_the_way))
    }

    fn has_cycle(waits: &[WaitRecord]) -> bool {
        let count = waits.len();
        let mut reach: Vec<Vec<bool>> = waits
            .iter()
            .map(|from| waits.iter().map(|to| waits_for(from, to, waits)).collect())
            .collect();
        for via in 0..count {
            for from in 0..count {
                for to in 0..count {
                    reach[from][to] |= reach[from][via] && reach[via][to];
                }
            }
        }
        (0..count).any(|at| reach[at][at])
    }

    #[test]
    fn a_cycle_is_found_if_and_only_if_there_is_one() {
        let (mut with, mut without) = (0, 0);
        arbtest(|u| {
            let waits = random(u)?;
            let found = all_cycles(&waits);
            assert_eq!(!found.is_empty(), has_cycle(&waits), "{waits:#?}");
            *(if found.is_empty() { &mut without } else { &mut with }) += 1;
            let mut seen = vec![false; waits.len()];
            for cycle in &found {
                let nexts = cycle.links.iter().cycle().skip(1);
                for ((from, by), (to, _)) in cycle.links.iter().zip(nexts) {
                    assert!(!std::mem::replace(&mut seen[*from], true), "a wait is in one cycle");
                    assert!(!waits[*from].limited || cycle.level == Level::Any);
                    assert!(waits_for(&waits[*from], &waits[*to], &waits));
                    let Blocker::Hold(keeper, hold) = by else {
                        let modes = (waits[*from].mode.as_str(), waits[*to].mode.as_str());
                        assert_eq!(modes, ("read", "write"));
                        assert_eq!(waits[*from].lock, waits[*to].lock);
                        continue;
                    };
                    let (keeper, to) = (&waits[*keeper], &waits[*to]);
                    let hold = &keeper.holds[*hold];
                    assert_eq!(hold.lock, waits[*from].lock);
                    assert!(std::ptr::eq(keeper, to) || keeper.named && keeper.owner == to.owner);
                    assert!(hold.renewed || cycle.level == Level::Any);
                    assert!(!hold.task || cycle.level != Level::Owners);
                }
            }
            Ok(())
        });
        assert!(with > 20 && without > 20, "{with} with a cycle, {without} without");
    }
}
