//! The cases that catch each flaw: one list per clause.

use lockcore_testkit::Op;

use super::flaw::Flaw;

/// Backends with one flaw each, and the cases that must fail for it.
pub(crate) type Flaws = &'static [(Flaw, &'static [&'static str])];

/// The flaws for each clause.
pub(crate) const BY_CLAUSE: [(&str, Flaws); 20] = [
    ("C1", C1),
    ("C2", C2),
    ("C3", C3),
    ("C4", C4),
    ("C5", C5),
    ("C6", C6),
    ("C7", C7),
    ("C8", C8),
    ("C9", C9),
    ("C10", C10),
    ("C11", C11),
    ("C12", C12),
    ("C13", C13),
    ("C14", C14),
    ("C15", C15),
    ("C17", C17),
    ("C18", C18),
    ("C19", C19),
    ("C20", C20),
    ("C37", C37),
];

const C37: Flaws = &[
    (
        Flaw::GivesSeveralTokensAwayAgain,
        &[
            "later_tokens_are_greater_than_all_that_were_granted",
            "tokens_are_not_given_away_again_after_a_hold_that_ended_otherwise",
            "a_repetition_is_answered_with_the_first_of_its_tokens",
            "tokens_rise_from_task_to_task",
        ],
    ),
    (
        Flaw::GivesTheTokensOfTheExpiredAwayAgain,
        &["tokens_are_not_given_away_again_after_a_hold_that_ended_otherwise"],
    ),
    (
        Flaw::RepetitionHasTheLastOfItsTokens,
        &["a_repetition_is_answered_with_the_first_of_its_tokens"],
    ),
];

const C1: Flaws = &[
    (
        Flaw::LooksThenWrites,
        &[
            "of_simultaneous_requests_one_is_granted",
            "owners_that_come_and_go_are_never_inside_together",
            "two_branches_of_one_join_exclude_each_other",
        ],
    ),
    (
        Flaw::GrantsToEverybody,
        &[
            "what_one_releases_another_gets",
            "a_waiter_enters_when_another_client_releases",
            "everybody_gets_a_turn",
            "nested_guards_release_in_any_order",
            "run_nests",
            "a_named_owner_re_enters_from_another_handle",
            "closing_a_client_releases_what_it_holds",
            "fair_holds_nest",
        ],
    ),
    (Flaw::FairHoldsIgnoreExclusiveOnes, &["a_fair_hold_and_an_exclusive_one_exclude_each_other"]),
];

const C2: Flaws = &[
    (
        Flaw::RefusesWithoutRemaining,
        &[
            "a_stranger_is_refused_with_the_remaining_lease",
            "the_remaining_lease_in_a_refusal_shrinks",
            "a_refusal_changes_nothing",
        ],
    ),
    (Flaw::RefusesWithTheWholeLease, &["the_remaining_lease_in_a_refusal_shrinks"]),
    (
        Flaw::RefusalExtendsTheLease,
        &["the_remaining_lease_in_a_refusal_shrinks", "a_refusal_changes_nothing"],
    ),
    (Flaw::RefusalIsCounted, &["a_refusal_changes_nothing"]),
    (Flaw::RefusesWhoExpectsIt, &["who_expects_a_refusal_gets_a_free_lock"]),
    (Flaw::RefusesWhoExpectsItIfAnyIsHeld, &["who_expects_a_refusal_gets_a_free_lock"]),
    (Flaw::RefusalQueues, &["who_was_refused_has_nothing", "a_timeout_leaves_nothing"]),
    (
        Flaw::WaitsInsteadOfRefusing,
        &[
            "a_held_lock_is_not_acquired_by_trying",
            "a_stranger_is_refused_with_the_remaining_lease",
            "the_remaining_lease_in_a_refusal_shrinks",
        ],
    ),
];

const C3: Flaws = &[
    (
        Flaw::NeverEnds,
        &[
            "a_hold_ends_with_its_lease",
            "every_hold_of_a_name_has_an_end_of_its_own",
            "the_shortest_lease_ends",
        ],
    ),
    (
        Flaw::EndsEarly,
        &[
            "a_hold_does_not_end_before_its_lease",
            "a_lease_of_a_year_is_kept_whole",
            "a_renewed_hold_lasts_as_long_as_its_renewed_lease",
            "a_waiter_enters_when_a_dead_holders_lease_ends",
            "the_holder_of_a_fixed_lease_learns_of_its_end_first",
        ],
    ),
    (Flaw::EndsEarlyOnceRenewed, &["a_renewed_hold_lasts_as_long_as_its_renewed_lease"]),
    (Flaw::ExpiryBelongsToTheName, &["every_hold_of_a_name_has_an_end_of_its_own"]),
    (Flaw::TakesAMillisecondForNone, &["the_shortest_lease_ends"]),
    (Flaw::CutsLeasesToThirtyTwoBits, &["a_lease_of_a_year_is_kept_whole"]),
    (
        Flaw::RevivesWhatHasEnded,
        &["an_ended_hold_cannot_be_revived", "run_drops_its_body_when_the_hold_is_lost"],
    ),
    (Flaw::StoresThenSetsTheExpiry, &["a_dropped_acquire_ends_with_its_lease_at_the_latest"]),
];

const C4: Flaws = &[
    (
        Flaw::TokensStartAgainWithTheName,
        &[
            "tokens_rise_from_hold_to_hold",
            "tokens_rise_for_an_owner_that_comes_again",
            "tokens_rise_although_the_name_was_forgotten",
        ],
    ),
    (
        Flaw::TokensOfEachClient,
        &[
            "a_hold_has_one_token_and_the_next_a_greater",
            "tokens_rise_from_hold_to_hold",
            "tokens_rise_although_the_name_was_forgotten",
        ],
    ),
    (Flaw::TokenOfTheExpiredHoldAgain, &["tokens_rise_after_an_expired_hold"]),
    (Flaw::TokensStartAgainWhenForced, &["tokens_rise_after_a_forced_release"]),
    (Flaw::TokensStartAgainAtARefusal, &["tokens_rise_past_requests_that_were_not_granted"]),
    (Flaw::TokenOfTheNamedOwner, &["tokens_rise_for_an_owner_that_comes_again"]),
];

const C5: Flaws = &[
    (
        Flaw::CountsRepetitions,
        &[
            "an_acquire_that_arrives_twice_is_one_hold",
            "an_acquire_that_arrives_by_two_ways_is_one_hold",
            "an_acquire_of_a_named_owner_that_arrives_twice_is_one_hold",
        ],
    ),
    (
        Flaw::NewTokenForARepetition,
        &[
            "a_nested_acquire_sets_the_count_and_never_adds_to_it",
            "an_acquire_that_arrives_twice_is_one_hold",
            "an_acquire_that_arrives_by_two_ways_is_one_hold",
        ],
    ),
    (
        Flaw::NewTokenForARepetitionByName,
        &["an_acquire_of_a_named_owner_that_arrives_twice_is_one_hold"],
    ),
    (
        Flaw::KnowsRepetitionsOfItsOwnClientOnly,
        &["an_acquire_that_arrives_by_two_ways_is_one_hold"],
    ),
    (Flaw::AddsCounts, &["a_nested_acquire_sets_the_count_and_never_adds_to_it"]),
    (Flaw::SubtractsCounts, &["a_partial_release_that_arrives_twice_lowers_the_count_once"]),
    (Flaw::ReleasesTwice, &["a_release_that_arrives_twice_does_not_touch_the_next_hold"]),
    (Flaw::RenewalsAddUp, &["a_renewal_that_arrives_twice_is_answered_twice"]),
];

const C6: Flaws = &[
    (
        Flaw::RefusesTheOwnersNextHold,
        &[
            "a_takeover_does_not_inherit_the_count",
            "a_named_owner_takes_over_its_own_hold",
            "a_hold_that_was_taken_over_cannot_be_renewed",
        ],
    ),
    (
        Flaw::TakeoverKeepsTheToken,
        &[
            "a_named_owner_takes_its_hold_along_to_another_client",
            "a_named_owner_takes_over_its_own_hold",
        ],
    ),
    (Flaw::QueueKeepsOutTheHolder, &["a_named_owner_takes_over_its_fair_hold_past_the_queue"]),
    (Flaw::TakeoverKeepsTheCount, &["a_takeover_does_not_inherit_the_count"]),
    (
        Flaw::TakeoverKeepsTheOldHold,
        &[
            "a_hold_that_was_taken_over_cannot_release",
            "a_hold_that_was_taken_over_cannot_be_renewed",
            "a_named_owner_takes_its_hold_along_to_another_client",
        ],
    ),
    (Flaw::TakesAllNamedOwnersForOne, &["a_named_owner_excludes_everybody_else"]),
    (
        Flaw::NamedOwnersTakeEverything,
        &["an_owner_without_a_name_is_not_taken_over", "a_named_owner_excludes_everybody_else"],
    ),
    (Flaw::CutsLongOwners, &["owners_of_the_greatest_length_are_told_apart"]),
];

const C7: Flaws = &[
    (
        Flaw::GrowthGrants,
        &[
            "a_hold_that_never_was_cannot_grow",
            "a_released_hold_cannot_grow",
            "an_expired_hold_cannot_grow",
        ],
    ),
    (
        Flaw::GrowthRevives,
        &[
            "a_forced_hold_cannot_grow",
            "a_released_hold_cannot_grow",
            "an_expired_hold_cannot_grow",
        ],
    ),
    (Flaw::GrowthSteals, &["a_hold_that_was_succeeded_cannot_grow"]),
    (Flaw::GrowthTakesOver, &["a_hold_that_was_taken_over_cannot_grow"]),
    (Flaw::GrowthIsHeldUpByTheQueue, &["a_fair_hold_that_is_gone_cannot_grow_past_the_queue"]),
    (Flaw::GrowthIsAlwaysGone, &["a_hold_that_was_succeeded_cannot_grow"]),
    (
        Flaw::GrowthKeepsTheLease,
        &["a_live_hold_grows_in_count_and_lease", "a_nested_acquisition_can_lengthen_the_lease"],
    ),
];

const C8: Flaws = &[
    (
        Flaw::RenewsForAnybody,
        &[
            "a_stranger_cannot_renew",
            "a_stale_holder_cannot_renew_a_newer_hold",
            "a_batch_tells_the_owners_of_one_name_apart",
            "a_forced_release_is_noticed_by_the_next_renewal",
        ],
    ),
    (Flaw::RenewalMakesAHold, &["renewing_nothing_makes_no_hold"]),
    (
        Flaw::RenewalDoesNothing,
        &[
            "each_renewal_of_a_batch_is_answered_in_its_place",
            "a_renewed_hold_outlives_its_first_lease",
            "a_fair_hold_is_nested_and_renewed_like_any_other",
            "the_watchdog_keeps_a_hold_beyond_its_lease",
        ],
    ),
    (Flaw::RenewsTheFirstHundred, &["each_renewal_of_a_batch_is_answered_in_its_place"]),
    (
        Flaw::AnswersOnlyWhatIsHeld,
        &[
            "a_batch_tells_the_owners_of_one_name_apart",
            "each_renewal_of_a_batch_is_answered_in_its_place",
        ],
    ),
    (Flaw::AnswersInReverse, &["each_renewal_of_a_batch_is_answered_in_its_place"]),
    (Flaw::AnswersByName, &["a_batch_tells_the_owners_of_one_name_apart"]),
    (Flaw::FailsOnAnEmptyBatch, &["an_empty_batch_has_no_answers"]),
];

const C9: Flaws = &[
    (Flaw::RenewalShortens, &["a_shorter_renewal_does_not_shorten_the_lease"]),
    (Flaw::RepetitionShortens, &["a_repeated_acquire_does_not_shorten_the_lease"]),
    (Flaw::GrowthShortens, &["a_nested_acquire_does_not_shorten_the_lease"]),
];

const C10: Flaws = &[
    (
        Flaw::ReleaseDeletes,
        &[
            "a_stranger_cannot_release",
            "a_stale_holder_cannot_release_a_newer_hold",
            "a_forced_holder_cannot_release_a_newer_hold",
        ],
    ),
    (Flaw::UndoDeletes, &["undoing_what_was_refused_releases_nothing"]),
    (Flaw::ReleaseOfAFreeLockSucceeds, &["releasing_a_free_lock_is_answered_so"]),
    (Flaw::ReleaseLowersTheCount, &["a_full_release_frees_the_lock_whatever_its_count"]),
    (Flaw::ReleasesForItsOwnClientOnly, &["a_hold_can_be_released_from_another_client"]),
    (
        Flaw::CutsLongIds,
        &[
            "ids_of_the_greatest_length_are_told_apart",
            "holds_of_every_mode_can_have_ids_of_the_greatest_length",
        ],
    ),
];

const C11: Flaws = &[
    (
        Flaw::PartialReleaseFrees,
        &["a_partial_release_keeps_the_lease", "a_partial_release_keeps_the_hold"],
    ),
    (Flaw::PartialReleaseShortens, &["a_partial_release_keeps_the_lease"]),
    (Flaw::PartialReleaseExtends, &["a_partial_release_keeps_the_lease"]),
    (Flaw::PartialReleaseMakesAHold, &["a_partial_release_of_nothing_makes_no_hold"]),
];

const C12: Flaws = &[
    (
        Flaw::ReleaseWakesNobody,
        &[
            "a_release_wakes_one_that_sleeps",
            "a_wakeup_between_two_waits_is_kept",
            "every_release_wakes",
            "a_dropped_waiter_takes_nobodys_turn",
        ],
    ),
    (Flaw::ForcedReleaseWakesNobody, &["a_forced_release_wakes"]),
    (Flaw::NestedReleaseWakesNobody, &["the_release_of_a_nested_hold_wakes"]),
    (
        Flaw::WakesItsOwnClientOnly,
        &[
            "a_dropped_wait_takes_no_wakeup_with_it",
            "subscribers_that_leave_do_not_silence_those_who_stay",
            "a_subscription_after_another_is_in_effect",
        ],
    ),
    (Flaw::WakesOneSubscriberOnly, &["a_release_wakes_the_subscribers_of_every_client"]),
    (Flaw::WakesOnce, &["every_release_wakes"]),
    (
        Flaw::WakesOnlyThoseAsleep,
        &[
            "a_wakeup_between_two_waits_is_kept",
            "every_release_wakes",
            "a_dropped_wait_takes_no_wakeup_with_it",
        ],
    ),
    (Flaw::TakeoverWakesNobody, &["a_takeover_that_ends_earlier_wakes"]),
    (Flaw::DroppedWaitTakesTheWakeup, &["a_dropped_wait_takes_no_wakeup_with_it"]),
    (Flaw::LeavingSilencesTheOthers, &["subscribers_that_leave_do_not_silence_those_who_stay"]),
    (
        Flaw::SubscriptionBeginsWithTheFirstWait,
        &[
            "a_subscription_after_another_is_in_effect",
            "a_release_wakes_the_subscribers_of_every_client",
        ],
    ),
];

const C13: Flaws = &[
    (
        Flaw::ForceFreesNamedOwnersOnly,
        &[
            "a_forced_release_frees_the_lock_whoever_holds_it",
            "a_forced_release_frees_a_nested_hold_as_a_whole",
            "a_forced_release_of_a_free_lock_says_so",
        ],
    ),
    (
        Flaw::ForceLowersTheCount,
        &["a_forced_release_frees_a_nested_hold_as_a_whole", "a_forced_release_frees_a_fair_hold"],
    ),
    (
        Flaw::ForceAlwaysSaysHeld,
        &[
            "a_forced_release_of_an_expired_hold_says_that_it_was_free",
            "a_forced_release_of_a_free_lock_says_so",
        ],
    ),
    (
        Flaw::ForceNeverSaysHeld,
        &[
            "who_was_forced_out_has_nothing_left",
            "a_forced_release_frees_the_lock_whoever_holds_it",
            "a_forced_release_frees_a_nested_hold_as_a_whole",
        ],
    ),
    (Flaw::ForceKeepsTheHoldForItsOwner, &["who_was_forced_out_has_nothing_left"]),
];

const C14: Flaws = &[
    (
        Flaw::ReportsTheIdForTheOwner,
        &[
            "a_hold_is_reported_with_owner_mode_count_and_lease",
            "the_state_tells_the_holder_from_any_client",
        ],
    ),
    (Flaw::ReportsAnotherMode, &["a_hold_is_reported_with_owner_mode_count_and_lease"]),
    (Flaw::ReportsOneForEveryCount, &["the_reported_count_is_the_stored_one"]),
    (Flaw::ReportsTheWholeLease, &["the_reported_lease_shrinks"]),
    (Flaw::ReportsTheExpired, &["an_expired_hold_is_reported_as_absent"]),
    (
        Flaw::ReportsALeaseOfAFreeLock,
        &["a_free_lock_is_reported_as_free", "an_expired_hold_is_reported_as_absent"],
    ),
    (Flaw::LookingMakesANewHold, &["looking_does_not_disturb"]),
];

const C15: Flaws = &[
    (Flaw::IgnoresCase, &["names_that_look_alike_are_different_locks"]),
    (Flaw::IgnoresSpaceAround, &["names_that_look_alike_are_different_locks"]),
    (Flaw::IgnoresWhatIsInBraces, &["names_that_look_alike_are_different_locks"]),
    (Flaw::CutsLongNames, &["names_that_look_alike_are_different_locks"]),
    (Flaw::TakesOwnersForNames, &["one_owner_holds_each_name_by_itself"]),
    (Flaw::ForceFreesEveryName, &["what_is_done_to_one_name_is_not_done_to_another"]),
    (
        Flaw::KeepsReleasedNames,
        &[
            "nothing_is_left_of_a_hold_that_ended_otherwise",
            "nothing_is_left_of_a_released_name",
            "nothing_is_left_of_a_dropped_subscription",
        ],
    ),
    (Flaw::KeepsExpiredNames, &["nothing_is_left_of_a_hold_that_ended_otherwise"]),
    (
        Flaw::KeepsNamesAskedFor,
        &[
            "nothing_is_left_of_requests_that_were_for_nothing",
            "nothing_is_left_of_a_dropped_subscription",
        ],
    ),
    (
        Flaw::KeepsSubscriptions,
        &[
            "nothing_is_left_of_a_dropped_subscription",
            "a_spawned_task_is_a_stranger",
            "a_dropped_guard_releases",
        ],
    ),
];

/// The only case that finds a pool without order that opens its connections when it needs them.
pub(crate) const WITH_A_WARM_CLIENT: &str = "a_dropped_acquire_can_be_undone_by_a_warm_client";

const C17: Flaws = &[
    (
        Flaw::StaysBusyWhenDropped(Op::Acquire),
        &["a_dropped_acquire_can_be_undone", "a_dropped_acquire_does_not_block_its_client"],
    ),
    (Flaw::StaysBusyWhenDropped(Op::Renew), &["a_dropped_renewal_leaves_the_hold"]),
    (Flaw::StaysBusyWhenDropped(Op::Release), &["a_dropped_release_can_be_repeated"]),
    (Flaw::StaysBusyWhenDropped(Op::ForceRelease), &["a_dropped_forced_release_can_be_repeated"]),
    (Flaw::StaysBusyWhenDropped(Op::Inspect), &["a_dropped_inspection_changes_nothing"]),
    (Flaw::StaysBusyWhenDropped(Op::Subscribe), &["a_dropped_subscribe_leaves_no_subscription"]),
    (Flaw::DroppedSubscribeStays, &["a_dropped_subscribe_leaves_no_subscription"]),
    (
        Flaw::DroppedAcquireCannotBeUndone,
        &["a_dropped_acquire_can_be_undone", "a_dropped_acquisition_leaves_nothing"],
    ),
    (
        Flaw::DroppedAcquireArrivesLate,
        &[
            "a_dropped_acquire_can_be_undone",
            "a_dropped_fair_acquire_leaves_no_place",
            "a_dropped_acquisition_leaves_nothing",
        ],
    ),
    (Flaw::DroppedRenewalLosesTheHold, &["a_dropped_renewal_leaves_the_hold"]),
    (Flaw::LendsAnyConnection, &[WITH_A_WARM_CLIENT]),
];

const C18: Flaws = &[
    (
        Flaw::FirstComesWhoAsksFirst,
        &[
            "those_who_were_refused_enter_in_the_order_in_which_they_came",
            "the_order_outlives_the_end_of_a_lease",
            "nobody_overtakes_the_first_of_the_queue",
            "a_place_is_kept_for_its_time",
        ],
    ),
    (Flaw::TryingOvertakes, &["nobody_overtakes_the_first_of_the_queue"]),
    (
        Flaw::LastComeFirstServed,
        &[
            "those_who_were_refused_enter_in_the_order_in_which_they_came",
            "waiters_of_two_clients_enter_in_the_order_in_which_they_came",
            "a_waiter_that_asks_again_in_time_is_not_forgotten",
        ],
    ),
    (
        Flaw::AskingAgainGoesToTheEnd,
        &[
            "asking_again_keeps_the_place",
            "a_waiter_that_asks_again_in_time_is_not_forgotten",
            "a_waiter_keeps_its_place_for_as_long_as_it_waits",
        ],
    ),
    (Flaw::TryingTakesAPlace, &["a_try_takes_no_place", "who_has_entered_has_no_place_any_more"]),
    (
        Flaw::KeepsThePlaceOfWhoEntered,
        &["who_has_entered_has_no_place_any_more", "every_release_wakes_whoever_is_first_then"],
    ),
    (Flaw::QueueEndsWithTheLease, &["the_order_outlives_the_end_of_a_lease"]),
    (Flaw::OneQueueForAllNames, &["every_name_has_a_queue_of_its_own"]),
    (Flaw::RefusesAFreeLockWithoutATime, &["a_refusal_of_a_free_lock_tells_when_to_ask_again"]),
];

const C19: Flaws = &[
    (
        Flaw::PlacesNeverLapse,
        &[
            "a_place_is_forgotten_after_its_time",
            "who_asks_again_too_late_comes_last",
            "who_has_stopped_asking_is_passed_over",
            "nothing_is_left_of_places_that_lapsed",
        ],
    ),
    (Flaw::PlacesLapseEarly, &["a_place_is_kept_for_its_time"]),
    (
        Flaw::AskingAgainDoesNotKeepThePlace,
        &[
            "a_waiter_that_asks_again_in_time_is_not_forgotten",
            "who_has_stopped_asking_is_passed_over",
        ],
    ),
    (Flaw::LapsedPlacesComeBack, &["who_asks_again_too_late_comes_last"]),
    (Flaw::KeepsLapsedPlaces, &["nothing_is_left_of_places_that_lapsed"]),
];

const C20: Flaws = &[
    (
        Flaw::GivingUpKeepsThePlace,
        &[
            "who_gives_up_is_out_of_the_queue",
            "who_gave_up_comes_last",
            "nothing_is_left_of_places_that_were_given_up",
            "a_dropped_fair_acquire_leaves_no_place",
            "a_fair_waiter_that_is_dropped_leaves_no_place",
            "a_fair_waiter_that_times_out_leaves_no_place",
        ],
    ),
    (Flaw::GivingUpIsARelease, &["who_gives_up_is_out_of_the_queue"]),
    (Flaw::GivingUpEndsTheHold, &["giving_up_a_place_leaves_the_hold_of_another"]),
    (Flaw::GivingUpEmptiesTheQueue, &["who_gives_up_is_out_of_the_queue"]),
    (Flaw::GivingUpWakesNobody, &["giving_up_the_first_place_wakes_the_next"]),
    (Flaw::GivenUpPlacesComeBack, &["who_gave_up_comes_last"]),
    (
        Flaw::FairReleaseWakesNobody,
        &[
            "the_end_of_a_hold_wakes_the_first_of_the_queue",
            "every_release_wakes_whoever_is_first_then",
        ],
    ),
    (
        Flaw::ExclusiveEndWakesNoQueue,
        &[
            "the_end_of_an_exclusive_hold_wakes_the_first_of_the_queue",
            "a_forced_release_of_an_exclusive_hold_wakes_the_first_of_the_queue",
            "an_exclusive_takeover_that_ends_earlier_wakes_the_first_of_the_queue",
        ],
    ),
    (Flaw::FairForcedReleaseWakesNobody, &["a_forced_release_wakes_the_first_of_the_queue"]),
    (
        Flaw::TakeoverWakesNobody,
        &[
            "a_takeover_that_ends_earlier_wakes_the_first_of_the_queue",
            "an_exclusive_takeover_that_ends_earlier_wakes_the_first_of_the_queue",
        ],
    ),
    (Flaw::ShortHoldAfterAPlaceWakesNobody, &["a_hold_that_ends_before_its_place_wakes_the_next"]),
    (Flaw::WakesTheLastOfTheQueue, &["every_release_wakes_whoever_is_first_then"]),
];
