//! The seeded bugs.

use super::{
    Bug, bug, lib,
    operators::{core, lua, redis},
    redis_lib, redis_suites, suites,
};

/// All of them. The bugs of one crate stand together, so that little is built between them.
pub(super) fn all() -> Vec<Bug> {
    let mut all = leases();
    all.extend(waiting());
    all.extend(handing_over());
    all.extend(owners());
    all.extend(ending());
    all.extend(messages());
    all.extend(scripts());
    all.extend(tokens());
    all.extend(kinds_of_locks());
    all
}

/// Leases, their renewal and their loss.
fn leases() -> Vec<Bug> {
    vec![
        bug(
            "the deadline leaves no margin for clocks that differ",
            [core("deadline").body().becomes("sent.after(lease)")],
            lib("the_deadline_lies_before_the_end_of_the_lease"),
        ),
        bug(
            "the deadline is counted from the answer",
            [core("Contender::ask").argument("granted", "sent").becomes("now")],
            suites("the_deadline_is_counted_from_before_the_request_was_sent"),
        ),
        bug(
            "a late reply shortens the deadline",
            [core("HoldState::extended").value("self.deadline").becomes("deadline(sent, lease)")],
            lib("a_reply_never_shortens_the_deadline"),
        ),
        bug(
            "a passed deadline is no loss",
            [core("HoldState::settle").operand("self.deadline").never()],
            lib("a_passed_deadline_is_a_loss_for_everybody"),
        ),
        bug(
            "a grant that comes after its lease is entered",
            [core("Contender::granted").condition("deadline").never()],
            suites("an_attempt_whose_grant_comes_after_the_lease"),
        ),
        bug(
            "a read beside the own write hold is entered after its lease",
            [core("Acquisition::ask_within").condition("deadline").never()],
            suites("a_read_beside_the_own_write_hold_whose_grant_comes_after_its_lease"),
        ),
        bug(
            "the watchdog renews nothing but nested holds",
            [
                core("HoldState::renewal_due").operand("renewed").becomes("self.renewed > 1"),
                core("HoldState::next_due").condition("renewed").becomes("self.renewed > 1"),
            ],
            suites("permits_are_renewed"),
        ),
        bug(
            "a failed renewal is not retried before the deadline",
            [core("HoldState::renewal_failed").value("self.renew_at").becomes("self.deadline")],
            suites("renewals_that_fail_are_retried"),
        ),
        bug(
            "a renewal shortens the fixed lease of a nested guard",
            [core("HoldState::count_in").arm("Fixed").becomes("")],
            lib("renewals_keep_what_a_fixed_lease_was_promised"),
        ),
        bug(
            "a hold that the backend does not know any more is not lost",
            [core("Client::renew").arm("NotHeld").becomes("")],
            suites("a_renewal_that_finds_nothing_ends_the_hold_at_once"),
        ),
        bug(
            "a loss is not reported to the watchers of a hold",
            [core("Client::report_loss").statement("tell").removed()],
            suites("a_renewal_that_finds_nothing_ends_the_hold_at_once"),
        ),
        bug(
            "`run` does not check the deadline before its body goes on",
            [core("Held::ended").value("is_live").becomes("true")],
            suites("run_does_not_go_on_after_a_suspension"),
        ),
    ]
}

