//! `Locks::latch` and `RCountDownLatch`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, LockError};
use tokio::task::JoinSet;

use crate::{
    deployment::{Deployment, Topology},
    report::{Promise, record, record_on},
    section::Section,
    support::{Both, LEASE, LONG, SLACK, ms, soon, subscribed},
    wakeups::{Measured, rounds_on},
};

#[tokio::test]
async fn the_last_count_in_rust_wakes_java() {
    rust_wakes_java(&Deployment::server()).await;
}

#[tokio::test]
async fn the_last_count_in_java_wakes_rust() {
    java_wakes_rust(&Deployment::server()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_count_one_latch_down() {
    count_down_together(&Deployment::server()).await;
}

pub(crate) async fn rust_wakes_java(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let mut measured = Measured::default();
    for round in 0..rounds_on(servers.topology()) {
        let name = format!("wake:{round}");
        let latch = both.locks.latch(&name);
        latch.set_count(1).await.unwrap();
        let waiting = thread.wait_for_latch(&name, LONG);
        listened_to(&both.servers, &name, 1).await;
        let start = Instant::now();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert!(soon("Java's waking", waiting).await.unwrap());
        measured.add_to("", start.elapsed());
    }
    both.close().await;
    record_on(servers.topology(), Section::Latch, Promise::RustWakesJava, measured.within_limit())
        .await;
}

pub(crate) async fn java_wakes_rust(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let mut measured = Measured::default();
    for round in 0..rounds_on(servers.topology()) {
        let name = format!("wake:{round}");
        assert!(thread.set_count(&name, 1).await.unwrap());
        let latch = both.locks.latch(&name);
        let waiting = tokio::spawn(async move { latch.wait().await });
        listened_to(&both.servers, &name, 1).await;
        let start = Instant::now();
        let counting = thread.count_down(&name, 1);
        soon("our waking", waiting).await.unwrap().unwrap();
        measured.add_to("", start.elapsed());
        counting.await.unwrap();
    }
    both.close().await;
    record_on(servers.topology(), Section::Latch, Promise::JavaWakesRust, measured.within_limit())
        .await;
}

/// The count-downs of each task and each thread; there are four on each side.
const COUNTS: u32 = 250;

pub(crate) async fn count_down_together(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let (rust, java) = (
        [&both.locks, &both.servers.locks(LEASE).await],
        [&both.redisson, &both.servers.redisson(LEASE).await],
    );
    let latch = both.locks.latch("counted");
    latch.set_count(8 * COUNTS + 1).await.unwrap();
    let ours = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    let of_java = tokio::spawn(both.redisson.thread().wait_for_latch("counted", LONG));
    listened_to(&both.servers, "counted", 2).await;

    let start = Instant::now();
    let mut counting = JoinSet::new();
    for number in 0..4 {
        let latch = rust[number / 2].latch("counted");
        counting.spawn(async move {
            for _ in 0..COUNTS {
                latch.count_down().await.unwrap();
            }
        });
        let thread = java[number / 2].thread();
        counting.spawn(async move { thread.count_down("counted", COUNTS).await.unwrap() });
    }
    while let Some(counted) = soon("the counting", counting.join_next()).await {
        counted.unwrap();
    }
    let took = start.elapsed();
    assert_eq!(latch.count().await.unwrap(), 1);
    assert_eq!(both.redisson.thread().count("counted").await.unwrap(), 1);
    assert!(!ours.is_finished() && !of_java.is_finished());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    soon("our waking", ours).await.unwrap().unwrap();
    assert!(soon("Java's waking", of_java).await.unwrap().unwrap());
    both.close().await;
    let measured = format!(
        "{} counts in {:.1} s, half of each side, left 1 on both sides and nobody woken; the next one woke both",
        8 * COUNTS,
        took.as_secs_f64()
    );
    record_on(servers.topology(), Section::Latch, Promise::Counting, measured).await;
}

#[tokio::test]
async fn rust_sees_the_latch_of_java() {
    let both = Both::start().await;
    let (thread, latch) = (both.redisson.thread(), both.locks.latch("seen"));
    assert!(thread.set_count("seen", 3).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 3);
    thread.count_down("seen", 1).await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 2);
    let set = latch.set_count(9).await;
    assert!(matches!(set, Err(LockError::AlreadySet { .. })), "{set:?}");
    let waited = latch.wait_timeout(Duration::from_millis(100)).await;
    assert!(matches!(waited, Err(LockError::LatchTimeout { .. })), "{waited:?}");
    thread.count_down("seen", 2).await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 0);
    latch.wait().await.unwrap();
    latch.set_count(9).await.expect("it is open, and can be set again");
    both.close().await;
    record(
        Section::Latch,
        Promise::RustSeesJava,
        "3, 2, `AlreadySet`, 0; and then it can be set again",
    )
    .await;
}

