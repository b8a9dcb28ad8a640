//! The cases that catch each flaw of shared holds and of kinds: one list per clause.

use super::{caught::Flaws, flaw::Flaw};

/// The flaws for each clause, beside those of exclusive holds.
pub(crate) const SHARED: &[(&str, Flaws)] = &[
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
    ("C21", C21),
    ("C22", C22),
    ("C23", C23),
    ("C24", C24),
    ("C25", C25),
    ("C26", C26),
    ("C27", C27),
    ("C28", C28),
    ("C29", C29),
];

const C4: Flaws = &[(Flaw::WritersHaveTokensOfTheirOwn, &["tokens_rise_across_modes"])];

const C5: Flaws = &[
    (Flaw::CountsRepeatedReaders, &["a_reader_or_writer_that_arrives_twice_is_one_hold"]),
    (Flaw::RepeatedPermitsCount, &["permits_are_taken_and_given_back_once"]),
    (
        Flaw::RefusesRepeatedPermits,
        &[
            "an_acquire_of_the_last_permits_can_be_repeated",
            "permits_are_taken_and_given_back_once",
        ],
    ),
];

const C6: Flaws = &[
    (Flaw::NamedReadersPileUp, &["a_named_reader_takes_over_its_own_hold_only"]),
    (Flaw::TakeoverEndsAllReaders, &["a_named_reader_takes_over_its_own_hold_only"]),
    (Flaw::RefusesTheOwnersNextWriter, &["a_named_writer_takes_over_its_own_hold"]),
    (Flaw::WaitingWritersStopTakeovers, &["a_named_reader_takes_over_past_a_waiting_writer"]),
];

const C7: Flaws =
    &[(Flaw::GrowthOfAReaderGrants, &["a_reader_or_writer_that_is_gone_cannot_grow"])];

const C8: Flaws = &[(
    Flaw::AnybodyRenewsReaders,
    &["a_reader_renews_its_own_hold_only", "a_named_reader_takes_over_its_own_hold_only"],
)];

const C9: Flaws = &[
    (Flaw::RenewalOfAReaderShortens, &["nothing_shortens_the_lease_of_a_reader"]),
    (Flaw::RepetitionOfAReaderShortens, &["nothing_shortens_the_lease_of_a_reader"]),
];

const C10: Flaws = &[(
    Flaw::AnybodyReleasesReaders,
    &["a_reader_releases_its_own_hold_only", "a_writer_comes_after_the_last_reader"],
)];

const C11: Flaws = &[(
    Flaw::ReadersShareACount,
    &["a_reader_nests_by_itself", "readers_and_writers_are_reported"],
)];

const C12: Flaws = &[
    (Flaw::ReleaseOfAReaderWakesNobody, &["the_release_of_the_last_reader_wakes"]),
    (Flaw::ReleaseOfAWriterWakesNobody, &["the_release_of_a_writer_wakes_every_reader"]),
    (Flaw::ReleaseOfPermitsWakesNobody, &["every_release_of_permits_wakes"]),
];

const C13: Flaws = &[
    (
        Flaw::ForceEndsOneHold,
        &["a_forced_release_ends_all_holds", "a_forced_release_gives_back_all_permits"],
    ),
    (Flaw::ForceKeepsReaders, &["a_forced_release_ends_all_holds"]),
];

const C14: Flaws = &[
    (
        Flaw::ReportsOneHolder,
        &["readers_and_writers_are_reported", "permits_are_reported", "readers_are_in_together"],
    ),
    (Flaw::ReportsReadersAsWriters, &["readers_and_writers_are_reported"]),
    (Flaw::ReportsNoWaitingWriter, &["a_waiting_writer_is_reported"]),
    (Flaw::WritersInKeepReadersOut, &["a_waiting_writer_is_reported"]),
    (Flaw::ReportsNoPermits, &["permits_are_reported"]),
];

const C15: Flaws = &[
    (
        Flaw::KeepsExpiredNames,
        &["nothing_is_left_of_readers_and_writers", "nothing_is_left_of_permits"],
    ),
    (Flaw::KeepsLapsedPlaces, &["nothing_is_left_of_writers_that_waited"]),
];

const C17: Flaws = &[(
    Flaw::DroppedAcquireArrivesLate,
    &["a_dropped_read_or_write_can_be_undone", "dropped_permits_can_be_undone"],
)];

