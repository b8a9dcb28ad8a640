//! The cases that catch each flaw of a directory.

use lockcore_testkit::Op;

use super::{caught::Flaws, flaw::Flaw};

pub(crate) const DIRECTORY: &[(&str, Flaws)] =
    &[("C17", C17), ("C41", C41), ("C42", C42), ("C43", C43), ("C44", C44), ("C45", C45)];

const C17: Flaws = &[
    (Flaw::StaysBusyWhenDropped(Op::Names), &["a_dropped_step_of_a_walk_changes_nothing"]),
    (Flaw::StaysBusyWhenDropped(Op::Clients), &["a_dropped_step_of_a_walk_changes_nothing"]),
    (Flaw::StaysBusyWhenDropped(Op::PutClient), &["a_dropped_put_can_be_repeated"]),
    (Flaw::TakesOutTheRecordToReplaceIt, &["a_dropped_put_can_be_repeated"]),
    (Flaw::StaysBusyWhenDropped(Op::RemoveClient), &["a_dropped_removal_can_be_repeated"]),
];

const C41: Flaws = &[
    (Flaw::ReportsNoSharedNames, &["every_name_in_use_is_reported"]),
    (Flaw::ReportsNoQueues, &["every_name_in_use_is_reported"]),
    (Flaw::ReportsNoNumbers, &["every_name_in_use_is_reported"]),
    (Flaw::ReportsNoLatches, &["every_name_in_use_is_reported"]),
    (
        Flaw::ReportsNamesOfItsOwnClientOnly,
        &["every_name_in_use_is_reported", "names_that_look_alike_are_reported_as_they_are"],
    ),
    (Flaw::NeverForgetsANameItSaw, &["a_name_that_is_free_again_is_not_reported"]),
    (Flaw::ReportsNamesThatHaveEnded, &["a_name_whose_lease_has_ended_is_not_reported"]),
    (Flaw::EscapesNames, &["names_that_look_alike_are_reported_as_they_are"]),
    (Flaw::WalksOnePageOnly, &["a_walk_over_many_names_reports_each"]),
    (Flaw::WalksByOffset, &["a_walk_reports_what_stays_while_others_come_and_go"]),
    (Flaw::TakesEveryCursor, &["a_cursor_of_another_store_is_refused"]),
];

const C42: Flaws = &[(Flaw::WalkHoldsUpOthers, &["a_walk_does_not_hold_up_others"])];

const C43: Flaws = &[
    (Flaw::EscapesRecords, &["a_record_is_reported_as_it_was_written"]),
    (Flaw::TrimsRecords, &["a_record_is_reported_as_it_was_written"]),
    (Flaw::CutsRecords, &["a_record_is_reported_as_it_was_written"]),
    (Flaw::ReportsItsOwnRecordsOnly, &["a_record_is_reported_as_it_was_written"]),
    (Flaw::KeepsTheFirstRecord, &["the_last_record_of_a_client_is_reported"]),
    (Flaw::RecordsNeverLapse, &["a_record_is_forgotten_after_its_lifetime"]),
    (Flaw::RecordsLapseEarly, &["a_record_is_kept_for_its_lifetime"]),
    (Flaw::KeepsTheFirstLifetime, &["the_last_lifetime_of_a_record_counts"]),
    (Flaw::OnlyLengthensLifetimes, &["the_last_lifetime_of_a_record_counts"]),
    (Flaw::KeepsRemovedRecords, &["a_removed_record_is_not_reported"]),
    (Flaw::RemovesAllRecords, &["a_removed_record_is_not_reported"]),
    (Flaw::OneRecordForAll, &["the_records_of_many_clients_are_reported"]),
    (
        Flaw::WalksOnePageOnly,
        &[
            "the_records_of_many_clients_are_reported",
            "records_are_reported_while_others_come_and_go",
        ],
    ),
    (Flaw::WalksByOffset, &["records_are_reported_while_others_come_and_go"]),
];

const C44: Flaws = &[
    (Flaw::RecordsTakeLocks, &["records_do_not_affect_locks"]),
    (Flaw::RemovalReleasesLocks, &["records_do_not_affect_locks"]),
    (Flaw::ReleaseRemovesTheRecord, &["locks_do_not_affect_records"]),
    (Flaw::ForceRemovesTheRecord, &["locks_do_not_affect_records"]),
    (Flaw::ReportsRecordsAsNames, &["records_are_not_reported_as_names"]),
];

const C45: Flaws = &[
    (Flaw::TellsOfNothingStored, &["what_is_stored_of_a_name_is_told"]),
    (Flaw::TellsOfAllThatIsStored, &["what_is_stored_of_a_name_is_told"]),
    (Flaw::EndsWhatItLooksAt, &["what_is_stored_of_a_name_is_told"]),
    (Flaw::CountsNoWaiters, &["how_many_wait_for_a_condition_is_told"]),
];
