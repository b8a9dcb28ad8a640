//! Writers that continue as readers, and the readers that are let in beside them.

use std::time::{Duration, Instant};

use lockcore::Owner;
use lockcore_interop::{Kind, Lease};

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, SLACK, listened_to, ms, soon},
    wakeups::Measured,
};

const ROUNDS: u32 = 30;

#[tokio::test]
async fn our_downgrade_wakes_the_readers_of_java() {
    let both = Both::start().await;
    let readers = [both.redisson.thread_for(Kind::Read), both.redisson.thread_for(Kind::Read)];
    let mut measured = Measured::default();
    for round in 0..ROUNDS {
        let (name, owner) = (format!("downgrade:{round}"), Owner::new());
        let lock = both.locks.rw_lock(&name);
        let writing = lock.write().owned_by(&owner).acquire().await.unwrap();
        let waiting = readers.each_ref().map(|reader| reader.acquire(&name, Lease::Watchdog));
        listened_to(&both.servers, Kind::Read, &name, 1).await;
        let reading = lock.read().owned_by(&owner).acquire().await.unwrap();
        let start = Instant::now();
        writing.release().await.unwrap();
        for (entry, waiting) in ["the first", "the last"].into_iter().zip(waiting) {
            soon("Java's entry", waiting).await.unwrap();
            measured.add_to(entry, start.elapsed());
        }
        assert!(
            !readers[0]
                .kind(Kind::Write)
                .try_acquire(&name, Duration::ZERO, Lease::Watchdog)
                .await
                .unwrap()
        );
        for reader in &readers {
            reader.release(&name).await.unwrap();
        }
        reading.release().await.unwrap();
    }
    both.close().await;
    record(
        Section::ReadWrite,
        Promise::RustDowngrades,
        "two readers, ".to_owned() + &measured.within_limit(),
    )
    .await;
}

#[tokio::test]
async fn the_downgrade_of_java_lets_readers_in() {
    let both = Both::start().await;
    let other = both.servers.redisson(LEASE).await;
    let (thread, reader) = (both.redisson.thread_for(Kind::Write), other.thread_for(Kind::Read));
    let lock = both.locks.rw_lock("downgrade");
    thread.acquire("downgrade", Lease::Watchdog).await.unwrap();
    let ours = tokio::spawn(lock.read().acquire());
    let of_java = reader.acquire("downgrade", Lease::Watchdog);
    listened_to(&both.servers, Kind::Read, "downgrade", 2).await;
    thread.kind(Kind::Read).acquire("downgrade", Lease::Watchdog).await.unwrap();
    let start = Instant::now();
    thread.release("downgrade").await.unwrap();
    let ours = async { (soon("our entry", ours).await.unwrap().unwrap(), start.elapsed()) };
    let of_java = async { soon("Java's entry", of_java).await.map(|_| start.elapsed()).unwrap() };
    let ((guard, ours), of_java) = tokio::join!(ours, of_java);
    assert!(ours.max(of_java) <= LEASE + SLACK, "{ours:?} {of_java:?}");
    assert!(lock.write().try_acquire().await.unwrap().is_none(), "there are three readers");
    guard.release().await.unwrap();
    for reader in [thread.kind(Kind::Read), reader] {
        reader.release("downgrade").await.unwrap();
    }
    lock.write()
        .try_acquire()
        .await
        .unwrap()
        .expect("free after the last")
        .release()
        .await
        .unwrap();
    other.close().await.unwrap();
    both.close().await;
    let measured = format!(
        "our reader entered after {}, another one of Java's after {}, at a lease of {} ms",
        ms(ours),
        ms(of_java),
        LEASE.as_millis()
    );
    record(Section::ReadWrite, Promise::JavaDowngrades, measured).await;
}