const C21: Flaws = &[
    (
        Flaw::GrantsAsAnotherKind,
        &[
            "a_name_in_use_as_one_kind_is_refused_as_another",
            "a_request_as_another_kind_has_no_effect",
            "a_hold_cannot_grow_into_another_kind",
            "a_latch_with_a_count_is_no_lock",
        ],
    ),
    (
        Flaw::CallsAnotherKindHeld,
        &[
            "a_name_in_use_as_one_kind_is_refused_as_another",
            "a_hold_cannot_grow_into_another_kind",
        ],
    ),
    (Flaw::CallsAnotherKindAnotherError, &["a_name_in_use_as_one_kind_is_refused_as_another"]),
    (Flaw::TakesAnotherKindAndFails, &["a_request_as_another_kind_has_no_effect"]),
    (Flaw::AnotherKindEndsTheHold, &["a_request_as_another_kind_has_no_effect"]),
    (
        Flaw::StaysOfItsKindForEver,
        &[
            "a_name_that_is_free_again_can_be_of_another_kind",
            "a_name_whose_leases_have_ended_can_be_of_another_kind",
        ],
    ),
    (Flaw::KindOutlivesTheLease, &["a_name_whose_leases_have_ended_can_be_of_another_kind"]),
    (Flaw::TakesEachModeForAKind, &["modes_of_one_kind_refuse_each_other_as_held"]),
    (Flaw::ResizedIsFreeForAll, &["a_resized_semaphore_is_nothing_else"]),
    (Flaw::ResizesWhatIsALock, &["a_resized_semaphore_is_nothing_else"]),
    (Flaw::SetsCountsOfLocks, &["a_latch_with_a_count_is_no_lock"]),
    (Flaw::GrowthSkipsTheKind, &["a_hold_cannot_grow_into_another_kind"]),
];

const C22: Flaws = &[
    (Flaw::OneReaderAtATime, &["readers_are_in_together", "a_writer_comes_after_the_last_reader"]),
    (
        Flaw::ReadersIgnoreWriters,
        &["a_writer_is_in_alone", "a_reader_within_a_write_hold_opens_it_to_nobody"],
    ),
    (Flaw::WritersShare, &["a_writer_is_in_alone"]),
    (
        Flaw::WritersIgnoreReaders,
        &["a_writer_comes_after_the_last_reader", "a_reader_ends_with_its_own_lease"],
    ),
    (
        Flaw::OneReleaseEndsAllReaders,
        &["a_writer_comes_after_the_last_reader", "a_reader_releases_its_own_hold_only"],
    ),
];

const C23: Flaws = &[
    (
        Flaw::RefusesToReadWithin,
        &["a_writer_is_let_in_as_a_reader", "a_writer_goes_on_as_a_reader"],
    ),
    (Flaw::WriteEndsWithItsReader, &["a_writer_goes_on_as_a_reader"]),
    (
        Flaw::StaysAWriterWhileItReads,
        &["a_writer_goes_on_as_a_reader", "going_on_as_a_reader_wakes_the_others"],
    ),
    (Flaw::ReaderWithinOpensTheLock, &["a_reader_within_a_write_hold_opens_it_to_nobody"]),
    (Flaw::WakesOnlyWhenFree, &["going_on_as_a_reader_wakes_the_others"]),
    (Flaw::AnyWithinLetsIn, &["a_dead_write_hold_lets_nobody_in"]),
    (Flaw::ReaderTakesOverTheWriter, &["a_named_owner_reads_within_its_own_write_hold"]),
];

const C24: Flaws = &[
    (
        Flaw::LastLeaseIsForAll,
        &["a_reader_ends_with_its_own_lease", "a_writer_outlives_the_reader_within"],
    ),
    (Flaw::RenewalIsForAll, &["what_one_reader_does_does_not_keep_another"]),
    (
        Flaw::FirstLeaseEndsAll,
        &[
            "a_reader_ends_with_its_own_lease",
            "a_renewed_reader_outlives_the_others",
            "a_writer_comes_in_when_the_last_lease_has_ended",
            "a_reader_outlives_the_lease_of_the_write_hold",
            "a_writer_outlives_the_reader_within",
        ],
    ),
    (Flaw::WakesOnlyWhenFree, &["a_release_after_which_a_writer_waits_less_wakes"]),
    (Flaw::TakeoverWakesNobody, &["a_takeover_of_a_lease_of_its_own_that_ends_earlier_wakes"]),
    (Flaw::TellsTheFirstEnd, &["a_refused_writer_is_told_when_the_last_hold_ends"]),
    (Flaw::TellsTheNewestEnd, &["a_refused_writer_is_told_when_the_last_hold_ends"]),
];

