//! Breadth-first search of everything that can happen in a world.
//!
//! This is not the crate `stateright`, which brings along 45 other crates, a web server among them,
//! and whose liveness checks are not sound where states lie on cycles, as they do here.

use std::{
    collections::{HashMap, VecDeque},
    fmt::{self, Write},
};

use rustc_hash::FxBuildHasher;

use super::world::LockWorld;

/// The extent of an exploration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    transitions: usize,
    /// The number of moves to the farthest state.
    depth: usize,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth } = self;
        write!(f, "{states} states, {transitions} transitions, depth {depth}")
    }
}

/// More states than this are a mistake in the world: something in it grows without bound.
const MOST_STATES: usize = 1_500_000;

struct Search<'a> {
    start: LockWorld<'a>,
    /// The number of each state that was met, by its fingerprint.
    numbers: HashMap<u64, u32, FxBuildHasher>,
    /// By number: the fingerprint, and the state from which it was reached first.
    met: Vec<(u64, u32)>,
    /// From, to.
    transitions: Vec<(u32, u32)>,
    homes: Vec<u32>,
}

/// Explores everything that can follow from `start`.
///
/// # Errors
/// A description of the error, and a shortest path to it.
pub(super) fn explore(start: LockWorld<'_>) -> Result<Explored, String> {
    let (numbers, met) = (HashMap::default(), Vec::new());
    let mut search = Search { start, numbers, met, transitions: Vec::new(), homes: Vec::new() };
    search.run()?;
    search.all_can_come_home()?;
    let (states, transitions) = (search.met.len(), search.transitions.len());
    // States are met in the order of their distances.
    Ok(Explored { states, transitions, depth: search.way_to(states as u32 - 1).len() })
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), String> {
        let start = self.start.clone();
        self.meet(&start, 0);
        let mut ahead = VecDeque::from([(0, start)]);
        while let Some((from, world)) = ahead.pop_front() {
            for next in world.moves() {
                let mut after = world.clone();
                if let Err(what) = after.make(next) {
                    return Err(self.violation(from, &format!("  {next:?}\n"), &what, &after));
                }
                let (to, is_new) = self.meet(&after, from);
                self.transitions.push((from, to));
                if is_new {
                    if let Err(what) = after.check() {
                        return Err(self.violation(to, "", &what, &after));
                    }
                    ahead.push_back((to, after));
                }
            }
            assert!(self.met.len() < MOST_STATES, "a world without bounds:\n{world:#?}");
        }
        Ok(())
    }

    /// The number of a state, and whether it was met for the first time.
    fn meet(&mut self, world: &LockWorld<'_>, from: u32) -> (u32, bool) {
        let fingerprint = world.fingerprint();
        let next = self.met.len() as u32;
        let number = *self.numbers.entry(fingerprint).or_insert(next);
        let is_new = number == next;
        if is_new {
            self.met.push((fingerprint, from));
            if world.is_home() {
                self.homes.push(number);
            }
        }
        (number, is_new)
    }

    /// Goes back from the states in which everything is over. A state that is not reached is stuck,
    /// or goes in circles.
    fn all_can_come_home(&self) -> Result<(), String> {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); self.met.len()];
        for (from, to) in &self.transitions {
            before[*to as usize].push(*from);
        }
        let mut comes_home = vec![false; self.met.len()];
        let mut ahead = self.homes.clone();
        while let Some(number) = ahead.pop() {
            if !std::mem::replace(&mut comes_home[number as usize], true) {
                ahead.extend(&before[number as usize]);
            }
        }
        match comes_home.iter().position(|comes| !comes) {
            None => Ok(()),
            Some(stuck) => {
                let world = self.replay(stuck as u32).0;
                Err(self.violation(stuck as u32, "", "from here it never ends", &world))
            }
        }
    }

    fn violation(&self, at: u32, last: &str, what: &str, world: &LockWorld<'_>) -> String {
        let path = self.replay(at).1;
        format!("{what}\n{path}{last}and then:\n{world:#?}")
    }

    /// The states on the path to `to`, without the start.
    fn way_to(&self, to: u32) -> Vec<u32> {
        let from = |at: &u32| (*at != 0).then(|| self.met[*at as usize].1);
        let mut way: Vec<u32> = std::iter::successors(Some(to), from).collect();
        way.pop();
        way.reverse();
        way
    }

    /// Goes to a state again. Returns the events on the way.
    fn replay(&self, to: u32) -> (LockWorld<'_>, String) {
        let (mut world, mut path) = (self.start.clone(), String::new());
        for at in self.way_to(to) {
            let fingerprint = self.met[at as usize].0;
            let step = world.moves().into_iter().find_map(|next| {
                let mut after = world.clone();
                let went_well = after.make(next).is_ok();
                (went_well && after.fingerprint() == fingerprint).then_some((next, after))
            });
            let Some((next, after)) = step else { unreachable!("it was reached before") };
            let _ = writeln!(path, "  {next:?}");
            world = after;
        }
        (world, path)
    }
}
