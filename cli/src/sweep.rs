//! [`Sweep`]: a look at all names of a store, at a bounded rate.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::future::join_all;
use lockcore::{
    BackendError, BackendErrorKind, LockError, LockName,
    backend::{Backend, Directory, Start},
};

use crate::{clients::Clients, glob::Glob, pace::Pace, report::Report, store::Store};

/// A look at all names that are in use and match a pattern, in their order.
///
/// The names are listed first, which is a small part of the work, so that the progress is known.
#[derive(Debug)]
pub(crate) struct Sweep {
    backend: Arc<dyn Backend>,
    clients: Arc<Clients>,
    names: Vec<LockName>,
    /// The number of names that were looked at.
    done: usize,
}

/// A step of a sweep.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The names that were looked at.
    pub(crate) names: Vec<LockName>,
    /// The reports of the names that are in use, or cannot be read.
    pub(crate) reports: Vec<Report>,
}

impl Sweep {
    /// Lists the names, and tells `found` how many there are so far.
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`] if the store cannot tell which names are in use.
    pub(crate) async fn begin(
        store: &Store,
        pattern: Option<&Glob>,
        pace: &mut Pace,
        found: impl Fn(usize),
    ) -> Result<Self, LockError> {
        let Some(directory) = store.backend.directory() else {
            return Err(BackendError::unsupported("telling which names are in use").into());
        };
        let clients = Arc::new(Clients::read(store, pace).await?);
        let names = names(directory, pattern, pace, found).await?;
        Ok(Self { backend: Arc::clone(&store.backend), clients, names, done: 0 })
    }

    /// The names, in their order.
    pub(crate) fn names(&self) -> &[LockName] {
        &self.names
    }

    /// The number of names.
    pub(crate) fn total(&self) -> usize {
        self.names.len()
    }

    /// The number of names that were looked at.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// The records of the clients, as they were at the beginning.
    pub(crate) fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Looks at the next names. Those that are not in use any more are left out, so that there may
    /// be none although the sweep goes on. [`None`] if it is over.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the next call looks at the same names.
    pub(crate) async fn next(&mut self, pace: &mut Pace) -> Result<Option<Batch>, BackendError> {
        let rest = &self.names[self.done..];
        if rest.is_empty() {
            return Ok(None);
        }
        let batch = &rest[..rest.len().min(pace.at_once() as usize)];
        pace.take(u32::try_from(batch.len()).unwrap_or(u32::MAX)).await;
        let looks = batch.iter().map(|name| pace.in_time(Report::of(&*self.backend, name)));
        let mut reports = Vec::with_capacity(batch.len());
        let mut failures = Vec::new();
        for (name, report) in batch.iter().zip(join_all(looks).await) {
            match report {
                Ok(mut report) if report.kind.is_some() => {
                    report.identify(&self.clients);
                    reports.push(report);
                }
                Ok(_) => {}
                // By now, the name is used for something else.
                Err(error) if error.kind() == BackendErrorKind::WrongType => {}
                Err(error) if is_of_name(error.kind()) => failures.push((name, error)),
                Err(error) => return Err(error),
            }
        }
        let failures = failures.into_iter();
        reports.extend(failures.map(|(name, error)| Report::unreadable(name.as_str(), &error)));
        reports.sort_by(|one, other| one.name.cmp(&other.name));
        let names = batch.to_vec();
        self.done += names.len();
        Ok(Some(Batch { names, reports }))
    }
}

/// Returns `true` if an error concerns a single name, so that others may still be asked for. Other
/// errors, such as a store that does not answer, would occur for all names.
pub(crate) fn is_of_name(kind: BackendErrorKind) -> bool {
    use BackendErrorKind::{Configuration, Other, Permission, Protocol, Unsupported};
    matches!(kind, Configuration | Other | Permission | Protocol | Unsupported)
}

async fn names(
    directory: &dyn Directory,
    pattern: Option<&Glob>,
    pace: &mut Pace,
    found: impl Fn(usize),
) -> Result<Vec<LockName>, BackendError> {
    let mut names = BTreeSet::new();
    let mut start = Start::Beginning;
    loop {
        pace.take(1).await;
        let page = pace.in_time(directory.names(&start)).await?;
        pace.charge_page(page.entries.len());
        let is_wanted =
            |name: &LockName| pattern.is_none_or(|pattern| pattern.matches(name.as_str()));
        names.extend(page.entries.into_iter().filter(is_wanted));
        found(names.len());
        match page.next {
            Some(next) => start = Start::At(next),
            None => return Ok(names.into_iter().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::Locks;
    use lockcore_memory::MemoryBackend;
    use lockcore_testkit::{Fault, Faulty, Op};

    use super::*;

    async fn swept(store: &Store, pattern: Option<&str>) -> Vec<Report> {
        let mut pace = Pace::new(0);
        let pattern = pattern.map(Glob::new);
        let mut sweep = Sweep::begin(store, pattern.as_ref(), &mut pace, |_| ()).await.unwrap();
        let mut reports = Vec::new();
        while let Some(batch) = sweep.next(&mut pace).await.unwrap() {
            reports.extend(batch.reports);
        }
        assert_eq!(sweep.done(), sweep.total());
        reports
    }

    #[tokio::test]
    async fn a_sweep_finds_names_of_all_kinds_in_order() {
        let memory = MemoryBackend::new();
        let locks = Locks::new(memory.clone());
        let store = Store { backend: Arc::new(memory), locks: locks.clone() };
        assert!(swept(&store, None).await.is_empty());
        let _exclusive = locks.lock("b").acquire().await.unwrap();
        let _fair = locks.fair_lock("a").acquire().await.unwrap();
        let _read = locks.rw_lock("c").read().acquire().await.unwrap();
        let _permits = locks.semaphore("e", 5).permits(2).acquire().await.unwrap();
        locks.latch("d").set_count(3).await.unwrap();
        let reports = swept(&store, None).await;
        let shown: Vec<_> = reports
            .iter()
            .map(|report| (&*report.name, report.kind.unwrap(), report.count().unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                ("a", "fair lock", "1".to_owned()),
                ("b", "lock", "1".to_owned()),
                ("c", "read-write lock", "1".to_owned()),
                ("d", "latch", "3".to_owned()),
                ("e", "semaphore", "2/5".to_owned()),
            ]
        );
        let reports = swept(&store, Some("[a]*")).await;
        assert!(reports.is_empty());
        assert_eq!(swept(&store, Some("?")).await.len(), 5);
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_read_does_not_end_the_sweep() {
        let memory = MemoryBackend::new();
        let faulty = Faulty::new(memory.clone());
        let faults = faulty.faults();
        let store = Store { backend: Arc::new(faulty), locks: Locks::new(memory) };
        let _held = [
            store.locks.lock("a").acquire().await.unwrap(),
            store.locks.lock("b").acquire().await.unwrap(),
        ];
        faults.next(Op::Inspect, Fault::Refuse(BackendErrorKind::Permission));
        let reports = swept(&store, None).await;
        assert_eq!(reports.len(), 2);
        assert!(reports[0].error.is_some() && reports[0].kind.is_none(), "{:?}", reports[0]);
        assert!(reports[1].error.is_none() && reports[1].held, "{:?}", reports[1]);
        faults.next(Op::Inspect, Fault::Refuse(BackendErrorKind::Connection));
        let mut pace = Pace::new(0);
        let mut sweep = Sweep::begin(&store, None, &mut pace, |_| ()).await.unwrap();
        let error = sweep.next(&mut pace).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Connection, "the store is away");
    }

    #[tokio::test]
    async fn a_name_that_vanishes_meanwhile_is_left_out() {
        let memory = MemoryBackend::new();
        let locks = Locks::new(memory.clone());
        let store = Store { backend: Arc::new(memory), locks: locks.clone() };
        let _kept = locks.lock("a").acquire().await.unwrap();
        let ended = locks.lock("b").acquire().await.unwrap();
        let mut pace = Pace::new(0);
        let mut sweep = Sweep::begin(&store, None, &mut pace, |_| ()).await.unwrap();
        ended.release_now().await.unwrap();
        let reports = sweep.next(&mut pace).await.unwrap().unwrap().reports;
        assert_eq!((reports.len(), &*reports[0].name, sweep.total()), (1, "a", 2));
        assert!(sweep.next(&mut pace).await.unwrap().is_none());
    }
}