/// Waiters.
fn waiting() -> Vec<Bug> {
    vec![
        bug(
            "a waiter has no timer for the end of the lease",
            [core("Contender::refused").value("end").becomes("None::<Moment>")],
            suites("the_end_of_a_lease_lets_the_next_one_in"),
        ),
        bug(
            "a refusal that is older than the news is believed",
            [core("Refusal::note").condition("news").always()],
            suites("a_refusal_that_is_older_than_a_release"),
        ),
        bug(
            "a cancelled waiter does not wake the next one",
            [core("Lane::leave").statement("wake_head").removed()],
            suites("hand_over::a_cancelled_heir_is_passed_over"),
        ),
        bug(
            "a grant that is told too late is believed",
            [core("Lane::told").operand("offer.lasts").always()],
            suites("direct_grant::a_message_that_comes_too_late"),
        ),
        bug(
            "a grant that was told is believed for a whole lease",
            [core("HoldState::granted")
                .arm("Some")
                .becomes("(deadline(sent, lease.duration()), offer.sent, sent.after(SETTLES))")],
            suites("direct_grant::the_next_one_enters_without_asking_again"),
        ),
        bug(
            "a waiter expects a refusal although it has heard something",
            [core("Refusal::outdate").statement("believe_until").becomes("self.until = None;")],
            suites("regressions::a_waiter_tells_what_it_knows"),
        ),
        bug(
            "a release does not wake the waiters that expect it",
            [core("Lane::end_release").statement("news").removed()],
            suites("an_attempt_during_a_release_of_its_client"),
        ),
        bug(
            "a waiter does not wait for a release of its own client",
            [core("Lane::expected_release").body().becomes("let _ = (ticket, now); None")],
            suites("who_drops_permits_can_have_them_again_at_once"),
        ),
        bug(
            "a temporary failure is not retried",
            [core("Contender::failed").condition("retry_for").always()],
            suites("an_acquisition_bears_failures_for_as_long_as_it_was_told"),
        ),
        bug(
            "readers do not follow a reader of their client",
            [core("Lane::ask").statement("push").removed()],
            suites("readers_follow_each_other"),
        ),
        bug(
            "the remains of a cut-off request are not cleared away",
            [core("Contender::failed").condition("is_outcome_unknown").never()],
            suites("an_acquisition_whose_reply_was_lost_leaves_no_hold"),
        ),
        bug(
            "a request that nobody polls is not undone",
            [core("Lane::abandon_unpolled").statement("push").removed()],
            suites("a_request_that_nobody_polls"),
        ),
        bug(
            "a grant is entered although it was undone meanwhile",
            [core("Lane::granted").statement("asked").becomes("let _ = self.asked(ticket, fx);")],
            suites("a_request_that_nobody_polls"),
        ),
        bug(
            "a notified waiter that is dropped does not pass the notification on",
            [core("Condition::wait_until").statement("acquire_at").swapped_with_next()],
            suites("a_cancelled_waiter_passes_its_notification_on"),
        ),
        bug(
            "a waiter joins its condition after the release of the lock",
            [
                core("Condition::wait_until").statement("join").removed(),
                core("Condition::wait_until")
                    .statement("release")
                    .becomes("{} waiting.join().await.map_err(WaitError::without_guard)?;"),
            ],
            suites("signals::conditions"),
        ),
    ]
}

/// Holds that tasks of one client hand over to each other.
fn handing_over() -> Vec<Bug> {
    vec![
        bug(
            "a hold is handed over although the time for it is over",
            [core("Contender::granted").argument("after", "turn").becomes("100 * {}")],
            suites("hand_over::a_hold_is_given_back_after_its_time"),
        ),
        bug(
            "the lease of a hold that is taken over begins anew",
            [core("Lane::take_over")
                .argument("granted", "grant")
                .becomes("&Grant { sent: now, ..*grant }")],
            suites("hand_over::a_hold_that_was_handed_on_is_lost_with_the_lease_of_the_grant"),
        ),
        bug(
            "a hold that is taken over keeps its token",
            [core("Lane::take_over").argument("plus", "1").becomes("0")],
            suites("hand_over::tasks_hand_a_hold_on"),
        ),
        bug(
            "a hold is handed over more often than it has tokens",
            [core("HoldState::granted")
                .argument("filter", "|_| token < last_token")
                .becomes("|_| true")],
            suites("hand_over::a_grant_is_handed_on_as_often_as_it_has_tokens"),
        ),
        bug(
            "a parked hold is not released when its time is over",
            [core("Lane::due").statement("unpark_if_unclaimed").removed()],
            suites("hand_over::an_heir_that_is_not_polled"),
        ),
        bug(
            "a parked hold is not released when the head leaves",
            [core("Lane::leave").statement("unpark_if_unclaimed").removed()],
            suites("hand_over::a_hold_without_an_heir_is_given_back_at_once"),
        ),
        bug(
            "a waiter takes over a parked hold that was freed by force",
            [core("Client::forced").statement("forget_parked").removed()],
            suites("hand_over::a_forced_release_ends_what_is_on_its_way"),
        ),
        bug(
            "a token that somebody knows is given to the next hold",
            [core("Held::depart").value("knows_token").becomes("false")],
            suites("hand_over::tasks_hand_a_hold_on"),
        ),
        bug(
            "a kept hold is never given back",
            [core("HoldState::is_kept").operand("now < until").always()],
            suites("linger::a_kept_lock_is_given_back_at_the_end_of_its_time"),
        ),
        bug(
            "a kept hold is not given back when another client wants it",
            [core("Lane::wanted").statement("unpark_if_unclaimed").removed()],
            suites("linger::another_client_gets_it_at_once"),
        ),
        bug(
            "a hold that another client wants is kept all the same",
            [core("Lane::park").operand("is_wanted").always()],
            suites("linger::what_others_asked_for_while_it_was_held"),
        ),
        bug(
            "a client does not live as long as the hold that it keeps",
            [core("Held::leave_parked").statement("listen_for_demand").removed()],
            suites("linger::it_is_given_back_though_all_handles_are_gone"),
        ),
        bug(
            "a release that has to be confirmed keeps the lock",
            [core("Lane::park").operand("Keeping::Never").never()],
            suites("linger::release_now_confirms"),
        ),
        bug(
            "a client never leaves the lock to other clients",
            [core("Turns::released").argument("after", "COURTESY").becomes("Duration::ZERO")],
            suites("hand_over::other_clients_get_their_turn"),
        ),
        bug(
            "a grant that a failover lost is not undone",
            [core("Lane::gone").condition("Fair").never()],
            suites("one_whose_grant_was_forgotten"),
        ),
    ]
}

