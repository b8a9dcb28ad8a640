//! Walks through a directory, from the first page to the last.

use std::collections::{HashMap, HashSet};

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{Backend, Cursor, Directory, Page, Start},
};

use crate::conformance::scene::soon;

/// The maximum number of pages of a walk, more than any test store needs.
const MAX_PAGES: usize = 100_000;

pub(crate) fn directory(backend: &dyn Backend) -> &dyn Directory {
    backend.directory().expect("the backend has a directory")
}

/// Takes all steps of a walk, and runs `between` after each but the last.
async fn walk<T>(
    step: impl AsyncFn(&Start) -> Result<Page<T>, BackendError>,
    between: impl AsyncFn(),
) -> Vec<T> {
    let (mut all, mut start) = (Vec::new(), Start::Beginning);
    for _ in 0..MAX_PAGES {
        let page = soon(step(&start)).await.expect("a step of the walk failed");
        all.extend(page.entries);
        match page.next {
            None => return all,
            Some(next) => start = Start::At(next),
        }
        between().await;
    }
    panic!("the walk should have ended");
}

/// The names that a walk reports. They may include names of other cases.
pub(crate) async fn names(backend: &dyn Backend) -> HashSet<LockName> {
    names_while(backend, async || ()).await
}

/// The names that a walk reports, with something done between its steps.
pub(crate) async fn names_while(
    backend: &dyn Backend,
    between: impl AsyncFn(),
) -> HashSet<LockName> {
    let step = async |start: &Start| directory(backend).names(start).await;
    walk(step, between).await.into_iter().collect()
}

/// The client records that a walk reports, by id.
pub(crate) async fn clients(backend: &dyn Backend) -> HashMap<String, String> {
    clients_while(backend, async || ()).await
}

/// The client records that a walk reports, with something done between its steps. A record that was
/// replaced meanwhile may be reported twice.
pub(crate) async fn clients_while(
    backend: &dyn Backend,
    between: impl AsyncFn(),
) -> HashMap<String, String> {
    let step = async |start: &Start| directory(backend).clients(start).await;
    walk(step, between).await.into_iter().collect()
}

/// Cursors that no store issues.
pub(crate) fn cursors_of_nobody() -> impl Iterator<Item = Start> {
    let cursors = ["", "no cursor of any store", "ä\n{}", "-1", "0 0 0 0 0 0"];
    cursors.into_iter().map(|cursor| Start::At(Cursor::new(cursor)))
}

/// Shows that a step from a cursor that the store did not issue is refused.
pub(crate) fn is_refused<T>(step: Result<Page<T>, BackendError>) {
    let Err(error) = step else { panic!("the store did not give this cursor") };
    assert_eq!(error.kind(), BackendErrorKind::Other, "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
}
