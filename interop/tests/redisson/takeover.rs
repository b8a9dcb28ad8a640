//! A named owner that takes over its own hold with a shorter lease, and dies.

use std::time::{Duration, Instant};

use lockcore::Owner;
use lockcore_interop::{Kind, Lease};
use tokio::task::JoinSet;

use crate::{
    report::{Promise, record},
    section::Section,
    support::{Both, LEASE, SLACK, listened_to, ms, soon},
};

#[tokio::test]
async fn java_enters_at_the_end_of_the_short_lease_that_a_named_owner_took_last() {
    let (both, owner) = (Both::start().await, Owner::named("job-17"));
    let again = both.servers.locks(LEASE).await;
    let mut longest = Duration::ZERO;
    for (held, waiting) in [
        (Kind::Reentrant, Kind::Reentrant),
        (Kind::Fair, Kind::Fair),
        (Kind::Read, Kind::Write),
        (Kind::Write, Kind::Read),
    ] {
        let name = format!("takeover:{held:?}");
        let waiters = [both.redisson.thread_for(waiting), both.redisson.thread_for(waiting)];
        // These waits are not measured: Java loads its classes for them.
        waiters[0].acquire(&name, Lease::Watchdog).await.unwrap();
        waiters[0].release(&name).await.unwrap();

        let lock = held.ours(&both.locks, &name).owned_by(&owner);
        let crashed = lock.lease(40 * LEASE).acquire().await.unwrap();
        let entries = waiters.each_ref().map(|waiter| waiter.acquire(&name, Lease::Watchdog));
        listened_to(&both.servers, waiting, &name, if held == Kind::Fair { 2 } else { 1 }).await;
        // Java tries once more after it has subscribed. Nothing shows that it sleeps after that.
        tokio::time::sleep(Duration::from_millis(300)).await;

        let lock = held.ours(&again, &name).owned_by(&owner);
        let taken_over = lock.lease(LEASE).acquire().await.unwrap();
        let start = Instant::now();
        let mut entered = JoinSet::new();
        for (entry, waiter) in entries.into_iter().zip(&waiters) {
            let (waiter, name) = (waiter.kind(waiting), name.clone());
            entered.spawn(async move {
                soon("Java's entry", entry).await.unwrap();
                waiter.release(&name).await.unwrap();
            });
        }
        entered.join_all().await;
        let waited = start.elapsed();
        assert!(waited <= LEASE + SLACK, "{held:?}: both had entered after {waited:?}");
        longest = longest.max(waited);
        drop((crashed, taken_over));
    }
    again.close().await.unwrap();
    both.close().await;
    let measured = format!(
        "exclusive, fair, read and write: two waiters had entered {} after the takeover at most, at a \
         lease of {} ms",
        ms(longest),
        LEASE.as_millis()
    );
    record(Section::Reentrant, Promise::Takeover, measured).await;
}