/// Owners and nested holds.
fn owners() -> Vec<Bug> {
    vec![
        bug(
            "a stranger nests in the hold of another owner",
            [
                core("Lane::arrive").operand("!asker.has_fresh_owner").always(),
                core("Lane::enter").operand("hold.owner == owner").always(),
            ],
            redis_suites("strangers_are_excluded_and_run_nests"),
        ),
        bug(
            "an owner nests across kinds",
            [core("Mode::kind").arm("Self::Write").becomes("Kind::Lock")],
            suites("one_name_is_not_two_kinds_of_lock"),
        ),
        bug(
            "two requests of one owner are made at once",
            [core("Lane::ask").condition("others.any").never()],
            suites("two_acquisitions_of_one_owner_at_once"),
        ),
        bug(
            "a nested acquisition that failed stays in the count of the backend",
            [core("HoldState::count_to_store").body().becomes("None")],
            suites("a_dropped_nested_growth_leaves_the_count_right"),
        ),
    ]
}

/// Releases and the end of a client.
fn ending() -> Vec<Bug> {
    vec![
        bug(
            "a dropped guard releases nothing",
            [core("Drop for Held::drop").statement("submit").removed()],
            suites("close_waits_for_the_guards_that_were_dropped_before"),
        ),
        bug(
            "a failed release is not retried in the background",
            [core("ReleaseWork::carry_out").operand("is_retryable").never()],
            suites("a_release_is_tried_for_as_long_as_the_backend_may_have_the_hold"),
        ),
        bug(
            "`close()` forgets parked holds",
            [core("Lane::close")
                .value("may_be_held")
                .becomes("matches!(state.phase(), Phase::Lost(LossReason::LeaseEnded))")],
            suites("hand_over::closing_gives_back_what_is_on_its_way"),
        ),
        bug(
            "`close()` does not wait for the undoing of acquisitions",
            [core("Client::close").statement("none").which(1, 3).removed()],
            suites("close_waits_until_the_waiters_that_it_cuts_off_have_left_the_queue"),
        ),
    ]
}

/// Connections to Redis, and messages.
fn messages() -> Vec<Bug> {
    vec![
        bug(
            "waiters are not woken when the connection for messages is back",
            [redis("ListenerTask::reconnect").statement("wake_all").removed()],
            redis_suites("a_waiter_whose_connection_for_wake_ups_was_killed"),
        ),
        bug(
            "a connection to a demoted server is kept",
            [redis("says_not_here").body().becomes("let _ = text; false")],
            redis_suites("a_demoted_server_is_left_for_its_successor"),
        ),
        bug(
            "the connection for messages does not follow the one for commands",
            [redis("ListenerTask::follow_commands").condition("has_partner").never()],
            redis_suites("wake_ups_follow_the_commands"),
        ),
        bug(
            "a server that cannot be reached is tried without a pause",
            [redis("Pace::begin").condition("is_zero").never()],
            redis_suites("two_thousand_waiters_make_few_attempts"),
        ),
        bug(
            "a refusal publishes nothing",
            [lua("acquire.lua").statement("PUBLISH").removed()],
            redis_suites("conformance::demand::a_refusal"),
        ),
        bug(
            "those who wait already are not heard of",
            [redis("is_awaited").body().becomes("let _ = (backend, channel); false")],
            redis_suites("conformance::demand::one_who_waits_already"),
        ),
    ]
}

