//! The cases that catch each flaw of latches and conditions.

use lockcore_testkit::Op;

use super::{caught::Flaws, flaw::Flaw};

/// The flaws for each clause.
pub(crate) const SIGNALS: &[(&str, Flaws)] = &[
    ("C30", C30),
    ("C31", C31),
    ("C32", C32),
    ("C33", C33),
    ("C34", C34),
    ("C35", C35),
    ("C36", C36),
];

const C30: Flaws = &[
    (
        Flaw::SetsAClosedLatch,
        &[
            "of_simultaneous_counts_one_is_set",
            "a_latch_that_has_a_count_keeps_it",
            "a_count_that_was_refused_stays_refused",
        ],
    ),
    (
        Flaw::SetsAHigherCount,
        &["a_latch_that_has_a_count_keeps_it", "a_count_that_was_refused_stays_refused"],
    ),
    (Flaw::LooksThenSets, &["of_simultaneous_counts_one_is_set"]),
    (
        Flaw::SaysThatItWasSet,
        &[
            "of_simultaneous_counts_one_is_set",
            "a_latch_that_has_a_count_keeps_it",
            "a_count_that_was_refused_stays_refused",
        ],
    ),
    (
        Flaw::RefusesARepeatedSet,
        &[
            "a_count_that_is_set_twice_is_set_once",
            "a_count_whose_setting_was_dropped_can_be_set",
            "a_repeated_count_does_not_close_an_opened_latch",
        ],
    ),
    (
        Flaw::SetsAgainWhenRepeated,
        &[
            "a_count_that_is_set_twice_is_set_once",
            "a_count_whose_setting_was_dropped_can_be_set",
            "a_repeated_count_does_not_close_an_opened_latch",
        ],
    ),
    (Flaw::ForgetsARefusedSet, &["a_count_that_was_refused_stays_refused"]),
    (
        Flaw::IsSetOnceForAll,
        &[
            "a_latch_can_be_set_again_once_it_is_open",
            "a_repeated_count_does_not_close_an_opened_latch",
        ],
    ),
    (Flaw::CutsCountsToSixteenBits, &["the_greatest_count_is_kept"]),
    (Flaw::OneLatchForAllNames, &["every_name_has_a_latch_of_its_own"]),
    (
        Flaw::KnowsIdsOfItsOwnClientOnly,
        &[
            "a_count_that_is_set_twice_is_set_once",
            "a_repeated_count_does_not_close_an_opened_latch",
            "a_count_that_was_refused_stays_refused",
        ],
    ),
    (Flaw::IgnoresCase, &["every_name_has_a_latch_of_its_own"]),
    (Flaw::IgnoresSpaceAround, &["every_name_has_a_latch_of_its_own"]),
    (Flaw::IgnoresWhatIsInBraces, &["every_name_has_a_latch_of_its_own"]),
    (Flaw::CutsLongNames, &["every_name_has_a_latch_of_its_own"]),
    (Flaw::StaysBusyWhenDropped(Op::SetCount), &["a_count_whose_setting_was_dropped_can_be_set"]),
];

