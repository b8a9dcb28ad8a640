//! Worlds in which something is broken. Each has to be detected, or a check is worthless.

use super::{
    rules::{Luck, Mutant, Routine, Rules, Who, lasting},
    search::explore,
    world::LockWorld,
};
use crate::{Mode, time::Lease};

const ONCE: Routine = Routine::new(Mode::Exclusive).rounds(1);
const FAIR: Routine = Routine::new(Mode::Fair).rounds(1);
const SHARED: Routine = ONCE.who(Who::Shared);
const LONGER: Routine = SHARED.lease(Lease::Fixed(lasting(3)));

/// Explores a small world in which something is broken, and expects that to be reported.
fn is_found(mutant: Mutant, tasks: &[Routine], luck: Luck, expected: &str) {
    let rules = Rules {
        mutant: Some(mutant),
        luck,
        hands_over: true,
        lingers: mutant == Mutant::DemandNotTold,
        grants_directly: true,
        stranger: tasks.iter().all(|plan| plan.who == Who::Fresh).then_some(tasks[0].mode),
        ..Rules::new("a broken world", tasks)
    };
    match explore(LockWorld::new(&rules)) {
        Ok(explored) => panic!("{mutant:?} was not found in {explored}"),
        Err(violation) => {
            let what = violation.lines().next().unwrap_or_default();
            assert!(what.contains(expected), "{mutant:?} was found otherwise: {violation}");
            let moves = violation.lines().take_while(|line| *line != "and then:").count() - 1;
            super::say(&format!("{mutant:?} is found after {moves} moves: {what:.100}"));
        }
    }
}

#[test]
fn whatever_is_broken_is_found() {
    let none = Luck::default();
    let (drop, delays) = (Luck { drops: 1, ..none }, Luck { delays: 3, ..none });
    let (closing, failover) = (Luck { closings: 1, ..none }, Luck { failovers: 1, ..none });
    is_found(Mutant::ReleaseWakesNobody, &[ONCE, ONCE], none, "nobody wakes it");
    is_found(Mutant::ReleaseNeverEnds, &[ONCE], none, "an idle lane is kept");
    is_found(Mutant::AnswersLost, &[SHARED], none, "it never ends");
    is_found(Mutant::NoAppointments, &[ONCE], none, "nobody looks");
    is_found(Mutant::ParkedForgotten, &[ONCE, ONCE], drop, "an idle lane is kept");
    is_found(Mutant::ClockBehind, &[ONCE, ONCE], none, "");
    is_found(Mutant::LeavesTwice, &[SHARED, LONGER], none, "");
    is_found(Mutant::PlaceKept, &[ONCE], drop, "0 wait, the lane knows 1");
    is_found(Mutant::LeavesUnnoticed, &[ONCE, ONCE], drop, "nobody wakes it");
    is_found(Mutant::PendingNotTold, &[ONCE], delays, "it is not undone");
    is_found(Mutant::IdUsedAgain, &[ONCE], delays, "the store does not have");
    is_found(Mutant::NewsNotTold, &[ONCE], none, "older than the news");
    is_found(Mutant::AsksBesideItsOwner, &[SHARED, SHARED], none, "one owner, and both ask");
    is_found(Mutant::CountNotCorrected, &[SHARED, LONGER], drop, "is not told the count");
    is_found(Mutant::DemandNotTold, &[ONCE], none, "another client wants it");
    is_found(Mutant::CloseForgets, &[ONCE], closing, "nobody will give back");
    is_found(Mutant::StoreGrantsAll, &[ONCE, ONCE], none, "");
    is_found(Mutant::PlacesOverrated, &[FAIR], delays, "the store does not have");
    is_found(Mutant::LostKeepsItsPlace, &[FAIR], failover, "nobody will give back");
}