/// Exclusive and fair locks on Redis.
fn scripts() -> Vec<Bug> {
    vec![
        bug(
            "a release deletes the lock of another owner",
            [lua("release.lua").operand("not count").never()],
            redis_suites("conformance::release::"),
        ),
        bug(
            "a waiter that is granted the lock has it for minutes",
            [lua("grant_directly.lua").argument("PEXPIREAT", "kept_until").becomes("now + 600000")],
            redis_suites("direct_grant::a_waiter_that_is_dead"),
        ),
        bug(
            "a lock is granted to the waiters of the one with the other name",
            [lua("grant_directly.lua").operand("KEYS[6]").never()],
            redis_suites("direct_grant::the_lock_with_the_other_name"),
        ),
        bug(
            "a release publishes nothing",
            [lua("release.lua").statement("PUBLISH").removed()],
            redis_suites("conformance::wakeups::a_release_wakes_the_subscribers_of_every_client"),
        ),
        bug(
            "a release without a script deletes the lock of another owner",
            [redis("BatchableRequest::add_release").argument("arg", "\"HDEL\"").becomes("\"DEL\"")],
            redis_suites("conformance::release::"),
        ),
        bug(
            "a release without a script publishes nothing",
            [redis("BatchableRequest::publish_commands").body().becomes("&[]")],
            redis_suites("conformance::wakeups::a_release_wakes_the_subscribers_of_every_client"),
        ),
        bug(
            "a request of a batch is not sent again where its slot is",
            [redis("Cluster::send_on_trail").condition("is_of_slot").never()],
            redis_suites("cluster::batches::"),
        ),
        bug(
            "a renewal of a batch is not sent again where its slot is",
            [redis("is_elsewhere").body().becomes("let _ = outcome; false")],
            redis_suites("cluster::batches::"),
        ),
        bug(
            "a takeover with a shorter lease publishes nothing",
            [lua("grant.lua").statement("PUBLISH").removed()],
            redis_suites("core::waiters_behind_a_named_owner"),
        ),
        bug(
            "a repeated request is counted twice",
            [
                lua("grant.lua").condition("count ~=").always(),
                lua("grant.lua")
                    .call("HSET")
                    .which(1, 2)
                    .becomes("redis.call('HINCRBY', KEYS[1], ARGV[1], 1)"),
            ],
            redis_suites("conformance::repetition::"),
        ),
        bug(
            "a renewal shortens a lease on the server",
            [lua("renew_exclusive").condition("'PTTL'").always()],
            redis_suites("conformance::renewal::"),
        ),
        bug(
            "a look that misses a lock is a refusal for all",
            [redis("settle_looks").condition("count == all").becomes("count <= all")],
            redis_suites("batches::waiters_that_expect"),
        ),
        bug(
            "a stray reply counts for the next request of a small batch",
            [redis("pass_on").condition("any").never()],
            redis_suites("out_of_step::"),
        ),
        bug(
            "a dead waiter of a fair lock is never passed over",
            [lua("queue_head").condition("kept").becomes("{} or waiter")],
            redis_suites("cancelled_and_crashed_waiters"),
        ),
    ]
}