const C31: Flaws = &[
    (
        Flaw::CountsWhatIsRepeated,
        &[
            "a_count_down_that_arrives_twice_counts_once",
            "a_count_down_that_arrives_by_two_ways_counts_once",
            "a_repetition_does_not_count_down_the_next_count",
        ],
    ),
    (
        Flaw::CountsByTwo,
        &[
            "each_count_lowers_what_is_left_by_one",
            "a_count_down_that_arrives_twice_counts_once",
            "simultaneous_counts_all_count",
        ],
    ),
    (
        Flaw::CountsBelowZero,
        &["an_open_latch_is_not_counted_down", "opening_a_latch_ends_its_count"],
    ),
    (
        Flaw::CountingClosesAnOpenLatch,
        &["an_open_latch_is_not_counted_down", "opening_a_latch_ends_its_count"],
    ),
    (
        Flaw::OpensAtOne,
        &[
            "each_count_lowers_what_is_left_by_one",
            "simultaneous_counts_all_count",
            "an_open_latch_is_not_counted_down",
            "the_last_count_opens_the_latch",
        ],
    ),
    (
        Flaw::NeverOpensAtZero,
        &[
            "a_repetition_does_not_count_down_the_next_count",
            "an_open_latch_is_not_counted_down",
            "opening_a_latch_ends_its_count",
        ],
    ),
    (
        Flaw::LooksThenCounts,
        &["simultaneous_counts_all_count", "a_count_down_that_arrives_by_two_ways_counts_once"],
    ),
    (Flaw::LooksForTheIdThenCounts, &["a_count_down_that_arrives_by_two_ways_counts_once"]),
    (Flaw::KnowsTheIdThenCounts, &["a_dropped_count_down_can_be_repeated"]),
    (
        Flaw::AnswersTheFormerCount,
        &[
            "each_count_lowers_what_is_left_by_one",
            "a_count_down_that_arrives_twice_counts_once",
            "simultaneous_counts_all_count",
        ],
    ),
    (Flaw::OpeningForgetsTheIds, &["a_repetition_does_not_count_down_the_next_count"]),
    (
        Flaw::OpenCountsDown,
        &[
            "a_dropped_opening_can_be_repeated",
            "a_repetition_does_not_count_down_the_next_count",
            "opening_a_latch_ends_its_count",
        ],
    ),
    (Flaw::OpenAnswersNothing, &["opening_a_latch_ends_its_count"]),
    (
        Flaw::LookingCounts,
        &[
            "looking_at_a_latch_changes_nothing",
            "a_dropped_look_at_a_latch_changes_nothing",
            "each_count_lowers_what_is_left_by_one",
            "an_open_latch_takes_a_count",
        ],
    ),
    (
        Flaw::KeepsOpenLatches,
        &["a_dropped_opening_can_be_repeated", "nothing_is_left_of_an_open_latch"],
    ),
    (Flaw::KeepsLatchesAskedFor, &["nothing_is_left_of_an_open_latch"]),
    (
        Flaw::KeepsTheIdsOfCounts,
        &["a_dropped_opening_can_be_repeated", "nothing_is_left_of_an_open_latch"],
    ),
    (
        Flaw::StaysBusyWhenDropped(Op::CountDown),
        &["simultaneous_counts_all_count", "a_dropped_count_down_can_be_repeated"],
    ),
    (Flaw::StaysBusyWhenDropped(Op::Count), &["a_dropped_look_at_a_latch_changes_nothing"]),
    (Flaw::StaysBusyWhenDropped(Op::Open), &["a_dropped_opening_can_be_repeated"]),
];

const C32: Flaws = &[
    (
        Flaw::LastCountWakesNobody,
        &[
            "the_last_count_wakes_one_that_sleeps",
            "an_opening_between_two_waits_is_kept",
            "a_dropped_wait_takes_no_opening_with_it",
        ],
    ),
    (Flaw::OpenWakesNobody, &["the_opening_of_a_latch_wakes", "every_opening_wakes"]),
    (
        Flaw::WakesItsOwnClientOnly,
        &[
            "the_last_count_wakes_one_that_sleeps",
            "the_opening_of_a_latch_wakes",
            "an_opening_between_two_waits_is_kept",
        ],
    ),
    (
        Flaw::WakesOneSubscriberOnly,
        &[
            "the_opening_of_a_latch_wakes",
            "the_last_count_wakes_the_subscribers_of_every_client",
            "who_subscribes_and_then_looks_misses_no_opening",
        ],
    ),
    (
        Flaw::WakesOnce,
        &[
            "every_opening_wakes",
            "a_subscription_to_a_latch_after_another_is_in_effect",
            "who_subscribes_and_then_looks_misses_no_opening",
        ],
    ),
    (
        Flaw::WakesOnlyThoseAsleep,
        &[
            "the_opening_of_a_latch_wakes",
            "an_opening_between_two_waits_is_kept",
            "a_dropped_wait_takes_no_opening_with_it",
        ],
    ),
    (Flaw::DroppedWaitTakesTheWakeup, &["a_dropped_wait_takes_no_opening_with_it"]),
    (Flaw::LeavingSilencesTheOthers, &["those_who_leave_a_latch_do_not_silence_the_others"]),
    (
        Flaw::SubscriptionBeginsWithTheFirstWait,
        &[
            "a_subscription_to_a_latch_after_another_is_in_effect",
            "nothing_is_left_of_a_dropped_subscription_to_a_latch",
            "a_dropped_subscribe_leaves_no_subscription_to_a_latch",
        ],
    ),
    (
        Flaw::KeepsSubscriptions,
        &[
            "nothing_is_left_of_a_dropped_subscription_to_a_latch",
            "a_dropped_subscribe_leaves_no_subscription_to_a_latch",
        ],
    ),
    (Flaw::DroppedSubscribeStays, &["a_dropped_subscribe_leaves_no_subscription_to_a_latch"]),
    (
        Flaw::StaysBusyWhenDropped(Op::Subscribe),
        &[
            "a_dropped_subscribe_leaves_no_subscription_to_a_latch",
            "who_subscribes_and_then_looks_misses_no_opening",
        ],
    ),
];

