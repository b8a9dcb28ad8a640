//! Each side is woken by the other's release.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore_interop::{Kind, Lease};

use crate::{
    deployment::{Deployment, Topology},
    report::{Promise, record_on},
    section::Section,
    support::{Both, listened_to, ms, soon},
};

/// The number of rounds for all pairs of a section together. Each has another name, and so, on a
/// cluster, another slot.
pub(crate) fn rounds_on(topology: Topology) -> usize {
    if topology == Topology::Server { 99 } else { 33 }
}

/// The limit of the median.
const LIMIT: Duration = Duration::from_millis(50);

pub(crate) async fn rust_wakes_java(section: Section, servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let mut measured = Measured::default();
    for (name, (holder, waiter)) in rounds(section, servers.topology()) {
        let thread = thread.kind(waiter);
        let guard = holder.ours(&both.locks, &name).acquire().await.unwrap();
        let waiting = thread.acquire(&name, Lease::Watchdog);
        listened_to(&both.servers, waiter, &name, 1).await;
        let start = Instant::now();
        guard.release().await.unwrap();
        soon("Java's entry", waiting).await.unwrap();
        measured.add(holder, waiter, start.elapsed());
        thread.release(&name).await.unwrap();
    }
    both.close().await;
    record_on(servers.topology(), section, Promise::RustWakesJava, measured.within_limit()).await;
}

pub(crate) async fn java_wakes_rust(section: Section, servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let mut measured = Measured::default();
    for (name, (holder, waiter)) in rounds(section, servers.topology()) {
        let thread = thread.kind(holder);
        thread.prepare(&name).await.unwrap();
        thread.acquire(&name, Lease::Watchdog).await.unwrap();
        let waiting = tokio::spawn(waiter.ours(&both.locks, &name).acquire());
        listened_to(&both.servers, waiter, &name, 1).await;
        let start = Instant::now();
        let releasing = thread.release(&name);
        let guard = soon("our entry", waiting).await.unwrap().unwrap();
        measured.add(holder, waiter, start.elapsed());
        releasing.await.unwrap();
        guard.release().await.unwrap();
    }
    both.close().await;
    record_on(servers.topology(), section, Promise::JavaWakesRust, measured.within_limit()).await;
}

/// The pairs in turn, each time under another name.
fn rounds(section: Section, topology: Topology) -> impl Iterator<Item = (String, (Kind, Kind))> {
    let pairs = section.pairs().iter().cycle().copied();
    (0..rounds_on(topology)).zip(pairs).map(|(round, pair)| (format!("wake:{round}"), pair))
}

/// The times of waiters, by event.
#[derive(Debug, Default)]
pub(crate) struct Measured(Vec<(String, Vec<Duration>)>);

impl Measured {
    fn add(&mut self, holder: Kind, waiter: Kind, wait: Duration) {
        let pair = match (holder, waiter) {
            (Kind::Write, Kind::Write) => "a writer by a writer",
            (Kind::Write, _) => "a reader by a writer",
            (Kind::Read, _) => "a writer by a reader",
            _ => "",
        };
        self.add_to(pair, wait);
    }

    pub(crate) fn add_to(&mut self, what: &str, wait: Duration) {
        match self.0.iter_mut().find(|(known, _)| known == what) {
            Some((_, waits)) => waits.push(wait),
            None => self.0.push((what.to_owned(), vec![wait])),
        }
    }

    /// The measurements, for the table; every median must be within the limit.
    pub(crate) fn within_limit(self) -> String {
        let said = self.0.into_iter().map(|(what, mut waits)| {
            waits.sort_unstable();
            let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
            assert!(median <= LIMIT, "{what}: {median:?} at the median, {longest:?} at most");
            let colon = if what.is_empty() { "" } else { ": " };
            format!(
                "{what}{colon}{} at the median of {}, {} at most",
                ms(median),
                waits.len(),
                ms(longest)
            )
        });
        said.collect::<Vec<_>>().join("; ")
    }
}
