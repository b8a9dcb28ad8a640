//! The only list of cases. `kit_catches.rs` shows that no case is missing from it.

/// Calls the macro `$callback` with the list of all cases: subjects, and under each the parts that
/// its cases need, with the clause and the name of each case. The tokens in the second pair of
/// brackets are passed through.
///
/// `[exclusive]` is for every backend, `[fair]` for those with that part, `[fair or permits]` for
/// those with one of the two, and `[not fair]` for those without the part. Subjects whose cases all
/// need one part are in `list_of_parts.rs`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ([$($callback:tt)+], [$($through:tt)*]) => {
        $crate::and_for_each_case_of_a_part! {
            [$($callback)+], [$($through)*]
            exclusion [exclusive] {
                C1 of_simultaneous_requests_one_is_granted
                C1 owners_that_come_and_go_are_never_inside_together
                C1 what_one_releases_another_gets
                C2 a_stranger_is_refused_with_the_remaining_lease
                C2 the_remaining_lease_in_a_refusal_shrinks
                C2 a_refusal_changes_nothing
                C2 who_expects_a_refusal_gets_a_free_lock
                C2 who_was_refused_has_nothing
            }
            leases [exclusive] {
                C3 a_hold_ends_with_its_lease
                C3 a_hold_does_not_end_before_its_lease
                C3 a_renewed_hold_lasts_as_long_as_its_renewed_lease
                C3 every_hold_of_a_name_has_an_end_of_its_own
                C3 the_shortest_lease_ends
                C3 a_lease_of_a_year_is_kept_whole
                C3 an_ended_hold_cannot_be_revived
            }
            tokens [exclusive] {
                C4 tokens_rise_from_hold_to_hold
                C4 tokens_rise_after_an_expired_hold
                C4 tokens_rise_after_a_forced_release
                C4 tokens_rise_although_the_name_was_forgotten
                C4 tokens_rise_for_an_owner_that_comes_again
                C4 tokens_rise_past_requests_that_were_not_granted
            }
            several_tokens [exclusive] {
                C4 tokens_rise_from_task_to_task
            } [hand_over] {
                C37 later_tokens_are_greater_than_all_that_were_granted
                C37 tokens_are_not_given_away_again_after_a_hold_that_ended_otherwise
                C37 a_repetition_is_answered_with_the_first_of_its_tokens
            }
            demand [demand] {
                C38 a_refusal_wakes_those_who_await_the_demand
                C38 every_refusal_wakes
                C38 a_refusal_between_two_waits_is_heard_of
                C38 a_dropped_wait_takes_no_demand_with_it
                C38 one_who_waits_already_is_heard_of_at_once
                C38 demand_and_ends_are_both_heard_of
                C38 the_demand_for_every_name_is_heard_of
                C38 those_who_leave_do_not_silence_the_demand
                C38 the_demand_changes_nothing_of_the_hold
                C38 the_demand_in_other_modes_is_refused
                C17 a_dropped_subscribe_to_the_demand_leaves_none
            }
            repetition [exclusive] {
                C5 an_acquire_that_arrives_twice_is_one_hold
                C5 an_acquire_that_arrives_by_two_ways_is_one_hold
                C5 an_acquire_of_a_named_owner_that_arrives_twice_is_one_hold
                C5 a_nested_acquire_sets_the_count_and_never_adds_to_it
                C5 a_partial_release_that_arrives_twice_lowers_the_count_once
                C5 a_release_that_arrives_twice_does_not_touch_the_next_hold
                C5 a_renewal_that_arrives_twice_is_answered_twice
            }
            takeover [exclusive] {
                C6 a_named_owner_takes_over_its_own_hold
                C6 a_hold_that_was_taken_over_cannot_be_renewed
                C6 a_hold_that_was_taken_over_cannot_release
                C6 a_takeover_does_not_inherit_the_count
                C6 a_named_owner_excludes_everybody_else
                C6 an_owner_without_a_name_is_not_taken_over
            }
            nesting [exclusive] {
                C7 a_released_hold_cannot_grow
                C7 an_expired_hold_cannot_grow
                C7 a_forced_hold_cannot_grow
                C7 a_hold_that_never_was_cannot_grow
                C7 a_hold_that_was_succeeded_cannot_grow
                C7 a_hold_that_was_taken_over_cannot_grow
                C7 a_live_hold_grows_in_count_and_lease
                C11 a_partial_release_keeps_the_hold
                C11 a_partial_release_keeps_the_lease
                C11 a_partial_release_of_nothing_makes_no_hold
            }
            renewal [exclusive] {
                C8 a_renewed_hold_outlives_its_first_lease
                C8 a_stranger_cannot_renew
                C8 renewing_nothing_makes_no_hold
                C8 a_stale_holder_cannot_renew_a_newer_hold
                C8 each_renewal_of_a_batch_is_answered_in_its_place
                C8 a_batch_tells_the_owners_of_one_name_apart
                C8 an_empty_batch_has_no_answers
                C9 a_shorter_renewal_does_not_shorten_the_lease
                C9 a_repeated_acquire_does_not_shorten_the_lease
                C9 a_nested_acquire_does_not_shorten_the_lease
            }
            release [exclusive] {
                C10 a_stale_holder_cannot_release_a_newer_hold
                C10 a_stranger_cannot_release
                C10 undoing_what_was_refused_releases_nothing
                C10 releasing_a_free_lock_is_answered_so
                C10 a_full_release_frees_the_lock_whatever_its_count
                C10 a_hold_can_be_released_from_another_client
                C10 a_forced_holder_cannot_release_a_newer_hold
            }
            wakeups [exclusive] {
                C12 a_release_wakes_the_subscribers_of_every_client
                C12 a_release_wakes_one_that_sleeps
                C12 a_forced_release_wakes
                C12 every_release_wakes
                C12 the_release_of_a_nested_hold_wakes
                C12 a_wakeup_between_two_waits_is_kept
                C12 a_dropped_wait_takes_no_wakeup_with_it
                C12 subscribers_that_leave_do_not_silence_those_who_stay
                C12 a_subscription_after_another_is_in_effect
                C12 a_takeover_that_ends_earlier_wakes
            }
            force [exclusive] {
                C13 a_forced_release_frees_the_lock_whoever_holds_it
                C13 a_forced_release_frees_a_nested_hold_as_a_whole
                C13 a_forced_release_of_a_free_lock_says_so
                C13 a_forced_release_of_an_expired_hold_says_that_it_was_free
                C13 who_was_forced_out_has_nothing_left
            }
            inspection [exclusive] {
                C14 a_hold_is_reported_with_owner_mode_count_and_lease
                C14 a_free_lock_is_reported_as_free
                C14 an_expired_hold_is_reported_as_absent
                C14 the_reported_count_is_the_stored_one
                C14 the_reported_lease_shrinks
                C14 looking_does_not_disturb
            }
            names [exclusive] {
                C15 names_that_look_alike_are_different_locks
                C15 what_is_done_to_one_name_is_not_done_to_another
                C15 one_owner_holds_each_name_by_itself
                C15 nothing_is_left_of_a_released_name
                C15 nothing_is_left_of_a_hold_that_ended_otherwise
                C15 nothing_is_left_of_requests_that_were_for_nothing
                C15 nothing_is_left_of_a_dropped_subscription
            }
            ids [exclusive] {
                C10 ids_of_the_greatest_length_are_told_apart
                C10 holds_of_every_mode_can_have_ids_of_the_greatest_length
                C6 owners_of_the_greatest_length_are_told_apart
            }
            capabilities [exclusive] {
                C16 exclusive_locks_are_declared_and_granted
                C16 a_declared_mode_is_granted
                C16 all_clients_declare_the_same
            }
            refusals
                [not fair] { C16 undeclared_fair_locks_are_refused }
                [not read_write] { C16 undeclared_read_write_locks_are_refused }
                [not permits] { C16 undeclared_permits_are_refused }
                [not hand_over] { C16 undeclared_grants_of_several_tokens_are_refused }
                [not demand] { C16 undeclared_demand_is_refused }
                [not proposed_tokens] { C16 undeclared_proposals_of_tokens_are_refused }
                [not latches] { C16 undeclared_latches_are_refused }
                [not conditions] { C16 undeclared_conditions_are_refused }
                [not directory] { C16 an_undeclared_directory_is_refused }
            kinds [exclusive] {
                C21 modes_of_one_kind_refuse_each_other_as_held
            } [read_write or permits] {
                C21 a_name_in_use_as_one_kind_is_refused_as_another
                C21 a_request_as_another_kind_has_no_effect
                C21 a_name_that_is_free_again_can_be_of_another_kind
                C21 a_name_whose_leases_have_ended_can_be_of_another_kind
                C21 a_hold_cannot_grow_into_another_kind
            } [permits] {
                C21 a_resized_semaphore_is_nothing_else
            } [latches] {
                C21 a_latch_with_a_count_is_no_lock
            }
            cancellation [exclusive] {
                C17 a_dropped_acquire_can_be_undone
                C17 a_dropped_acquire_can_be_undone_by_a_warm_client
                C17 a_dropped_acquire_does_not_block_its_client
                C3 a_dropped_acquire_ends_with_its_lease_at_the_latest
                C17 a_dropped_renewal_leaves_the_hold
                C17 a_dropped_release_can_be_repeated
                C17 a_dropped_forced_release_can_be_repeated
                C17 a_dropped_inspection_changes_nothing
                C17 a_dropped_subscribe_leaves_no_subscription
            } [fair] {
                C17 a_dropped_fair_acquire_leaves_no_place
            }
            through_the_core [exclusive] {
                C1 a_waiter_enters_when_another_client_releases
                C3 a_waiter_enters_when_a_dead_holders_lease_ends
                C2 a_held_lock_is_not_acquired_by_trying
                C2 a_timeout_leaves_nothing
                C10 nested_guards_release_in_any_order
                C7 a_nested_acquisition_can_lengthen_the_lease
                C1 two_branches_of_one_join_exclude_each_other
                C1 a_spawned_task_is_a_stranger
                C4 run_nests
                C4 a_hold_has_one_token_and_the_next_a_greater
                C5 a_named_owner_re_enters_from_another_handle
                C6 a_named_owner_takes_its_hold_along_to_another_client
                C8 the_watchdog_keeps_a_hold_beyond_its_lease
                C3 the_holder_of_a_fixed_lease_learns_of_its_end_first
                C8 a_forced_release_is_noticed_by_the_next_renewal
                C8 run_drops_its_body_when_the_hold_is_lost
                C10 a_dropped_guard_releases
                C17 a_dropped_acquisition_leaves_nothing
                C12 a_dropped_waiter_takes_nobodys_turn
                C1 everybody_gets_a_turn
                C14 the_state_tells_the_holder_from_any_client
                C10 closing_a_client_releases_what_it_holds
            }
        }
    };
}