const C33: Flaws = &[
    (
        Flaw::NotifiesTheLast,
        &[
            "those_who_wait_are_notified_in_the_order_in_which_they_came",
            "who_was_notified_can_join_again",
            "simultaneous_notifications_are_for_different_waiters",
        ],
    ),
    (
        Flaw::NotifiesOneOfMany,
        &[
            "simultaneous_waiters_all_get_a_place",
            "a_notification_of_nobody_is_kept_for_nobody",
            "everybody_can_be_notified",
            "several_can_be_notified_at_once",
        ],
    ),
    (
        Flaw::NotifiesEverybody,
        &[
            "a_notification_of_nobody_is_kept_for_nobody",
            "those_who_wait_are_notified_in_the_order_in_which_they_came",
            "who_was_notified_can_join_again",
        ],
    ),
    (
        Flaw::TakesTheGreatestCountForNone,
        &[
            "simultaneous_waiters_all_get_a_place",
            "a_notification_of_nobody_is_kept_for_nobody",
            "everybody_can_be_notified",
        ],
    ),
    (
        Flaw::NotifiedWaitersStayIn,
        &[
            "those_who_wait_are_notified_in_the_order_in_which_they_came",
            "everybody_can_be_notified",
            "who_was_notified_can_join_again",
        ],
    ),
    (
        Flaw::AnswersHowManyWereWanted,
        &[
            "simultaneous_waiters_all_get_a_place",
            "a_notification_of_nobody_is_kept_for_nobody",
            "those_who_wait_are_notified_in_the_order_in_which_they_came",
        ],
    ),
    (Flaw::KeepsNotifications, &["a_notification_of_nobody_is_kept_for_nobody"]),
    (Flaw::JoiningAgainGoesToTheEnd, &["joining_again_keeps_the_place_in_the_queue"]),
    (Flaw::JoiningAgainTakesASecondPlace, &["joining_again_keeps_the_place_in_the_queue"]),
    (Flaw::StayingGoesToTheEnd, &["joining_again_keeps_the_place_in_the_queue"]),
    (Flaw::NotifiesOnceAWaiter, &["who_was_notified_can_join_again"]),
    (Flaw::LooksThenNotifies, &["simultaneous_notifications_are_for_different_waiters"]),
    (Flaw::LooksThenJoins, &["simultaneous_waiters_all_get_a_place"]),
    (Flaw::NotifyingFreesTheLock, &["a_condition_and_its_lock_do_not_touch_each_other"]),
    (Flaw::ConditionsEndWithTheHold, &["a_condition_and_its_lock_do_not_touch_each_other"]),
    (Flaw::OneConditionALock, &["every_condition_has_a_queue_of_its_own"]),
    (Flaw::OneConditionAName, &["every_condition_has_a_queue_of_its_own"]),
    (Flaw::PutsAColonBetweenNames, &["every_condition_has_a_queue_of_its_own"]),
    (Flaw::IgnoresCase, &["every_condition_has_a_queue_of_its_own"]),
    (Flaw::IgnoresWhatIsInBraces, &["every_condition_has_a_queue_of_its_own"]),
    (Flaw::StaysBusyWhenDropped(Op::Notify), &["a_dropped_notification_is_one_or_none"]),
];

