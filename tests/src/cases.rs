//! The list of cases, and the two things made of it: tests, and values to run otherwise.

use std::{fmt, future::Future, pin::Pin};

use crate::Fixture;

/// Calls the macro `$callback` with the list of all cases: subjects, and under each the clause and the name of its
/// cases. What stands in the brackets is handed through.
///
/// This is the only list; `kit_catches.rs` shows that no case is missing from it.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ([$($callback:tt)+], [$($through:tt)*]) => {
        $($callback)+! {
            [$($through)*]
            exclusion {
                C1 of_simultaneous_requests_one_is_granted
                C1 owners_that_come_and_go_are_never_inside_together
                C1 what_one_releases_another_gets
                C2 a_stranger_is_refused_with_the_remaining_lease
                C2 the_remaining_lease_in_a_refusal_shrinks
                C2 a_refusal_changes_nothing
                C2 who_was_refused_has_nothing
            }
            leases {
                C3 a_hold_ends_with_its_lease
                C3 a_hold_does_not_end_before_its_lease
                C3 a_renewed_hold_lasts_as_long_as_its_renewed_lease
                C3 every_hold_of_a_name_has_an_end_of_its_own
                C3 a_lease_of_a_millisecond_ends
                C3 a_lease_of_a_year_is_kept_whole
                C3 an_ended_hold_cannot_be_revived
            }
            tokens {
                C4 tokens_rise_from_hold_to_hold
                C4 tokens_rise_after_an_expired_hold
                C4 tokens_rise_after_a_forced_release
                C4 tokens_rise_although_the_name_was_forgotten
                C4 tokens_rise_for_an_owner_that_comes_again
                C4 tokens_rise_past_requests_that_were_not_granted
            }
            several_tokens {
                C37 later_tokens_are_greater_than_all_that_were_granted
                C37 tokens_are_not_given_away_again_after_a_hold_that_ended_otherwise
                C37 a_repetition_is_answered_with_the_first_of_its_tokens
                C4 tokens_rise_from_task_to_task
            }
            repetition {
                C5 an_acquire_that_arrives_twice_is_one_hold
                C5 an_acquire_that_arrives_by_two_ways_is_one_hold
                C5 an_acquire_of_a_named_owner_that_arrives_twice_is_one_hold
                C5 a_nested_acquire_sets_the_count_and_never_adds_to_it
                C5 a_partial_release_that_arrives_twice_lowers_the_count_once
                C5 a_release_that_arrives_twice_does_not_touch_the_next_hold
                C5 a_renewal_that_arrives_twice_is_answered_twice
            }
            takeover {
                C6 a_named_owner_takes_over_its_own_hold
                C6 a_hold_that_was_taken_over_cannot_be_renewed
                C6 a_hold_that_was_taken_over_cannot_release
                C6 a_takeover_does_not_inherit_the_count
                C6 a_named_owner_excludes_everybody_else
                C6 an_owner_without_a_name_is_not_taken_over
            }
            nesting {
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
            renewal {
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
            release {
                C10 a_stale_holder_cannot_release_a_newer_hold
                C10 a_stranger_cannot_release
                C10 releasing_a_free_lock_is_answered_so
                C10 a_full_release_frees_the_lock_whatever_its_count
                C10 a_hold_can_be_released_from_another_client
                C10 a_forced_holder_cannot_release_a_newer_hold
            }
            wakeups {
                C12 a_release_wakes_the_subscribers_of_every_client
                C12 a_release_wakes_one_that_sleeps
                C12 a_forced_release_wakes
                C12 every_release_wakes
                C12 the_release_of_a_nested_hold_wakes
                C12 a_wakeup_between_two_waits_is_kept
                C12 a_dropped_wait_takes_no_wakeup_with_it
                C12 subscribers_that_leave_do_not_silence_those_who_stay
                C12 a_subscription_after_another_is_in_effect
            }
            force {
                C13 a_forced_release_frees_the_lock_whoever_holds_it
                C13 a_forced_release_frees_a_nested_hold_as_a_whole
                C13 a_forced_release_of_a_free_lock_says_so
                C13 a_forced_release_of_an_expired_hold_says_that_it_was_free
                C13 who_was_forced_out_has_nothing_left
            }
            inspection {
                C14 a_hold_is_reported_with_owner_mode_count_and_lease
                C14 a_free_lock_is_reported_as_free
                C14 an_expired_hold_is_reported_as_absent
                C14 the_reported_count_is_the_stored_one
                C14 the_reported_lease_shrinks
                C14 looking_does_not_disturb
            }
            names {
                C15 names_that_look_alike_are_different_locks
                C15 what_is_done_to_one_name_is_not_done_to_another
                C15 one_owner_holds_each_name_by_itself
                C15 nothing_is_left_of_a_released_name
                C15 nothing_is_left_of_a_hold_that_ended_otherwise
                C15 nothing_is_left_of_requests_that_were_for_nothing
                C15 nothing_is_left_of_a_dropped_subscription
            }
            capabilities {
                C16 exclusive_locks_are_declared_and_granted
                C16 an_undeclared_mode_is_refused_without_effect
                C16 a_declared_mode_is_granted
                C16 all_clients_declare_the_same
            }
            fair {
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
                C20 a_forced_release_wakes_the_first_of_the_queue
                C20 every_release_wakes_whoever_is_first_then
                C20 nothing_is_left_of_places_that_were_given_up
            }
            kinds {
                C21 a_name_in_use_as_one_kind_is_refused_as_another
                C21 a_request_as_another_kind_has_no_effect
                C21 a_name_that_is_free_again_can_be_of_another_kind
                C21 a_name_whose_leases_have_ended_can_be_of_another_kind
                C21 modes_of_one_kind_refuse_each_other_as_held
                C21 a_resized_semaphore_is_nothing_else
                C21 a_latch_with_a_count_is_no_lock
                C21 a_hold_cannot_grow_into_another_kind
            }
            sharing {
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
            downgrade {
                C23 a_writer_is_let_in_as_a_reader
                C23 a_writer_goes_on_as_a_reader
                C23 a_reader_within_a_write_hold_opens_it_to_nobody
                C23 going_on_as_a_reader_wakes_the_others
                C23 a_dead_write_hold_lets_nobody_in
                C23 a_named_owner_reads_within_its_own_write_hold
            }
            own_leases {
                C24 a_reader_ends_with_its_own_lease
                C24 what_one_reader_does_does_not_keep_another
                C24 a_renewed_reader_outlives_the_others
                C24 a_writer_comes_in_when_the_last_lease_has_ended
                C24 a_refused_writer_is_told_when_the_last_hold_ends
                C24 a_release_after_which_a_writer_waits_less_wakes
                C24 a_reader_outlives_the_lease_of_the_write_hold
                C24 a_writer_outlives_the_reader_within
            }
            writers {
                C25 a_waiting_writer_keeps_new_readers_out
                C25 readers_that_are_in_go_on_while_a_writer_waits
                C6 a_named_reader_takes_over_past_a_waiting_writer
                C25 a_writer_that_came_in_keeps_nobody_out_afterwards
                C25 a_writer_that_gives_up_lets_readers_in
                C25 a_writer_that_stopped_asking_keeps_readers_out_for_its_time
                C25 a_writer_that_asks_again_goes_on_keeping_readers_out
                C25 every_waiting_writer_keeps_new_readers_out
                C25 a_writer_that_only_tries_keeps_nobody_out
                C25 a_writer_that_waits_for_a_writer_keeps_nobody_out
                C25 a_waiting_writer_does_not_keep_a_writer_from_reading
                C14 a_waiting_writer_is_reported
                C15 nothing_is_left_of_writers_that_waited
            }
            permits {
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
                C16 permits_are_declared_or_refused
                C17 dropped_permits_can_be_undone
            }
            resizing {
                C29 what_was_set_counts_and_not_what_is_said
                C29 what_was_set_is_remembered
                C29 more_permits_wake_those_who_wait
                C29 fewer_permits_leave_those_that_are_held
                C29 permits_can_be_set_again
                C29 setting_the_permits_changes_no_lease
                C29 a_number_that_was_set_stays_if_it_is_asked_to
                C29 what_the_first_acquire_said_is_not_set
            }
            latches {
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
            latch_wakeups {
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
            conditions {
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
            condition_leaving {
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
            condition_wakeups {
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
            cancellation {
                C17 a_dropped_acquire_can_be_undone
                C17 a_dropped_acquire_does_not_block_its_client
                C3 a_dropped_acquire_ends_with_its_lease_at_the_latest
                C17 a_dropped_fair_acquire_leaves_no_place
                C17 a_dropped_renewal_leaves_the_hold
                C17 a_dropped_release_can_be_repeated
                C17 a_dropped_forced_release_can_be_repeated
                C17 a_dropped_inspection_changes_nothing
                C17 a_dropped_subscribe_leaves_no_subscription
            }
            through_the_core {
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
            fair_through_the_core {
                C18 waiters_of_two_clients_enter_in_the_order_in_which_they_came
                C19 a_waiter_keeps_its_place_for_as_long_as_it_waits
                C20 a_fair_waiter_that_is_dropped_leaves_no_place
                C20 a_fair_waiter_that_times_out_leaves_no_place
                C5 fair_holds_nest
            }
        }
    };
}

/// Writes the tests that prove a backend: one `#[test]` a case, in a module a subject.
///
/// `conformance_tests!(MyFixture)` is for stores that live in real time. `conformance_tests!(MyFixture, paused)` is for those that
/// live on tokio's clock: it is paused, and no test waits.
///
/// The tests bring their own runtime, so that the crate they stand in needs no dependency but this kit. Use the macro
/// once in a module; for a second fixture, make another module.
///
/// # Examples
/// See [`Fixture`].
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:ty) => {
        type FixtureUnderTest = $fixture;
        $crate::for_each_case!([$crate::conformance_tests_of], [run_case]);
    };
    ($fixture:ty, paused) => {
        type FixtureUnderTest = $fixture;
        $crate::for_each_case!([$crate::conformance_tests_of], [run_case_paused]);
    };
}

/// Part of [`conformance_tests!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests_of {
    ([$run:ident] $($subject:ident { $($clause:ident $case:ident)* })*) => {
        $(mod $subject {
            $(#[test]
            fn $case() {
                $crate::$run::<super::FixtureUnderTest>($crate::conformance::$subject::$case);
            })*
        })*
    };
}

/// One case, as a value.
pub struct Case<F> {
    subject: &'static str,
    name: &'static str,
    clause: &'static str,
    run: for<'a> fn(&'a F) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

impl<F: Fixture> Case<F> {
    /// The module that it stands in.
    #[must_use]
    pub fn subject(&self) -> &'static str {
        self.subject
    }

    /// What it shows.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The clause of the contract that it shows first of all: `C1` to `C37`.
    #[must_use]
    pub fn clause(&self) -> &'static str {
        self.clause
    }

    /// Runs it. It panics if the backend breaks the clause.
    pub fn run<'a>(&self, fixture: &'a F) -> impl Future<Output = ()> + use<'a, F> {
        (self.run)(fixture)
    }
}

