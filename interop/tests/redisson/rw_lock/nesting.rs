//! Nested holds on both sides: reading within reading, writing within writing, and reading within
//! writing, which continues when the writing has ended.

use std::time::Duration;

use lockcore::{LockError, Mode, Owner, RwLock};
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::Both,
};

const DEPTH: u32 = 2;

#[tokio::test]
async fn nested_holds_of_java_count_for_both() {
    let both = Both::start().await;
    let (writer, lock) = (both.redisson.thread_for(Kind::Write), both.locks.rw_lock("nested"));
    let reader = writer.kind(Kind::Read);
    // Writing, and then reading as well.
    for depth in 1..=DEPTH {
        writer.acquire("nested", Lease::Watchdog).await.unwrap();
        assert_eq!(holds(&lock).await, [(Mode::Write, depth)]);
    }
    for depth in 1..=DEPTH {
        reader.acquire("nested", Lease::Watchdog).await.unwrap();
        assert_eq!(reader.hold_count("nested").await.unwrap(), depth);
        assert_eq!(holds(&lock).await, [(Mode::Read, depth), (Mode::Write, DEPTH)]);
    }
    for left in (0..DEPTH).rev() {
        assert_eq!(lets_in(&lock).await, (false, false));
        writer.release("nested").await.unwrap();
        assert_eq!(writer.hold_count("nested").await.unwrap(), left);
    }
    // From here on it reads, and others may as well.
    for left in (0..DEPTH).rev() {
        assert_eq!(holds(&lock).await, [(Mode::Read, left + 1)]);
        assert_eq!(lets_in(&lock).await, (true, false));
        reader.release("nested").await.unwrap();
        assert_eq!(reader.hold_count("nested").await.unwrap(), left);
    }
    assert_eq!(holds(&lock).await, []);
    assert_eq!(lets_in(&lock).await, (true, true), "free after the last");
    both.close().await;
    let measured = format!(
        "{DEPTH} for writing and {DEPTH} for reading within them, the same in `getHoldCount` and `state()`; our readers were let in after \
         the last for writing, our writers after the last for reading"
    );
    record(Section::ReadWrite, Promise::JavaNests, measured).await;
}

/// The modes and counts of the holders, readers first.
async fn holds(lock: &RwLock) -> Vec<(Mode, u32)> {
    let state = lock.state().await.unwrap();
    let mut holds: Vec<_> =
        state.holders().iter().map(|holder| (holder.mode(), holder.hold_count())).collect();
    holds.sort_by_key(|(mode, _)| *mode == Mode::Write);
    holds
}

/// Tries another lockcore reader and another writer. Returns `true` for each that is let in.
async fn lets_in(lock: &RwLock) -> (bool, bool) {
    let mut let_in = [false; 2];
    for (side, let_in) in [lock.read(), lock.write()].iter().zip(&mut let_in) {
        if let Some(guard) = side.try_acquire().await.unwrap() {
            guard.release().await.unwrap();
            *let_in = true;
        }
    }
    let_in.into()
}

#[tokio::test]
async fn nested_holds_of_rust_keep_java_out_until_the_last() {
    let both = Both::start().await;
    let thread = both.redisson.thread();
    let java_enters = async || {
        let mut entered = [false; 2];
        for (kind, entered) in [Kind::Read, Kind::Write].into_iter().zip(&mut entered) {
            let thread = thread.kind(kind);
            *entered = thread.try_acquire("nested", Duration::ZERO, Lease::Watchdog).await.unwrap();
            if *entered {
                thread.release("nested").await.unwrap();
            }
        }
        (entered[0], entered[1])
    };
    let (lock, owner) = (both.locks.rw_lock("nested"), Owner::new());
    let (mut writing, mut reading) = (Vec::new(), Vec::new());
    for depth in 1..=DEPTH {
        writing.push(lock.write().owned_by(&owner).acquire().await.unwrap());
        assert_eq!(writing[0].hold_count(), depth);
    }
    for depth in 1..=DEPTH {
        reading.push(lock.read().owned_by(&owner).acquire().await.unwrap());
        assert_eq!(reading[0].hold_count(), depth);
    }
    assert_eq!(holds(&lock).await, [(Mode::Read, DEPTH), (Mode::Write, DEPTH)]);
    while let Some(guard) = writing.pop() {
        assert_eq!(java_enters().await, (false, false));
        guard.release().await.unwrap();
    }
    let upgraded = lock.write().owned_by(&owner).acquire().await;
    assert!(matches!(upgraded, Err(LockError::Upgrade { .. })), "{upgraded:?}");
    while let Some(guard) = reading.pop() {
        assert_eq!(java_enters().await, (true, false));
        guard.release().await.unwrap();
    }
    assert_eq!(java_enters().await, (true, true), "free after the last");
    both.close().await;
    let measured = format!(
        "{DEPTH} for writing and {DEPTH} for reading within them; Java's readers were let in after the last for writing, its writers after \
         the last for reading"
    );
    record(Section::ReadWrite, Promise::RustNests, measured).await;
}
