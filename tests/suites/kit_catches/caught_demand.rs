//! The cases that catch each flaw of the demand for a lock.

use lockcore_testkit::Op;

use super::{caught::Flaws, flaw::Flaw};

pub(crate) const DEMAND: &[(&str, Flaws)] = &[("C17", C17), ("C38", C38)];

const C17: Flaws = &[
    (Flaw::DroppedSubscribeStays, &["a_dropped_subscribe_to_the_demand_leaves_none"]),
    (Flaw::StaysBusyWhenDropped(Op::Subscribe), &["a_dropped_subscribe_to_the_demand_leaves_none"]),
];

const C38: Flaws = &[
    (
        Flaw::RefusalWakesNobody,
        &[
            "a_refusal_wakes_those_who_await_the_demand",
            "every_refusal_wakes",
            "a_refusal_between_two_waits_is_heard_of",
            "the_demand_for_every_name_is_heard_of",
        ],
    ),
    (Flaw::FairRefusalWakesNobody, &["a_refusal_wakes_those_who_await_the_demand"]),
    (Flaw::RefusalWakesOnce, &["every_refusal_wakes"]),
    (Flaw::WakesItsOwnClientOnly, &["a_refusal_wakes_those_who_await_the_demand"]),
    (Flaw::WakesOneSubscriberOnly, &["a_refusal_wakes_those_who_await_the_demand"]),
    (
        Flaw::WakesOnlyThoseAsleep,
        &["a_refusal_between_two_waits_is_heard_of", "every_refusal_wakes"],
    ),
    (Flaw::DroppedWaitTakesTheWakeup, &["a_dropped_wait_takes_no_demand_with_it"]),
    (Flaw::WaitersBeforeAreNotHeardOf, &["one_who_waits_already_is_heard_of_at_once"]),
    (Flaw::DemandIsHeardAsAnEnd, &["demand_and_ends_are_both_heard_of"]),
    (Flaw::HearsOfTheDemandOfOneName, &["the_demand_for_every_name_is_heard_of"]),
    (Flaw::LeavingSilencesTheOthers, &["those_who_leave_do_not_silence_the_demand"]),
    (Flaw::DemandEndsTheHold, &["the_demand_changes_nothing_of_the_hold"]),
    (Flaw::DemandShortensTheLease, &["the_demand_changes_nothing_of_the_hold"]),
    (Flaw::HearsOfTheDemandInEveryMode, &["the_demand_in_other_modes_is_refused"]),
];