impl<F> fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}::{}", self.clause, self.subject, self.name)
    }
}

macro_rules! values {
    ([] $($subject:ident { $($clause:ident $case:ident)* })*) => {
        vec![$($(Case {
            subject: stringify!($subject),
            name: stringify!($case),
            clause: stringify!($clause),
            run: |fixture| Box::pin($crate::conformance::$subject::$case(fixture)),
        }),*),*]
    };
}

/// All cases, for those who run them otherwise than with [`conformance_tests!`](crate::conformance_tests).
///
/// # Examples
/// ```
/// # use lockcore::LockName;
/// # use lockcore_memory::MemoryBackend;
/// # use lockcore_testkit::Fixture;
/// # struct MemoryFixture(MemoryBackend);
/// # impl Fixture for MemoryFixture {
/// #     type Backend = MemoryBackend;
/// #     async fn set_up() -> Self { Self(MemoryBackend::new()) }
/// #     async fn client(&self) -> MemoryBackend { self.0.clone() }
/// #     async fn left_behind(&self, _: &LockName) -> Vec<String> { Vec::new() }
/// # }
/// use lockcore_testkit::{cases, run_case_paused};
///
/// for case in cases::<MemoryFixture>().into_iter().filter(|case| case.clause() == "C4") {
///     println!("{case:?}");
///     run_case_paused(async |fixture| case.run(fixture).await);
/// }
/// ```
#[must_use]
pub fn cases<F: Fixture>() -> Vec<Case<F>> {
    crate::for_each_case!([values], [])
}
