//! The cases that catch each flaw of proposed tokens.

use lockcore_testkit::Op;

use super::{caught::Flaws, flaw::Flaw};

pub(crate) const PROPOSALS: &[(&str, Flaws)] = &[("C17", C17), ("C40", C40)];

const C17: Flaws =
    &[(Flaw::StaysBusyWhenDropped(Op::RaiseToken), &["a_dropped_raising_can_be_repeated"])];

const EXACT: &str = "a_grant_carries_the_token_that_was_proposed";
const FIRST: &str = "a_proposal_counts_for_the_first_of_several_tokens";
const TAKEOVER: &str = "a_named_owner_takes_over_with_a_proposed_token";
const FOLLOWED: &str = "grants_without_a_proposal_follow_one_with_it";
const RAISED: &str = "grants_follow_a_raised_token";
const HELD: &str = "who_holds_the_lock_keeps_it_when_the_token_is_raised";

const C40: Flaws = &[
    (Flaw::ProposalIsIgnored, &[EXACT, FIRST, TAKEOVER]),
    (Flaw::ProposalIsExceeded, &[EXACT, FIRST, TAKEOVER]),
    (Flaw::ProposalGoesBack, &["a_proposal_that_is_too_late_is_exceeded", RAISED]),
    (Flaw::ProposalIsForgotten, &[FOLLOWED, FIRST]),
    (Flaw::ProposalTakesTheLock, &["a_refused_proposal_changes_nothing_for_the_holder"]),
    (Flaw::ProposalRenumbersARepetition, &["a_repetition_with_another_proposal_is_one_hold"]),
    (Flaw::GivesSeveralTokensAwayAgain, &[FIRST]),
    (Flaw::TakeoverKeepsTheToken, &[TAKEOVER]),
    (Flaw::RaisingDoesNothing, &[RAISED, HELD, "a_dropped_raising_can_be_repeated"]),
    (Flaw::RaisingLowers, &["a_token_is_never_lowered"]),
    (Flaw::RaisingEndsTheHold, &[HELD]),
    (Flaw::RaisingKeepsTheName, &["nothing_is_left_of_a_raised_token"]),
];