/// Fencing tokens on Redis, and the server's clock that they follow.
fn tokens() -> Vec<Bug> {
    vec![
        bug(
            "tokens are not kept above the clock, so they begin anew",
            [lua("issue_tokens").value("token").becomes("last + 1")],
            redis_suites("a_server_that_comes_back_empty_is_noticed_and_used_again"),
        ),
        bug(
            "the tokens of hand-overs are issued again",
            [lua("issue_tokens").argument("SET", "micros + count - 1").becomes("micros")],
            redis_suites("conformance::several_tokens::"),
        ),
        bug(
            "the last token is kept no longer for proposals of a later period",
            [lua("issue_tokens").condition("is_of_period(next)").always()],
            redis_suites("tokens::"),
        ),
        bug(
            "a proposed token need not be greater than the last",
            [lua("acquire_free.lua").operand("last < first").always()],
            redis_suites("tokens::"),
        ),
        bug(
            "a reading of the server's clock serves for ever",
            [redis("Reading::lower_bound")
                .argument("filter", "|_| age < MAX_AGE")
                .becomes("|_| true")],
            redis_lib("clock::"),
        ),
        bug(
            "a reading of the server's clock serves however long it was on its way",
            [redis("ServerClock::learn").condition("MAX_LAG").always()],
            redis_lib("clock::"),
        ),
        bug(
            "the client's clock never gains on the server's",
            [redis("Reading::lower_bound")
                .argument("checked_add", "elapsed - elapsed.div_ceil(DRIFT)")
                .becomes("elapsed")],
            redis_lib("clock::"),
        ),
        bug(
            "the same token is proposed twice",
            [redis("ClockState::next_proposal").arm("Some").becomes("bound")],
            redis_lib("clock::"),
        ),
        bug(
            "the tokens of hand-overs are proposed again",
            [lua("acquire_free.lua").argument("SET", "ARGV[4]").becomes("first")],
            redis_suites("tokens::"),
        ),
        bug(
            "a hold without a script counts although the last token was lost",
            [redis("Restored::of").condition("sent.least").becomes("true")],
            redis_suites("restored::a_lost_token"),
        ),
        bug(
            "a lock of several that is held is granted once more",
            [lua("batch_of_recent.lua").condition("reply.ok").becomes("true")],
            redis_suites("cluster::recent::a_lock"),
        ),
        bug(
            "a last token that is behind the clock is raised too far",
            [lua("batch_of_recent.lua").argument("call", "least - reply").becomes("least")],
            redis_suites("cluster::recent::a_last_token"),
        ),
        bug(
            "the server's time is not asked for again by large batches",
            [redis("Batch::new").value("asks_for_time").becomes("false")],
            redis_suites("cluster::recent::the_clock"),
        ),
        bug(
            "transactions are not checked for the number of their batch",
            [redis("Batch::settle").value("is_ours").becomes("true")],
            redis_suites("cluster::recent::the_reply"),
        ),
        bug(
            "a script is expected to be known to a server that has never answered it",
            [redis("KnownScript::is_known").body().becomes("true")],
            redis_suites("cluster::recent::a_release"),
        ),
        bug(
            "the reply to another request is taken for that to a batch",
            [redis("BatchNumber::matches").body().becomes("reply != &Value::Nil")],
            redis_suites("cluster::recent::the_reply"),
        ),
        bug(
            "a token follows one that is far behind the clock",
            [redis("ServerClock::propose_at").value("is_near").becomes("|_: u64| true")],
            redis_suites("restored::tokens_rise"),
        ),
        bug(
            "a token that follows the last one is less than the caller demands",
            [redis("step_to").value("step").becomes("request.tokens()")],
            redis_suites("least_tokens::"),
        ),
    ]
}

/// The other kinds of locks on Redis.
fn kinds_of_locks() -> Vec<Bug> {
    vec![
        bug(
            "new readers pass a writer that waits",
            [lua("acquire_read.lua").condition("tonumber(waiting)").never()],
            redis_suites("conformance::writers::"),
        ),
        bug(
            "a writer with a short lease publishes nothing",
            [lua("grant_read_write.lua").condition("ends_earlier").which(2, 2).never()],
            redis_suites("core::a_reader_behind_a_writer_that_dies"),
        ),
        bug(
            "a downgrade publishes nothing",
            [
                lua("release_read_write.lua").statement("PUBLISH").which(2, 3).removed(),
                lua("release_read_write.lua").statement("PUBLISH").which(3, 3).removed(),
            ],
            redis_suites("conformance::downgrade::"),
        ),
        bug(
            "permits that have ended come back a second time",
            [lua("end_hold").call("ZREM").becomes("math.max(#permits, {})")],
            redis_suites("permits_whose_lease_is_over_come_back_once"),
        ),
        bug(
            "a latch counts a repeated request twice",
            [lua("latch_count_down.lua").condition("is_remembered").always()],
            redis_suites("conformance::latches::"),
        ),
        bug(
            "a waiter that leaves a condition does not pass its notification on",
            [lua("condition_leave.lua").statement("notify").removed()],
            redis_suites("conformance::condition_leaving::"),
        ),
    ]
}
