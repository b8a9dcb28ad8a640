//! The cases of interruptions fail on backends that violate them.

use std::sync::{Arc, Mutex};

use lockcore::{
    BackendError, LockName, Mode,
    backend::{AcquireOutcome, AcquireRequest, Backend, Wakeup, Wakeups, async_trait},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{
    Fault, Faulty, Fixture, Interrupts, Op, Withholds, interruptions, run_case,
};

use crate::hooked::{Hooked, Hooks};

/// A backend whose subscriptions are never woken.
#[derive(Debug, Default)]
struct Deaf;

#[derive(Debug)]
struct Silence;

#[async_trait]
impl Wakeups for Silence {
    async fn woken(&mut self) -> Wakeup {
        std::future::pending().await
    }
}

#[async_trait]
impl Hooks for Deaf {
    async fn subscribe(&self, _: Option<Mode>) -> Option<Box<dyn Wakeups>> {
        Some(Box::new(Silence))
    }
}

struct DeafFixture(MemoryBackend);

impl Fixture for DeafFixture {
    type Backend = Hooked<Deaf>;

    async fn set_up() -> Self {
        Self(MemoryBackend::new())
    }

    async fn client(&self) -> Hooked<Deaf> {
        Hooked::new(self.0.clone(), Arc::new(Deaf))
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        Vec::new()
    }
}

impl Interrupts for DeafFixture {
    async fn interrupt(&self) {}
}

/// A backend whose requests arrive after their clients have given them up.
struct LateFixture(MemoryBackend);

impl Fixture for LateFixture {
    type Backend = Faulty<MemoryBackend>;

    async fn set_up() -> Self {
        Self(MemoryBackend::new())
    }

    async fn client(&self) -> Faulty<MemoryBackend> {
        let client = Faulty::new(self.0.clone());
        let late = self.short_lease() / 20;
        client.faults().next(Op::Acquire, Fault::Straggles(late));
        client
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        Vec::new()
    }
}

impl Interrupts for LateFixture {
    async fn interrupt(&self) {}
}

/// Requests that arrive whatever their clients have undone since. `None` if nothing is withheld.
#[derive(Debug, Default)]
struct Withheld(Mutex<Option<Vec<AcquireRequest>>>);

#[async_trait]
impl Hooks for Withheld {
    async fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<AcquireOutcome, BackendError>> {
        let is_withheld = match &mut *self.0.lock().unwrap() {
            Some(withheld) => {
                withheld.push(request.clone());
                true
            }
            None => false,
        };
        match is_withheld {
            true => std::future::pending().await,
            false => None,
        }
    }
}

struct WithheldFixture(MemoryBackend, Arc<Withheld>);

impl Fixture for WithheldFixture {
    type Backend = Hooked<Withheld>;

    async fn set_up() -> Self {
        Self(MemoryBackend::new(), Arc::default())
    }

    async fn client(&self) -> Hooked<Withheld> {
        Hooked::new(self.0.clone(), self.1.clone())
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        Vec::new()
    }
}

impl Interrupts for WithheldFixture {
    async fn interrupt(&self) {}
}

impl Withholds for WithheldFixture {
    async fn withhold(&self) {
        *self.1.0.lock().unwrap() = Some(Vec::new());
    }

    async fn abandon(&self) {}

    async fn deliver(&self) {
        let withheld = self.1.0.lock().unwrap().take();
        for request in withheld.unwrap() {
            self.0.acquire(&request).await.unwrap();
        }
    }
}

#[test]
#[should_panic(expected = "this should have come at once")]
fn a_backend_that_wakes_nobody_after_an_interruption_is_caught() {
    run_case::<DeafFixture>(interruptions::who_listens_hears_of_an_interruption);
}

#[test]
#[should_panic(expected = "it was in")]
fn a_request_that_comes_after_its_undo_is_caught() {
    run_case::<LateFixture>(interruptions::an_undone_acquire_stays_undone);
}

#[test]
#[should_panic(expected = "it was in")]
fn a_request_that_is_delivered_after_its_undo_is_caught() {
    run_case::<WithheldFixture>(
        interruptions::an_acquire_that_arrives_after_its_undo_has_no_effect,
    );
}

#[test]
#[should_panic(expected = "acquire failed")]
fn a_hold_that_no_request_brings_about_is_caught() {
    run_case::<LateFixture>(interruptions::a_hold_outlives_an_interruption);
}
