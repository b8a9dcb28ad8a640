//! Tokens rise, whichever members answered and whatever they had issued before.

use lockcore::{
    BackendErrorKind, FencingToken, Locks,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId},
};
use lockcore_memory::MemoryBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::{Fault, Faulty, Op};

use crate::{Bench, MS, enters, name, release, request};

/// Beyond every clock.
fn far(ahead: u64) -> FencingToken {
    FencingToken::from((1 << 51) + ahead)
}

#[tokio::test(start_paused = true)]
async fn a_token_is_agreed_on_in_one_round_trip() {
    let bench = Bench::new(3);
    let mut last = None;
    for number in 0..100 {
        let id = format!("a:{number}");
        let token = enters(&bench.quorum, &id).await;
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        bench.quorum.release(&release(&id)).await.unwrap();
    }
    assert_eq!(bench.calls(Op::Acquire), 300);
    assert_eq!(bench.calls(Op::RaiseToken), 0);
}

#[tokio::test(start_paused = true)]
async fn members_with_different_pasts_agree_with_one_more_exchange() {
    let bench = Bench::new(3);
    for (member, ahead) in [(0, 500), (1, 100), (2, 900)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    assert_eq!(enters(&bench.quorum, "a:1").await, far(501), "a majority cannot grant it again");
    assert_eq!([0, 1, 2].map(|at| bench.faults[at].calls(Op::RaiseToken)), [0, 1, 0]);
    let repeated = enters(&bench.quorum, "a:1").await;
    assert_eq!(repeated, far(501), "a repetition has the same token");
    bench.quorum.release(&release("a:1")).await.unwrap();
    bench.faults[2].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let next = enters(&bench.other(), "b:1").await;
    assert!(next > far(501));
}

#[tokio::test(start_paused = true)]
async fn members_with_different_pasts_are_brought_together_if_one_does_not_answer() {
    let bench = Bench::new(3);
    for (member, ahead) in [(0, 500), (1, 100)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    bench.faults[2].next(Op::Acquire, Fault::LostRequest);
    let token = enters(&bench.quorum, "a:1").await;
    assert_eq!(token, far(501));
    assert_eq!([0, 1, 2].map(|at| bench.faults[at].calls(Op::RaiseToken)), [0, 1, 0]);
    bench.quorum.release(&release("a:1")).await.unwrap();
    // The member that was ahead does not take part in the next hold.
    let (other, faults) = crate::client(&bench.stores);
    faults[0].next(Op::Acquire, Fault::LostRequest);
    let next = enters(&other, "b:1").await;
    assert!(next > token, "{next} after {token}");
}

#[tokio::test(start_paused = true)]
async fn all_of_several_tokens_are_given_away() {
    let bench = Bench::new(3);
    for (member, ahead) in [(0, 500), (1, 100)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    bench.faults[2].next(Op::Acquire, Fault::LostRequest);
    let outcome = bench.quorum.acquire(&request("a:1").tokens(256)).await.unwrap();
    assert_eq!(outcome.token(), Some(far(501)));
    bench.quorum.release(&release("a:1")).await.unwrap();
    let (other, faults) = crate::client(&bench.stores);
    faults[0].next(Op::Acquire, Fault::LostRequest);
    let next = enters(&other, "b:1").await;
    assert!(next > far(501 + 255), "{next} was reserved");
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_token_no_majority_can_have_is_undone() {
    let bench = Bench::new(3);
    bench.stores[0].raise_token(&name(), far(500)).await.unwrap();
    bench.faults[2].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    bench.faults[1].next(Op::RaiseToken, Fault::Refuse(BackendErrorKind::Unavailable));
    let error = bench.quorum.acquire(&request("a:1")).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
    assert!(bench.is_free_everywhere().await);
}

/// Whichever members answer: one has issued an earlier token for the hold, and one a later one.
#[tokio::test(start_paused = true)]
async fn a_nested_hold_has_the_token_of_the_outermost_one() {
    let bench = Bench::new(3);
    for (member, ahead) in [(0, 500), (1, 100), (2, 900)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    let token = enters(&bench.quorum, "a:1").await;
    for (count, silent) in (2..).zip([0, 1, 2, 0]) {
        bench.faults[silent].next(Op::Acquire, Fault::Delay(crate::SECOND / 10));
        let nested = bench.quorum.acquire(&request("a:1").count(count)).await.unwrap();
        assert_eq!(nested.token(), Some(token), "without member {silent}");
    }
}

/// The members that answer could agree on an earlier one by themselves.
#[tokio::test(start_paused = true)]
async fn a_repetition_has_no_earlier_token_whoever_answers() {
    for late in 0..3 {
        let bench = Bench::new(3);
        for (member, ahead) in [(0, 500), (1, 100), (2, 900)] {
            bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
        }
        bench.faults[late].next(Op::Acquire, Fault::Delay(100 * MS));
        let mut last = enters(&bench.quorum, "a:1").await;
        tokio::time::sleep(100 * MS).await;
        for silent in [None, Some(0), Some(1), Some(2), None] {
            if let Some(silent) = silent {
                bench.faults[silent].next(Op::Acquire, Fault::Delay(100 * MS));
            }
            let token = enters(&bench.quorum, "a:1").await;
            assert!(token >= last, "{token} after {last}, first without {late}, now {silent:?}");
            last = token;
            tokio::time::sleep(100 * MS).await;
        }
        bench.quorum.release(&release("a:1")).await.unwrap();
        bench.faults[late].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
        let next = enters(&bench.other(), "b:1").await;
        assert!(next > last, "{next} after {last}, first without {late}");
    }
}

/// The repetition that is given up knows no token yet.
#[tokio::test(start_paused = true)]
async fn a_repetition_that_is_given_up_forgets_no_token() {
    for (late, silent) in (0..3).flat_map(|late| (0..3).map(move |silent| (late, silent))) {
        let bench = Bench::new(3);
        for (member, ahead) in [(0, 500), (1, 100), (2, 900)] {
            bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
        }
        bench.faults[late].next(Op::Acquire, Fault::Delay(100 * MS));
        let first = enters(&bench.quorum, "a:1").await;
        tokio::time::sleep(100 * MS).await;
        for member in 0..3 {
            bench.faults[member].next(Op::Acquire, Fault::DelayReply(50 * MS));
        }
        let request = request("a:1");
        let repeating = tokio::time::timeout(20 * MS, bench.quorum.acquire(&request));
        assert!(repeating.await.is_err(), "it is not answered in time");
        tokio::time::sleep(100 * MS).await;
        bench.faults[silent].next(Op::Acquire, Fault::Delay(100 * MS));
        let token = enters(&bench.quorum, "a:1").await;
        assert!(token >= first, "{token} after {first}, first without {late}, now {silent}");
    }
}

/// That one may issue a later token.
#[tokio::test(start_paused = true)]
async fn a_nested_hold_has_that_token_also_after_the_grant_of_a_late_member() {
    let bench = Bench::new(3);
    bench.stores[2].raise_token(&name(), far(900)).await.unwrap();
    bench.faults[2].next(Op::Acquire, Fault::Delay(100 * MS));
    let token = enters(&bench.quorum, "a:1").await;
    assert!(token < far(0));
    tokio::time::sleep(100 * MS).await;
    bench.faults[0].next(Op::Acquire, Fault::Delay(100 * MS));
    let nested = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
    assert_eq!(nested.token(), Some(token));
    bench.quorum.release(&release("a:1")).await.unwrap();
    let next = enters(&bench.quorum, "a:1").await;
    assert!(next > token, "the token of a hold that is over was given away again");
}

/// The members have not agreed about the first hold, and do about the second one.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_acquired_again_has_its_new_token() {
    let bench = Bench::new(3);
    bench.faults[2].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let first = enters(&bench.quorum, "a:1").await;
    bench.other().force_release(&name()).await.unwrap();
    let other = enters(&bench.other(), "b:1").await;
    bench.other().release(&release("b:1")).await.unwrap();
    let second = enters(&bench.quorum, "a:1").await;
    assert!(first < other && other < second, "{first}, {other}, {second}");
    let nested = bench.quorum.acquire(&request("a:1").count(2)).await.unwrap();
    assert_eq!(nested.token(), Some(second));
}

/// A member that fails just then is one that the others can do without.
#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_be_told_of_the_token_is_left_out() {
    let bench = Bench::new(5);
    for (member, ahead) in [(0, 100), (1, 200), (2, 300), (3, 400), (4, 500)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    bench.faults[0].next(Op::RaiseToken, Fault::Refuse(BackendErrorKind::Unavailable));
    assert_eq!(enters(&bench.quorum, "a:1").await, far(401), "of the other four");
    assert_eq!([0, 1, 2, 3, 4].map(|at| bench.faults[at].calls(Op::RaiseToken)), [1, 2, 1, 0, 0]);
    bench.quorum.release(&release("a:1")).await.unwrap();
    assert!(bench.is_free_everywhere().await);
    for gone in [3, 4] {
        bench.faults[gone].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    }
    let next = enters(&bench.quorum, "a:2").await;
    assert!(next > far(401), "{next}");
}

/// Another owner may have had the lock between the grant and the raise, with an earlier token.
#[tokio::test(start_paused = true)]
async fn a_hold_that_ends_before_its_token_is_known_to_a_majority_is_undone() {
    let bench = Bench::new(3);
    bench.stores[0].raise_token(&name(), far(500)).await.unwrap();
    bench.faults[2].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    bench.faults[1].next(Op::RaiseToken, Fault::Delay(100 * MS));
    let (quorum, asked) = (bench.quorum.clone(), bench.faults[1].clone());
    let first = tokio::spawn(async move { quorum.acquire(&request("a:1")).await });
    asked.reached(Op::RaiseToken, 1).await;
    bench.other().force_release(&name()).await.unwrap();
    let (other, faults) = crate::client(&bench.stores);
    faults[0].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let second = enters(&other, "b:1").await;
    assert!(second < far(0));
    let first = first.await.unwrap();
    assert!(first.is_err(), "{first:?} was handed out after {second}");
    assert_eq!(bench.owners().await[1..], [Some("b:1".to_owned()), Some("b:1".to_owned())]);
}

/// One owner in two processes takes over from itself, in a different order at one member than at
/// the others. For each, one member has issued the same token, and another a later one.
#[tokio::test(start_paused = true)]
async fn two_takeovers_at_once_have_different_tokens() {
    let bench = Bench::new(3);
    for (member, ahead) in [(0, 4), (1, 6), (2, 6)] {
        bench.stores[member].raise_token(&name(), far(ahead)).await.unwrap();
    }
    let named = |id: &str| AcquireRequest::new(name(), HoldId::named("job", id), crate::LEASE);
    bench.faults[2].next(Op::Acquire, Fault::Delay(5 * MS));
    let (quorum, asked) = (bench.quorum.clone(), bench.faults[1].clone());
    let first = named("a:1");
    let first = tokio::spawn(async move { quorum.acquire(&first).await });
    asked.reached(Op::Acquire, 1).await;
    tokio::time::sleep(2 * MS).await;
    let second = bench.other().acquire(&named("b:1")).await.unwrap().token();
    assert_eq!(second, Some(far(7)));
    let first = first.await.unwrap();
    assert!(first.is_err(), "{first:?} beside {second:?}");
}

/// A member that was emptied and is known to have been away does not count.
#[tokio::test(start_paused = true)]
async fn a_member_that_came_back_counts_only_after_a_while() {
    let bench = Bench::new(3);
    bench.faults[0].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    enters(&bench.quorum, "a:1").await;
    bench.quorum.release(&release("a:1")).await.unwrap();
    // It answers again. The second member now fails, so only one grant counts.
    bench.faults[1].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    let error = bench.quorum.acquire(&request("a:2")).await.unwrap_err();
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
    assert!(error.to_string().contains("store 1: it may have come back"), "{error}");
    assert!(bench.is_free_everywhere().await);
    // A client that has not seen the absence does not know of it.
    enters(&bench.other(), "b:1").await;
    bench.other().release(&release("b:1")).await.unwrap();
    tokio::time::sleep(crate::LEASE).await;
    enters(&bench.quorum, "a:3").await;
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_when_members_lose_their_data_one_after_the_other() {
    let mut stores = [(); 3].map(|()| MemoryBackend::new());
    let mut last = None;
    for round in 0..30 {
        let members = stores.clone().map(Faulty::new);
        let faults = members.clone().map(|member| member.faults());
        let quorum = Quorum::new(members).unwrap();
        // Each of the others is missing in turn.
        faults[(round + 1 + round % 2) % 3].every(Op::Acquire, Fault::LostRequest);
        let id = format!("a:{round}");
        let outcome = quorum.acquire(&request(&id)).await.unwrap();
        let AcquireOutcome::Acquired { token } = outcome else { panic!("{outcome:?}") };
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        quorum.release(&release(&id)).await.unwrap();
        stores[round % 3] = MemoryBackend::new();
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_from_task_to_task_through_the_core() {
    let bench = Bench::new(3);
    let [one, other] = [bench.quorum.clone(), bench.other()].map(Locks::new);
    let mut last = None;
    for round in 0..20 {
        let locks = if round % 3 == 0 { &one } else { &other };
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}
