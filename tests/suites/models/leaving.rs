//! Giving a place in a queue up.

use std::time::Duration;

use lockcore::{
    Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, ReleaseRequest},
};

use crate::{new_name, stores::Store};

/// Longer than the test.
const LEASE: Duration = Duration::from_secs(1000);

/// C20 and C25: a waiter has no hold whose count could be lowered. Any release gives its place up.
pub(crate) fn a_partial_release_of_a_waiter_gives_its_place_up(store: &Store) {
    for (held, awaited) in [(Mode::Exclusive, Mode::Fair), (Mode::Read, Mode::Write)] {
        store.runtime.block_on(gives_up(&*store.backend, held, awaited));
    }
}

async fn gives_up(store: &dyn Backend, held: Mode, awaited: Mode) {
    let name = new_name();
    let [holder, waiter] = ["holder:1", "waiter:1"].map(HoldId::unique);
    let request = |hold: &HoldId, mode: Mode| {
        AcquireRequest::new(name.clone(), hold.clone(), LEASE).mode(mode)
    };
    let granted = store.acquire(&request(&holder, held)).await.unwrap();
    assert!(matches!(granted, AcquireOutcome::Acquired { .. }), "{granted:?}");
    let refused = store.acquire(&request(&waiter, awaited).queue(Some(LEASE))).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Held { .. }), "{refused:?}");
    assert_eq!(store.inspect(&name).await.unwrap().waiters(), [waiter.id()]);

    let release = ReleaseRequest::new(name.clone(), waiter).mode(awaited).remaining(1);
    assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::NotHeld);
    let state = store.inspect(&name).await.unwrap();
    assert!(state.is_held() && state.waiters().is_empty(), "{awaited}: {state:?}");
}