const C34: Flaws = &[
    (
        Flaw::WaitersNeverLapse,
        &[
            "a_waiter_is_kept_for_its_time",
            "every_waiter_has_a_time_of_its_own",
            "nothing_is_left_of_waiters_that_lapsed",
        ],
    ),
    (Flaw::WaitersLapseEarly, &["a_waiter_is_kept_for_its_time"]),
    (
        Flaw::WaitersEndTogether,
        &[
            "every_waiter_has_a_time_of_its_own",
            "nothing_is_left_of_waiters_that_lapsed",
            "staying_lengthens_the_time",
        ],
    ),
    (
        Flaw::JoiningAgainIsIgnored,
        &["staying_lengthens_the_time", "a_shorter_time_replaces_a_longer_one"],
    ),
    (
        Flaw::StayingDoesNothing,
        &[
            "nothing_is_left_of_waiters_that_lapsed",
            "staying_lengthens_the_time",
            "a_shorter_time_replaces_a_longer_one",
        ],
    ),
    (
        Flaw::StayingOnlyLengthens,
        &["nothing_is_left_of_waiters_that_lapsed", "a_shorter_time_replaces_a_longer_one"],
    ),
    (
        Flaw::StayingAddsUp,
        &["nothing_is_left_of_waiters_that_lapsed", "a_shorter_time_replaces_a_longer_one"],
    ),
    (
        Flaw::StayingMakesAPlace,
        &[
            "who_was_notified_cannot_stay",
            "every_waiter_has_a_time_of_its_own",
            "a_waiter_is_forgotten_after_its_time",
        ],
    ),
    (
        Flaw::StayingIsAlwaysPossible,
        &[
            "who_was_notified_cannot_stay",
            "every_waiter_has_a_time_of_its_own",
            "a_waiter_is_forgotten_after_its_time",
        ],
    ),
    (
        Flaw::LapsedWaitersStay,
        &[
            "every_waiter_has_a_time_of_its_own",
            "a_waiter_is_forgotten_after_its_time",
            "who_joins_again_too_late_comes_last",
        ],
    ),
    (
        Flaw::LapsedWaitersAreNotified,
        &[
            "a_waiter_is_forgotten_after_its_time",
            "staying_lengthens_the_time",
            "those_who_have_lapsed_are_passed_over",
        ],
    ),
    (
        Flaw::KeepsLapsedWaiters,
        &["nothing_is_left_of_waiters_that_lapsed", "who_joins_again_too_late_comes_last"],
    ),
    (Flaw::KeepsConditions, &["nothing_is_left_of_a_condition_without_waiters"]),
    (Flaw::StaysBusyWhenDropped(Op::Stay), &["a_dropped_request_to_stay_leaves_the_place"]),
];

