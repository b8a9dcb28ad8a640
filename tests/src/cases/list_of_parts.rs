//! The second half of the list of cases: subjects whose cases all need one part.

/// Helper of [`for_each_case!`](crate::for_each_case): adds these subjects to the earlier ones.
#[doc(hidden)]
#[macro_export]
macro_rules! and_for_each_case_of_a_part {
    ([$($callback:tt)+], [$($through:tt)*] $($earlier:tt)*) => {
        $($callback)+! {
            [$($through)*]
            $($earlier)*
            fair [fair] {
                C18 those_who_were_refused_enter_in_the_order_in_which_they_came
                C18 the_order_outlives_the_end_of_a_lease
                C18 nobody_overtakes_the_first_of_the_queue
                C18 a_refusal_of_a_free_lock_tells_when_to_ask_again
                C18 a_try_takes_no_place
                C18 asking_again_keeps_the_place
                C18 who_has_entered_has_no_place_any_more
                C18 every_name_has_a_queue_of_its_own
                C1 a_fair_hold_and_an_exclusive_one_exclude_each_other
                C6 a_named_owner_takes_over_its_fair_hold_past_the_queue
                C7 a_fair_hold_that_is_gone_cannot_grow_past_the_queue
                C8 a_fair_hold_is_nested_and_renewed_like_any_other
                C13 a_forced_release_frees_a_fair_hold
                C19 a_place_is_forgotten_after_its_time
                C19 a_place_is_kept_for_its_time
                C19 a_waiter_that_asks_again_in_time_is_not_forgotten
                C19 who_asks_again_too_late_comes_last
                C19 who_has_stopped_asking_is_passed_over
                C19 nothing_is_left_of_places_that_lapsed
                C20 who_gives_up_is_out_of_the_queue
                C20 who_gave_up_comes_last
                C20 giving_up_a_place_leaves_the_hold_of_another
                C20 giving_up_the_first_place_wakes_the_next
                C20 the_end_of_a_hold_wakes_the_first_of_the_queue
                C20 the_end_of_an_exclusive_hold_wakes_the_first_of_the_queue
                C20 a_forced_release_wakes_the_first_of_the_queue
                C20 a_forced_release_of_an_exclusive_hold_wakes_the_first_of_the_queue
                C20 every_release_wakes_whoever_is_first_then
                C20 a_takeover_that_ends_earlier_wakes_the_first_of_the_queue
                C20 an_exclusive_takeover_that_ends_earlier_wakes_the_first_of_the_queue
                C20 a_hold_that_ends_before_its_place_wakes_the_next
                C20 nothing_is_left_of_places_that_were_given_up
            }
            direct_grant [direct_grant] {
                C39 a_release_grants_to_the_first_in_the_queue
                C39 one_after_the_other_is_granted_the_lock
                C39 who_gave_no_number_is_only_woken
                C39 a_grant_names_the_last_request
                C39 a_granted_hold_lasts_as_long_as_its_place
                C39 a_granted_hold_is_like_any_other
                C39 giving_up_the_first_place_grants_to_the_next
                C39 a_held_lock_is_granted_to_nobody
                C39 who_is_out_of_the_queue_is_granted_nothing
                C39 a_grant_between_two_waits_is_heard_of
            }
            proposed_tokens [proposed_tokens] {
                C40 a_grant_carries_the_token_that_was_proposed
                C40 a_proposal_that_is_too_late_is_exceeded
                C40 a_proposal_counts_for_the_first_of_several_tokens
                C40 a_refused_proposal_changes_nothing_for_the_holder
                C40 a_repetition_with_another_proposal_is_one_hold
                C40 a_named_owner_takes_over_with_a_proposed_token
                C40 grants_without_a_proposal_follow_one_with_it
                C40 grants_follow_a_raised_token
                C40 a_token_is_never_lowered
                C40 who_holds_the_lock_keeps_it_when_the_token_is_raised
                C40 nothing_is_left_of_a_raised_token
                C17 a_dropped_raising_can_be_repeated
            }
            sharing [read_write] {
                C22 readers_are_in_together
                C22 a_writer_is_in_alone
                C22 a_writer_comes_after_the_last_reader
                C10 a_reader_releases_its_own_hold_only
                C8 a_reader_renews_its_own_hold_only
                C5 a_reader_or_writer_that_arrives_twice_is_one_hold
                C11 a_reader_nests_by_itself
                C7 a_reader_or_writer_that_is_gone_cannot_grow
                C9 nothing_shortens_the_lease_of_a_reader
                C6 a_named_reader_takes_over_its_own_hold_only
                C6 a_named_writer_takes_over_its_own_hold
                C4 tokens_rise_across_modes
                C12 the_release_of_the_last_reader_wakes
                C12 the_release_of_a_writer_wakes_every_reader
                C13 a_forced_release_ends_all_holds
                C14 readers_and_writers_are_reported
                C15 nothing_is_left_of_readers_and_writers
                C17 a_dropped_read_or_write_can_be_undone
            }
            downgrade [read_write] {
                C23 a_writer_is_let_in_as_a_reader
                C23 a_writer_goes_on_as_a_reader
                C23 a_reader_within_a_write_hold_opens_it_to_nobody
                C23 going_on_as_a_reader_wakes_the_others
                C23 a_dead_write_hold_lets_nobody_in
                C23 a_named_owner_reads_within_its_own_write_hold
            }
            own_leases [read_write] {
                C24 a_reader_ends_with_its_own_lease
                C24 what_one_reader_does_does_not_keep_another
                C24 a_renewed_reader_outlives_the_others
                C24 a_writer_comes_in_when_the_last_lease_has_ended
                C24 a_refused_writer_is_told_when_the_last_hold_ends
                C24 a_release_after_which_a_writer_waits_less_wakes
                C24 a_reader_outlives_the_lease_of_the_write_hold
                C24 a_writer_outlives_the_reader_within
                C24 a_takeover_of_a_lease_of_its_own_that_ends_earlier_wakes
            }
            writers [read_write] {
                C25 a_waiting_writer_keeps_new_readers_out
                C25 readers_that_are_in_go_on_while_a_writer_waits
                C6 a_named_reader_takes_over_past_a_waiting_writer
                C25 a_writer_that_came_in_keeps_nobody_out_afterwards
                C25 a_writer_that_gives_up_lets_readers_in
                C25 a_writer_that_stopped_asking_keeps_readers_out_for_its_time
                C25 a_writer_that_asks_again_goes_on_keeping_readers_out
                C25 a_writer_that_cannot_grow_goes_on_keeping_readers_out
                C25 every_waiting_writer_keeps_new_readers_out
                C25 a_writer_that_only_tries_keeps_nobody_out
                C25 a_writer_that_waits_for_a_writer_keeps_nobody_out
                C25 a_waiting_writer_does_not_keep_a_writer_from_reading
                C25 a_writer_that_comes_in_for_less_than_its_time_wakes_readers
                C14 a_waiting_writer_is_reported
                C15 nothing_is_left_of_writers_that_waited
            }
            permits [permits] {
                C26 no_more_permits_are_held_than_there_are
                C26 of_simultaneous_requests_as_many_are_granted_as_there_are_permits
                C26 permits_come_together_or_not_at_all
                C26 the_first_says_how_many_permits_there_are
                C26 an_owner_can_hold_permits_several_times
                C5 permits_are_taken_and_given_back_once
                C5 an_acquire_of_the_last_permits_can_be_repeated
                C27 permits_are_renewed_and_released_by_their_holder_only
                C27 permits_come_back_with_the_end_of_their_lease
                C27 a_refusal_tells_when_the_next_permits_come_back
                C28 more_permits_than_there_are_is_answered_so
                C28 all_permits_can_be_had_together
                C28 too_many_is_measured_by_what_there_is
                C12 every_release_of_permits_wakes
                C13 a_forced_release_gives_back_all_permits
                C14 permits_are_reported
                C15 nothing_is_left_of_permits
                C17 dropped_permits_can_be_undone
            }
            resizing [permits] {
                C29 what_was_set_counts_and_not_what_is_said
                C29 what_was_set_is_remembered
                C29 more_permits_wake_those_who_wait
                C29 fewer_permits_leave_those_that_are_held
                C29 permits_can_be_set_again
                C29 setting_the_permits_changes_no_lease
                C29 a_number_that_was_set_stays_if_it_is_asked_to
                C29 what_the_first_acquire_said_is_not_set
            }
            latches [latches] {
                C30 an_open_latch_takes_a_count
                C30 a_latch_that_has_a_count_keeps_it
                C30 of_simultaneous_counts_one_is_set
                C30 a_count_that_is_set_twice_is_set_once
                C30 a_repeated_count_does_not_close_an_opened_latch
                C30 a_count_that_was_refused_stays_refused
                C30 a_latch_can_be_set_again_once_it_is_open
                C30 the_greatest_count_is_kept
                C30 every_name_has_a_latch_of_its_own
                C30 a_count_whose_setting_was_dropped_can_be_set
                C31 each_count_lowers_what_is_left_by_one
                C31 the_last_count_opens_the_latch
                C31 simultaneous_counts_all_count
                C31 a_count_down_that_arrives_twice_counts_once
                C31 a_count_down_that_arrives_by_two_ways_counts_once
                C31 a_repetition_does_not_count_down_the_next_count
                C31 an_open_latch_is_not_counted_down
                C31 opening_a_latch_ends_its_count
                C31 looking_at_a_latch_changes_nothing
                C31 nothing_is_left_of_an_open_latch
                C31 a_dropped_count_down_can_be_repeated
                C31 a_dropped_opening_can_be_repeated
                C31 a_dropped_look_at_a_latch_changes_nothing
            }
            latch_wakeups [latches] {
                C32 the_last_count_wakes_the_subscribers_of_every_client
                C32 the_opening_of_a_latch_wakes
                C32 the_last_count_wakes_one_that_sleeps
                C32 every_opening_wakes
                C32 an_opening_between_two_waits_is_kept
                C32 a_dropped_wait_takes_no_opening_with_it
                C32 those_who_leave_a_latch_do_not_silence_the_others
                C32 a_subscription_to_a_latch_after_another_is_in_effect
                C32 who_subscribes_and_then_looks_misses_no_opening
                C32 nothing_is_left_of_a_dropped_subscription_to_a_latch
                C32 a_dropped_subscribe_leaves_no_subscription_to_a_latch
            }
            conditions [conditions] {
                C33 those_who_wait_are_notified_in_the_order_in_which_they_came
                C33 several_can_be_notified_at_once
                C33 everybody_can_be_notified
                C33 a_notification_of_nobody_is_kept_for_nobody
                C33 joining_again_keeps_the_place_in_the_queue
                C33 who_was_notified_can_join_again
                C33 simultaneous_notifications_are_for_different_waiters
                C33 simultaneous_waiters_all_get_a_place
                C33 a_condition_and_its_lock_do_not_touch_each_other
                C33 every_condition_has_a_queue_of_its_own
                C33 a_dropped_notification_is_one_or_none
                C34 a_waiter_is_forgotten_after_its_time
                C34 a_waiter_is_kept_for_its_time
                C34 staying_lengthens_the_time
                C34 a_shorter_time_replaces_a_longer_one
                C34 every_waiter_has_a_time_of_its_own
                C34 those_who_have_lapsed_are_passed_over
                C34 who_joins_again_too_late_comes_last
                C34 who_was_notified_cannot_stay
                C34 nothing_is_left_of_waiters_that_lapsed
                C34 nothing_is_left_of_a_condition_without_waiters
                C34 a_dropped_request_to_stay_leaves_the_place
            }
            condition_leaving [conditions] {
                C35 who_leaves_a_condition_is_out
                C35 who_leaves_in_time_passes_nothing_on
                C35 who_was_notified_can_pass_it_on
                C35 who_was_notified_can_keep_it
                C35 what_is_passed_on_to_nobody_is_gone
                C35 what_is_passed_on_goes_past_those_who_have_lapsed
                C35 who_has_left_a_condition_comes_last
                C35 a_dropped_join_can_be_undone
                C35 a_dropped_leave_can_be_repeated
            }
            condition_wakeups [conditions] {
                C36 a_notification_wakes_its_waiter
                C36 everybody_who_is_notified_is_woken
                C36 every_subscription_of_a_waiter_is_woken
                C36 a_notification_that_is_passed_on_wakes
                C36 a_notification_wakes_one_that_sleeps
                C36 every_notification_wakes
                C36 a_notification_between_two_waits_is_kept
                C36 a_dropped_wait_takes_no_notification_with_it
                C36 those_who_stop_listening_do_not_silence_the_others
                C36 a_subscription_of_a_waiter_after_another_is_in_effect
                C36 who_subscribes_and_then_asks_misses_no_notification
                C36 nothing_is_left_of_a_dropped_subscription_of_a_waiter
                C36 a_dropped_subscribe_leaves_no_subscription_of_a_waiter
            }
            directory [directory] {
                C41 every_name_in_use_is_reported
                C41 a_name_that_is_free_again_is_not_reported
                C41 a_name_whose_lease_has_ended_is_not_reported
                C41 names_that_look_alike_are_reported_as_they_are
                C41 a_walk_over_many_names_reports_each
                C41 a_walk_reports_what_stays_while_others_come_and_go
                C41 a_cursor_of_another_store_is_refused
                C42 a_walk_does_not_hold_up_others
                C45 what_is_stored_of_a_name_is_told
                C45 how_many_wait_for_a_condition_is_told
                C17 a_dropped_step_of_a_walk_changes_nothing
            }
            client_records [directory] {
                C43 a_record_is_reported_as_it_was_written
                C43 the_last_record_of_a_client_is_reported
                C43 a_record_is_forgotten_after_its_lifetime
                C43 a_record_is_kept_for_its_lifetime
                C43 the_last_lifetime_of_a_record_counts
                C43 a_removed_record_is_not_reported
                C43 the_records_of_many_clients_are_reported
                C43 records_are_reported_while_others_come_and_go
                C44 records_do_not_affect_locks
                C44 locks_do_not_affect_records
                C44 records_are_not_reported_as_names
                C17 a_dropped_put_can_be_repeated
                C17 a_dropped_removal_can_be_repeated
            }
            fair_through_the_core [fair] {
                C18 waiters_of_two_clients_enter_in_the_order_in_which_they_came
                C19 a_waiter_keeps_its_place_for_as_long_as_it_waits
                C20 a_fair_waiter_that_is_dropped_leaves_no_place
                C20 a_fair_waiter_that_times_out_leaves_no_place
                C5 fair_holds_nest
            }
        }
    };
}
