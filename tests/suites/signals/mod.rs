//! Latches and conditions through the core, over stores that fail on demand: on memory with a
//! paused clock, and on Redis.

mod bench;
pub(crate) mod condition_faults;
pub(crate) mod conditions;
pub(crate) mod latch_faults;
pub(crate) mod latches;

/// Generates one test per scenario, in one module per subject.
macro_rules! signal_tests {
    ($fixture:ty, $run:ident) => {
        type FixtureUnderTest = $fixture;
        $crate::signals::signal_tests! { @ $run
            latches {
                fifty_waiters_of_five_clients_go_on_within_50_ms_of_the_last_count
                an_open_latch_keeps_nobody_waiting
                a_latch_is_set_once
                what_cannot_be_a_latch_is_refused_before_any_call
                a_wait_ends_in_time_or_when_an_operator_opens
                a_latch_of_a_closed_client_keeps_nobody_waiting
                a_wait_that_is_dropped_leaves_nothing
            }
            latch_faults {
                whatever_happens_to_a_count_it_counts_once
                whatever_happens_to_the_setting_it_is_set_once
                a_dropped_count_counts_once_at_most
                waiters_bear_failures
                an_opening_during_an_interruption_is_heard
            }
            conditions {
                a_notification_ends_one_wait_and_everybodys_ends_all
                no_notification_is_lost_between_release_and_wait
                a_bounded_buffer_passes_everything_on
                those_who_have_waited_longest_are_notified_first
                a_wait_ends_in_time
                whoever_waits_has_the_lock_again_as_it_had_it
                conditions_do_not_touch_each_other
                guards_of_something_else_are_refused
                a_hold_that_was_lost_neither_waits_nor_notifies
                a_long_wait_keeps_its_place
                a_waiter_that_has_died_is_skipped
                closing_a_client_ends_its_waits_and_leaves_nothing
            }
            condition_faults {
                a_cancelled_waiter_passes_its_notification_on
                a_wait_that_is_dropped_leaves_nothing_and_wakes_nobody
                a_wait_that_ran_out_of_time_and_is_dropped_wakes_nobody
                whatever_happens_to_a_request_the_wait_ends
                a_notification_during_an_interruption_is_heard
                who_cannot_get_the_lock_back_passes_its_notification_on
            }
        }
    };
    (@ $run:ident $($subject:ident { $($scenario:ident)* })*) => {
        $(mod $subject {
            $(#[test]
            fn $scenario() {
                lockcore_testkit::$run::<super::FixtureUnderTest>($crate::signals::$subject::$scenario);
            })*
        })*
    };
}

pub(crate) use signal_tests;
