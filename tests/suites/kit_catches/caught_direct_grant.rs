//! The cases that catch each flaw of direct grants.

use super::{caught::Flaws, flaw::Flaw};

pub(crate) const DIRECT_GRANT: &[(&str, Flaws)] = &[("C39", C39)];

const GRANTED: &str = "a_release_grants_to_the_first_in_the_queue";
const IN_TURN: &str = "one_after_the_other_is_granted_the_lock";
const LASTING: &str = "a_granted_hold_lasts_as_long_as_its_place";
const GIVEN_UP: &str = "giving_up_the_first_place_grants_to_the_next";
const HELD: &str = "a_held_lock_is_granted_to_nobody";
const OUT: &str = "who_is_out_of_the_queue_is_granted_nothing";
const WAITS: &str = "a_grant_between_two_waits_is_heard_of";
const UNASKED: &str = "who_gave_no_number_is_only_woken";
const NAMED: &str = "a_grant_names_the_last_request";
const LIKE_ANY: &str = "a_granted_hold_is_like_any_other";

const C39: Flaws = &[
    (Flaw::ReleaseGrantsNothing, &[GRANTED, IN_TURN, UNASKED, NAMED, LASTING, LIKE_ANY, WAITS]),
    (Flaw::DirectGrantIsNotTold, &[GRANTED, IN_TURN, GIVEN_UP, HELD, OUT, WAITS]),
    (Flaw::DirectGrantHasTheTokenBefore, &[GRANTED, IN_TURN]),
    (Flaw::DirectGrantCountsTwo, &[GRANTED, IN_TURN, LIKE_ANY]),
    (Flaw::RepeatedDirectGrantHasANewToken, &[GRANTED, LIKE_ANY]),
    (Flaw::DirectGrantKeepsThePlace, &[IN_TURN]),
    (Flaw::GrantsDirectlyToTheLast, &[IN_TURN]),
    (Flaw::GrantsDirectlyWithoutANumber, &[UNASKED]),
    (Flaw::NumbersAreKept, &[UNASKED]),
    (Flaw::DirectGrantNamesTheFirstRequest, &[NAMED]),
    (Flaw::DirectGrantEndsEarly, &[LASTING]),
    (Flaw::DirectGrantHasALeaseOfItsOwn, &[LASTING]),
    (Flaw::DirectGrantIsNotRenewed, &[LIKE_ANY]),
    (Flaw::GivingUpGrantsNothing, &[GIVEN_UP]),
    (Flaw::GivingUpGrantsWhatIsHeld, &[HELD]),
    (Flaw::PartialReleaseGrants, &[HELD]),
    (Flaw::GivingUpKeepsThePlace, &[OUT]),
    (Flaw::PlacesNeverLapse, &[OUT]),
    (Flaw::DroppedWaitTakesTheWakeup, &[WAITS]),
];
