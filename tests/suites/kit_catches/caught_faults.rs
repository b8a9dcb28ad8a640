//! The cases with broken connections and crashes, and the flaws that each catches.

use super::{caught::Flaws, flaw::Flaw};

pub(crate) const FAULTS: &[(&str, Flaws)] =
    &[("C8", C8), ("C12", C12), ("C17", C17), ("C46", C46), ("C47", C47)];

const C8: Flaws = &[(Flaw::HoldsEndWithTheConnection, &["a_hold_outlives_an_interruption"])];

const C12: Flaws = &[
    (
        Flaw::SubscriptionsEndWithTheConnection,
        &["who_listens_hears_of_an_interruption", "who_listens_hears_what_comes_after"],
    ),
    (Flaw::SubscriptionsHearOfOneInterruption, &["who_listens_hears_what_comes_after"]),
];

const C17: Flaws = &[
    (Flaw::DroppedAcquireArrivesLate, &["an_undone_acquire_stays_undone"]),
    (Flaw::LateRequestsIgnoreTheirUndo, &["an_acquire_that_arrives_after_its_undo_has_no_effect"]),
];

const C46: Flaws = &[
    (
        Flaw::CrashLosesHolds,
        &[
            "holds_of_every_mode_outlast_a_crash",
            "a_renewal_outlasts_a_crash",
            "the_growth_of_a_hold_outlasts_a_crash",
            "a_direct_grant_outlasts_a_crash",
        ],
    ),
    (Flaw::CrashLosesSharedHolds, &["holds_of_every_mode_outlast_a_crash"]),
    (Flaw::CrashLosesRenewals, &["a_renewal_outlasts_a_crash"]),
    (Flaw::CrashLosesGrowth, &["the_growth_of_a_hold_outlasts_a_crash"]),
    (Flaw::CrashLosesTokens, &["tokens_rise_across_a_crash", "a_raised_token_outlasts_a_crash"]),
    (Flaw::CrashLosesTheLeases, &["a_lease_ends_in_spite_of_a_crash"]),
    (Flaw::CrashLosesDirectGrants, &["a_direct_grant_outlasts_a_crash"]),
    (Flaw::CrashLosesRaisedTokens, &["a_raised_token_outlasts_a_crash"]),
    (Flaw::CrashLosesNumbersOfPermits, &["a_number_of_permits_outlasts_a_crash"]),
    (Flaw::CrashLosesLatches, &["the_count_of_a_latch_outlasts_a_crash"]),
];

const C47: Flaws = &[(
    Flaw::CallsTheInterruptedNotApplied,
    &["a_request_fails_for_a_while_and_says_what_is_known"],
)];

/// What these cases say: the flaw itself is found, and nothing on the way to it.
pub(crate) const SAID: &[(Flaw, &str, &str)] = &[
    (
        Flaw::HoldsEndWithTheConnection,
        "a_hold_outlives_an_interruption",
        "its connection took it along",
    ),
    (
        Flaw::SubscriptionsEndWithTheConnection,
        "who_listens_hears_of_an_interruption",
        "this should have come at once",
    ),
    (
        Flaw::SubscriptionsHearOfOneInterruption,
        "who_listens_hears_what_comes_after",
        "this should have come at once",
    ),
    (Flaw::DroppedAcquireArrivesLate, "an_undone_acquire_stays_undone", "it was in"),
    (
        Flaw::LateRequestsIgnoreTheirUndo,
        "an_acquire_that_arrives_after_its_undo_has_no_effect",
        "it was in",
    ),
    (
        Flaw::CallsTheInterruptedNotApplied,
        "a_request_fails_for_a_while_and_says_what_is_known",
        "it was applied",
    ),
    (Flaw::CrashLosesHolds, "holds_of_every_mode_outlast_a_crash", "this is another hold"),
    (Flaw::CrashLosesSharedHolds, "holds_of_every_mode_outlast_a_crash", "this is another hold"),
    (Flaw::CrashLosesRenewals, "a_renewal_outlasts_a_crash", "is left of a lease"),
    (Flaw::CrashLosesGrowth, "the_growth_of_a_hold_outlasts_a_crash", "the count was 3"),
    (Flaw::CrashLosesTokens, "tokens_rise_across_a_crash", "was granted after"),
    (Flaw::CrashLosesTheLeases, "a_lease_ends_in_spite_of_a_crash", "it should have got the lock"),
    (Flaw::CrashLosesDirectGrants, "a_direct_grant_outlasts_a_crash", "there should be one holder"),
    (Flaw::CrashLosesRaisedTokens, "a_raised_token_outlasts_a_crash", "was granted after"),
    (
        Flaw::CrashLosesNumbersOfPermits,
        "a_number_of_permits_outlasts_a_crash",
        "there were 3 permits",
    ),
    (Flaw::CrashLosesLatches, "the_count_of_a_latch_outlasts_a_crash", "the count was 2"),
];