const C25: Flaws = &[
    (
        Flaw::WaitingWritersKeepNobodyOut,
        &[
            "a_waiting_writer_keeps_new_readers_out",
            "a_writer_that_stopped_asking_keeps_readers_out_for_its_time",
        ],
    ),
    (Flaw::WaitingWritersStopAllReaders, &["readers_that_are_in_go_on_while_a_writer_waits"]),
    (
        Flaw::WaitingWritersStopReadersWithin,
        &["a_waiting_writer_does_not_keep_a_writer_from_reading"],
    ),
    (Flaw::WritersInKeepReadersOut, &["a_writer_that_came_in_keeps_nobody_out_afterwards"]),
    (Flaw::WritersThatGaveUpKeepReadersOut, &["a_writer_that_gives_up_lets_readers_in"]),
    (Flaw::WritersThatGiveUpWakeNobody, &["a_writer_that_gives_up_lets_readers_in"]),
    (
        Flaw::WaitingWritersNeverLapse,
        &["a_writer_that_stopped_asking_keeps_readers_out_for_its_time"],
    ),
    (
        Flaw::WaitingWritersLapseEarly,
        &["a_writer_that_stopped_asking_keeps_readers_out_for_its_time"],
    ),
    (
        Flaw::AskingAgainDoesNotKeepReadersOut,
        &["a_writer_that_asks_again_goes_on_keeping_readers_out"],
    ),
    (
        Flaw::ShortHoldAfterAPlaceWakesNobody,
        &["a_writer_that_comes_in_for_less_than_its_time_wakes_readers"],
    ),
    (Flaw::OneWriterKeepsReadersOut, &["every_waiting_writer_keeps_new_readers_out"]),
    (
        Flaw::GrowthOfAWaitingWriterLetsReadersIn,
        &["a_writer_that_cannot_grow_goes_on_keeping_readers_out"],
    ),
    (Flaw::TryingKeepsReadersOut, &["a_writer_that_only_tries_keeps_nobody_out"]),
    (
        Flaw::WritersBehindWritersKeepReadersOut,
        &["a_writer_that_waits_for_a_writer_keeps_nobody_out"],
    ),
];

const C26: Flaws = &[
    (
        Flaw::GrantsPermitsWithoutEnd,
        &[
            "no_more_permits_are_held_than_there_are",
            "of_simultaneous_requests_as_many_are_granted_as_there_are_permits",
            "permits_come_together_or_not_at_all",
        ],
    ),
    (Flaw::CountsHoldsForPermits, &["no_more_permits_are_held_than_there_are"]),
    (Flaw::GivesWhatIsLeft, &["permits_come_together_or_not_at_all"]),
    (Flaw::EachSaysHowManyPermits, &["the_first_says_how_many_permits_there_are"]),
    (Flaw::PermitsOfAnOwnerAreOneHold, &["an_owner_can_hold_permits_several_times"]),
];

const C27: Flaws = &[
    (Flaw::AnybodyRenewsPermits, &["permits_are_renewed_and_released_by_their_holder_only"]),
    (Flaw::AnybodyReleasesPermits, &["permits_are_renewed_and_released_by_their_holder_only"]),
    (Flaw::RenewalIsForAll, &["permits_come_back_with_the_end_of_their_lease"]),
    (Flaw::EndedPermitsStayTaken, &["permits_come_back_with_the_end_of_their_lease"]),
    (Flaw::OneEndGivesBackAllPermits, &["permits_come_back_with_the_end_of_their_lease"]),
    (Flaw::TellsWhenTheLastPermitsComeBack, &["a_refusal_tells_when_the_next_permits_come_back"]),
];

const C28: Flaws = &[
    (Flaw::CallsTooManyHeld, &["more_permits_than_there_are_is_answered_so"]),
    (Flaw::AllPermitsAreTooMany, &["all_permits_can_be_had_together"]),
    (Flaw::CallsTakenPermitsTooMany, &["all_permits_can_be_had_together"]),
    (Flaw::MeasuresTooManyByWhatIsSaid, &["too_many_is_measured_by_what_there_is"]),
];

const C29: Flaws = &[
    (
        Flaw::ResizingDoesNothing,
        &["what_was_set_counts_and_not_what_is_said", "permits_can_be_set_again"],
    ),
    (Flaw::WhatIsSaidCountsMore, &["what_was_set_counts_and_not_what_is_said"]),
    (Flaw::ForgetsTheSizeWhenFree, &["what_was_set_is_remembered"]),
    (Flaw::ResizingWakesNobody, &["more_permits_wake_those_who_wait"]),
    (Flaw::ResizingEndsHolds, &["fewer_permits_leave_those_that_are_held"]),
    (Flaw::ResizingCountsWhatIsFree, &["permits_can_be_set_again"]),
    (Flaw::ResizingRenews, &["setting_the_permits_changes_no_lease"]),
    (Flaw::ResizesWhatIsSet, &["a_number_that_was_set_stays_if_it_is_asked_to"]),
    (Flaw::TakesWhatIsSaidForSet, &["what_the_first_acquire_said_is_not_set"]),
    (Flaw::SaysThatItResized, &["a_number_that_was_set_stays_if_it_is_asked_to"]),
];
