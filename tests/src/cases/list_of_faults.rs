//! The lists of cases in which connections break or the store crashes.

/// Calls the macro `$callback` with the list of cases that break connections, in the form of
/// [`for_each_case!`](crate::for_each_case), but without subjects.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_interruption {
    ([$($callback:tt)+], [$($through:tt)*]) => {
        $($callback)+! {
            [$($through)*]
            [exclusive] {
                C8 a_hold_outlives_an_interruption
                C47 a_request_fails_for_a_while_and_says_what_is_known
                C17 an_undone_acquire_stays_undone
                C12 who_listens_hears_of_an_interruption
                C12 who_listens_hears_what_comes_after
            }
        }
    };
}

/// As [`for_each_interruption!`](crate::for_each_interruption), for cases with late requests.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_late_request {
    ([$($callback:tt)+], [$($through:tt)*]) => {
        $($callback)+! {
            [$($through)*]
            [exclusive] {
                C17 an_acquire_that_arrives_after_its_undo_has_no_effect
            }
        }
    };
}

/// As [`for_each_interruption!`](crate::for_each_interruption), for cases with crashes.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_crash {
    ([$($callback:tt)+], [$($through:tt)*]) => {
        $($callback)+! {
            [$($through)*]
            [exclusive] {
                C46 holds_of_every_mode_outlast_a_crash
                C46 a_renewal_outlasts_a_crash
                C46 the_growth_of_a_hold_outlasts_a_crash
                C46 tokens_rise_across_a_crash
                C46 a_lease_ends_in_spite_of_a_crash
            } [direct_grant] {
                C46 a_direct_grant_outlasts_a_crash
            } [proposed_tokens] {
                C46 a_raised_token_outlasts_a_crash
            } [permits] {
                C46 a_number_of_permits_outlasts_a_crash
            } [latches] {
                C46 the_count_of_a_latch_outlasts_a_crash
            }
        }
    };
}

/// Helper of the macros for tests with faults: the cases of `$module` that apply to a backend with
/// the parts `$parts`.
#[doc(hidden)]
#[macro_export]
macro_rules! tests_with_faults {
    (
        [$module:ident $fixture:ty, $parts:tt]
        $([$($needs:ident)+] { $($clause:ident $case:ident)* })+
    ) => {
        $($crate::if_met!([$($needs)+] $parts {
            $(#[test]
            fn $case() {
                $crate::run_case::<$fixture>($crate::$module::$case);
            })*
        });)+
    };
}