const C35: Flaws = &[
    (
        Flaw::LeavingKeepsThePlace,
        &[
            "who_leaves_in_time_passes_nothing_on",
            "a_dropped_join_can_be_undone",
            "who_has_left_a_condition_comes_last",
        ],
    ),
    (
        Flaw::LeavingEmptiesTheQueue,
        &[
            "who_leaves_in_time_passes_nothing_on",
            "who_was_notified_can_keep_it",
            "who_has_left_a_condition_comes_last",
        ],
    ),
    (
        Flaw::LeavingSaysThatItWasIn,
        &[
            "what_is_passed_on_to_nobody_is_gone",
            "who_was_notified_can_keep_it",
            "who_was_notified_can_pass_it_on",
        ],
    ),
    (
        Flaw::LeavingSaysThatItWasOut,
        &[
            "who_leaves_in_time_passes_nothing_on",
            "who_has_left_a_condition_comes_last",
            "who_leaves_a_condition_is_out",
        ],
    ),
    (
        Flaw::LeavingPassesOnAPlace,
        &[
            "who_leaves_in_time_passes_nothing_on",
            "who_has_left_a_condition_comes_last",
            "a_dropped_leave_can_be_repeated",
        ],
    ),
    (
        Flaw::LeavingPassesOnUnasked,
        &[
            "who_was_notified_can_keep_it",
            "a_dropped_leave_can_be_repeated",
            "who_leaves_a_condition_is_out",
        ],
    ),
    (
        Flaw::LeavingPassesNothingOn,
        &["who_was_notified_can_pass_it_on", "what_is_passed_on_goes_past_those_who_have_lapsed"],
    ),
    (Flaw::PassesOnToEverybody, &["who_was_notified_can_pass_it_on"]),
    (Flaw::PassesOnToTheLast, &["who_was_notified_can_pass_it_on"]),
    (Flaw::KeepsWhatIsPassedOnToNobody, &["what_is_passed_on_to_nobody_is_gone"]),
    (Flaw::DroppedJoinArrivesLate, &["a_dropped_join_can_be_undone"]),
    (Flaw::StaysBusyWhenDropped(Op::Join), &["a_dropped_join_can_be_undone"]),
    (Flaw::StaysBusyWhenDropped(Op::Leave), &["a_dropped_leave_can_be_repeated"]),
];

const C36: Flaws = &[
    (
        Flaw::NotificationWakesNobody,
        &[
            "a_notification_between_two_waits_is_kept",
            "every_subscription_of_a_waiter_is_woken",
            "a_dropped_wait_takes_no_notification_with_it",
            "a_notification_wakes_its_waiter",
            "a_notification_wakes_one_that_sleeps",
        ],
    ),
    (
        Flaw::NotificationWakesTheFirst,
        &[
            "everybody_who_is_notified_is_woken",
            "who_subscribes_and_then_asks_misses_no_notification",
        ],
    ),
    (Flaw::PassingOnWakesNobody, &["a_notification_that_is_passed_on_wakes"]),
    (
        Flaw::WakesItsOwnClientOnly,
        &[
            "a_notification_between_two_waits_is_kept",
            "every_subscription_of_a_waiter_is_woken",
            "a_dropped_wait_takes_no_notification_with_it",
        ],
    ),
    (Flaw::WakesOneSubscriberOnly, &["every_subscription_of_a_waiter_is_woken"]),
    (
        Flaw::WakesOnce,
        &["every_notification_wakes", "a_subscription_of_a_waiter_after_another_is_in_effect"],
    ),
    (
        Flaw::WakesOnlyThoseAsleep,
        &[
            "a_notification_between_two_waits_is_kept",
            "every_subscription_of_a_waiter_is_woken",
            "a_dropped_wait_takes_no_notification_with_it",
        ],
    ),
    (Flaw::DroppedWaitTakesTheWakeup, &["a_dropped_wait_takes_no_notification_with_it"]),
    (Flaw::LeavingSilencesTheOthers, &["those_who_stop_listening_do_not_silence_the_others"]),
    (
        Flaw::SubscriptionBeginsWithTheFirstWait,
        &[
            "a_subscription_of_a_waiter_after_another_is_in_effect",
            "nothing_is_left_of_a_dropped_subscription_of_a_waiter",
            "a_dropped_subscribe_leaves_no_subscription_of_a_waiter",
        ],
    ),
    (
        Flaw::KeepsSubscriptions,
        &[
            "nothing_is_left_of_a_dropped_subscription_of_a_waiter",
            "a_dropped_subscribe_leaves_no_subscription_of_a_waiter",
        ],
    ),
    (Flaw::DroppedSubscribeStays, &["a_dropped_subscribe_leaves_no_subscription_of_a_waiter"]),
    (
        Flaw::StaysBusyWhenDropped(Op::Subscribe),
        &[
            "a_dropped_subscribe_leaves_no_subscription_of_a_waiter",
            "who_subscribes_and_then_asks_misses_no_notification",
        ],
    ),
];
