//! Each side sees the other's holds, and lockcore sees the waiters.

use std::time::Duration;

use lockcore::Mode;
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, listened_to, soon},
};

const LASTING: Lease = Lease::Fixed(Duration::from_secs(20));

#[tokio::test]
async fn rust_sees_the_holds_of_java() {
    let both = Both::start().await;
    let lock = both.locks.rw_lock("seen");
    let readers = [both.redisson.thread_for(Kind::Read), both.redisson.thread_for(Kind::Read)];
    let mut owners = Vec::new();
    for reader in &readers {
        owners.push((reader.acquire("seen", LASTING).await.unwrap(), Mode::Read));
    }
    let state = lock.state().await.unwrap();
    let mut seen: Vec<_> =
        state.holders().iter().map(|holder| (holder.owner().to_owned(), holder.mode())).collect();
    seen.sort_by(|one, other| one.0.cmp(&other.0));
    owners.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(seen, owners);
    let left = state.remaining().unwrap();
    assert!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?}");
    for reader in &readers {
        reader.release("seen").await.unwrap();
    }
    assert!(!lock.state().await.unwrap().is_held());

    let writer = both.redisson.thread_for(Kind::Write);
    let owner = writer.acquire("seen", LASTING).await.unwrap();
    let state = lock.state().await.unwrap();
    let [holder] = state.holders() else { panic!("one holder: {state:?}") };
    assert_eq!(
        (holder.owner(), holder.hold_count(), holder.mode()),
        (owner.as_str(), 1, Mode::Write)
    );
    writer.release("seen").await.unwrap();
    both.close().await;
    let measured = format!(
        "two readers with {:.1} s of 20 s left, one writer; owner `<client id>:<thread id>`, for the writer as well",
        left.as_secs_f64()
    );
    record(Section::ReadWrite, Promise::RustSeesJava, measured).await;
}

#[tokio::test]
async fn java_sees_the_holds_of_rust() {
    let both = Both::start().await;
    let lock = both.locks.rw_lock("seen");
    let [reader, writer] = [Kind::Read, Kind::Write].map(|kind| both.redisson.thread_for(kind));
    for (side, seen) in [(lock.read(), [true, false]), (lock.write(), [false, true])] {
        let guard = side.acquire().await.unwrap();
        assert_eq!(
            [reader.is_locked("seen").await.unwrap(), writer.is_locked("seen").await.unwrap()],
            seen
        );
        for thread in [&reader, &writer] {
            let left = thread.remaining("seen").await.unwrap().expect("a lease");
            assert!(!left.is_zero() && left <= LEASE, "{left:?}");
            assert!(!thread.is_held("seen").await.unwrap(), "it is not that thread's");
            assert_eq!(thread.hold_count("seen").await.unwrap(), 0);
        }
        guard.release().await.unwrap();
        assert!(
            !reader.is_locked("seen").await.unwrap() && !writer.is_locked("seen").await.unwrap()
        );
    }
    both.close().await;
    let measured = "`isLocked` of the side that is held and of that only, with what is left of the lease; `getHoldCount` 0";
    record(Section::ReadWrite, Promise::JavaSeesRust, measured).await;
}

#[tokio::test]
async fn our_readers_make_way_for_our_writer_and_those_of_java_do_not() {
    let both = Both::start().await;
    let other = both.servers.locks(LEASE).await;
    let lock = both.locks.rw_lock("waited_for");
    let [first, second] =
        [both.redisson.thread_for(Kind::Read), both.redisson.thread_for(Kind::Read)];
    first.acquire("waited_for", Lease::Watchdog).await.unwrap();
    let writing = tokio::spawn(lock.write().acquire());
    listened_to(&both.servers, Kind::Write, "waited_for", 1).await;
    assert_eq!(lock.state().await.unwrap().waiters().len(), 1);

    assert!(other.rw_lock("waited_for").read().try_acquire().await.unwrap().is_none());
    assert!(second.try_acquire("waited_for", Duration::ZERO, Lease::Watchdog).await.unwrap());
    assert!(!writing.is_finished());
    for reader in [first, second] {
        reader.release("waited_for").await.unwrap();
    }
    soon("our entry", writing).await.unwrap().unwrap().release().await.unwrap();
    other.close().await.unwrap();
    both.close().await;
    let measured = "behind a reader in Java: our next reader was refused, Java's let in; the writer entered after both";
    record(Section::ReadWrite, Promise::WriterWaits, measured).await;
}