#[tokio::test]
async fn java_sees_the_latch_of_rust() {
    let both = Both::start().await;
    let (thread, latch) = (both.redisson.thread(), both.locks.latch("seen"));
    latch.set_count(3).await.unwrap();
    assert_eq!(thread.count("seen").await.unwrap(), 3);
    assert_eq!(latch.count_down().await.unwrap(), 2);
    assert_eq!(thread.count("seen").await.unwrap(), 2);
    assert!(!thread.set_count("seen", 9).await.unwrap());
    assert!(!thread.wait_for_latch("seen", Duration::from_millis(100)).await.unwrap());
    for left in [1, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    assert_eq!(thread.count("seen").await.unwrap(), 0);
    assert!(thread.wait_for_latch("seen", Duration::ZERO).await.unwrap());
    assert!(thread.set_count("seen", 9).await.unwrap(), "it is open, and can be set again");
    both.close().await;
    record(Section::Latch, Promise::JavaSeesRust, "3, 2, false, 0; and then it can be set again")
        .await;
}

#[tokio::test]
async fn opening_in_rust_wakes_java() {
    let both = Both::start().await;
    let latch = both.locks.latch("opened");
    latch.set_count(7).await.unwrap();
    let waiting = both.redisson.thread().wait_for_latch("opened", LONG);
    listened_to(&both.servers, "opened", 1).await;
    let start = Instant::now();
    assert_eq!(latch.open().await.unwrap(), 7);
    assert!(soon("Java's waking", waiting).await.unwrap());
    woken(both, Promise::RustForces, start.elapsed()).await;
}

#[tokio::test]
async fn deleting_in_java_wakes_rust() {
    let both = Both::start().await;
    let (thread, latch) = (both.redisson.thread(), both.locks.latch("opened"));
    assert!(thread.set_count("opened", 7).await.unwrap());
    let waiting = tokio::spawn(async move { latch.wait().await });
    listened_to(&both.servers, "opened", 1).await;
    let start = Instant::now();
    assert!(thread.delete_latch("opened").await.unwrap());
    soon("our waking", waiting).await.unwrap().unwrap();
    woken(both, Promise::JavaForces, start.elapsed()).await;
}

async fn woken(both: Both, promise: Promise, after: Duration) {
    assert!(after < SLACK, "{after:?}");
    both.close().await;
    record(Section::Latch, promise, format!("after {}, with 7 left to be counted", ms(after)))
        .await;
}

/// Completes when `count` clients listen for the opening of the latch.
async fn listened_to(servers: &Deployment, name: &str, count: u32) {
    subscribed(servers, &format!("redisson_countdownlatch__channel__{{{name}}}"), count).await;
}

/// On a cluster, the channel of a name with a tag is in another slot.
pub(crate) async fn with_a_tag(servers: &Arc<Deployment>) {
    const NAME: &str = "{shop}:imported";
    let both = Both::on(servers).await;
    let (thread, latch) = (both.redisson.thread(), both.locks.latch(NAME));
    for refused in [thread.set_count(NAME, 1).await.map(drop), thread.count_down(NAME, 1).await] {
        assert!(matches!(&refused, Err(error) if error.to_string().contains("CROSSSLOT")));
    }
    let measured = if servers.topology() == Topology::PlainCluster {
        latch.set_count(1).await.unwrap();
        assert_eq!(thread.count(NAME).await.unwrap(), 1);
        let waiting = thread.wait_for_latch(NAME, LONG);
        listened_to(servers, NAME, 1).await;
        let start = Instant::now();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        assert!(soon("Java's waking", waiting).await.unwrap());
        format!("ours counted, and woke Java after {}", ms(start.elapsed()))
    } else {
        match latch.set_count(1).await {
            Err(LockError::Backend(error)) => {
                assert_eq!(error.kind(), BackendErrorKind::Configuration);
                assert!(error.to_string().contains("choose a name without braces"), "{error}");
            }
            result => panic!("{result:?}"),
        }
        "ours is refused with `Configuration`".to_owned()
    };
    both.close().await;
    let measured = format!("Java's `trySetCount` and `countDown` fail with CROSSSLOT; {measured}");
    record_on(servers.topology(), Section::Latch, Promise::Braces, measured).await;
}
