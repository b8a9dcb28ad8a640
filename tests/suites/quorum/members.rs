//! Valid and invalid members of a quorum, and members that connect later.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use lockcore::{
    BackendError, BackendErrorKind, Locks,
    backend::{Awaited, Backend, Capabilities, ResizeRequest, SubscribeRequest},
};
use lockcore_memory::MemoryBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::Op;
use tokio::time::{Instant, sleep};

use crate::{Bench, MS, SECOND, enters, hold, name, owner_at, release};

fn store() -> MemoryBackend {
    MemoryBackend::new()
}

fn is_configuration(made: Result<Quorum, BackendError>, says: &str) {
    let error = made.expect_err(says);
    assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains(says), "`{says}` is missing: {error}");
}

#[tokio::test]
async fn what_cannot_be_a_quorum_is_refused_with_the_reason() {
    is_configuration(Quorum::new([] as [MemoryBackend; 0]), "1 to 63 members, and 0 were given");
    is_configuration(Quorum::new((0..64).map(|_| store())), "64 were given");
    // A quorum does not agree on tokens with other members.
    let inner = Quorum::new([store()]).unwrap();
    let mixed = Quorum::builder().member(store()).member(inner.clone()).build();
    is_configuration(mixed, "store 2: this backend lacks `Capabilities::PROPOSED_TOKENS`");
    for timeout in [MS / 2, 2 * SECOND] {
        let made = Quorum::builder().member(store()).member_timeout(timeout).build();
        is_configuration(made, "`member_timeout` must be 1 ms to 1 s");
    }
    // It would be as if one store had two votes.
    let twice: Arc<dyn Backend> = Arc::new(store());
    let members = Quorum::builder().shared_member(twice.clone()).member(store());
    is_configuration(members.shared_member(twice).build(), "stores 1 and 3 are the same");
    let made = Quorum::builder().member_from(async || Ok(store())).build();
    is_configuration(made, "made with `connect`");
}

#[tokio::test]
async fn one_member_and_an_even_number_are_quorums_too() {
    for members in [1, 2, 4, 63] {
        let bench = Bench::new(members);
        enters(&bench.quorum, "a:1").await;
        assert!(bench.owners().await.iter().all(Option::is_some), "{members}");
        bench.quorum.release(&release("a:1")).await.unwrap();
        assert!(bench.is_free_everywhere().await, "{members}");
    }
}

#[tokio::test]
async fn only_exclusive_locks_are_declared() {
    let quorum = Bench::new(3).quorum;
    assert_eq!(quorum.capabilities(), Capabilities::EXCLUSIVE | Capabilities::HAND_OVER);
    let resized = quorum.resize(&ResizeRequest::new(name(), 1)).await.unwrap_err();
    assert_eq!(resized.kind(), BackendErrorKind::Unsupported);
    let demand = SubscribeRequest::new(name(), hold("a:1")).awaited(Awaited::Demand);
    let demand = quorum.subscribe(&demand).await.err().unwrap();
    assert_eq!(demand.kind(), BackendErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_down_at_the_start_is_connected_later() {
    let (late, is_up, attempts) =
        (store(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let connect = {
        let (late, is_up, attempts) = (late.clone(), is_up.clone(), attempts.clone());
        move || {
            let (late, is_up) = (late.clone(), is_up.clone());
            attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                match is_up.load(Ordering::Relaxed) {
                    true => Ok(late),
                    false => Err(BackendError::new(BackendErrorKind::Connection, "it is down")),
                }
            }
        }
    };
    let members = Quorum::builder().member(store()).member(store()).member_from(connect);
    let start = Instant::now();
    let quorum = members.rejoin_after(SECOND).connect().await.unwrap();
    assert!(start.elapsed() < 100 * MS, "{:?}", start.elapsed());
    enters(&quorum, "a:1").await;
    quorum.release(&release("a:1")).await.unwrap();
    sleep(60 * SECOND).await;
    let tried = attempts.load(Ordering::Relaxed);
    assert!((5..=25).contains(&tried), "tried {tried} times in a minute");

    is_up.store(true, Ordering::Relaxed);
    sleep(10 * SECOND).await;
    let tried = attempts.load(Ordering::Relaxed);
    enters(&quorum, "a:2").await;
    assert_eq!(owner_at(&late).await.as_deref(), Some("a:2"));
    quorum.release(&release("a:2")).await.unwrap();
    assert_eq!(owner_at(&late).await, None);
    sleep(60 * SECOND).await;
    assert_eq!(attempts.load(Ordering::Relaxed), tried, "it is connected");
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_at_the_start_the_error_names_the_members() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let down = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<MemoryBackend, _>(BackendError::new(BackendErrorKind::Connection, "down")) }
    };
    let never = || std::future::pending::<Result<MemoryBackend, BackendError>>();
    let members = Quorum::builder().member(store()).member_from(down).member_from(never);
    let error = members.connect().await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let text = error.to_string();
    for part in ["2 of the 3 stores", "store 2: down", "store 3: no answer within 10s"] {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    let tried = attempts.load(Ordering::Relaxed);
    sleep(60 * SECOND).await;
    assert_eq!(attempts.load(Ordering::Relaxed), tried, "attempts go on for nobody");
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect_end_with_the_quorum() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let down = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<MemoryBackend, _>(BackendError::new(BackendErrorKind::Connection, "down")) }
    };
    let members = Quorum::builder().member(store()).member(store()).member_from(down);
    let locks = Locks::new(members.connect().await.unwrap());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    locks.close().await.unwrap();
    drop(locks);
    sleep(SECOND).await;
    let tried = attempts.load(Ordering::Relaxed);
    sleep(60 * SECOND).await;
    assert_eq!(attempts.load(Ordering::Relaxed), tried);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_be_one_never_joins() {
    let connect = async || Quorum::new([store()]);
    let members = Quorum::builder().member(store()).member(store()).member_from(connect);
    let quorum = members.connect().await.unwrap();
    enters(&quorum, "a:1").await;
    let bench = Bench::new(3);
    enters(&bench.quorum, "a:1").await;
    assert_eq!(bench.calls(Op::Acquire), 3, "clients of other stores know nothing of it");
}
