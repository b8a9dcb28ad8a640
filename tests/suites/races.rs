//! The races of handwritten locks with SETNX and GETSET, one test each, on every kind of store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    Clock, FencingToken, LockError, LockName, Locks, LocksBuilder,
    backend::{AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, ReleaseRequest},
};
use lockcore_testkit::Fixture;
use tokio::time::timeout;

/// The limit of a wait, more than any takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Generates one test per race.
macro_rules! race_tests {
    ($fixture:ty) => {
        $crate::races::race_tests! { @ $fixture:
            crash_between_taking_the_lock_and_setting_its_expiry
            two_waiters_that_both_see_it_expired_and_both_take_it
            a_holder_that_finishes_late_and_deletes_its_successors_lock
            clients_whose_clocks_differ_by_an_hour
            a_release_by_someone_who_never_held_it
            a_process_stopped_for_longer_than_its_lease_that_goes_on_working
        }
    };
    (@ $fixture:ty: $($race:ident)*) => {
        $(#[tokio::test]
        async fn $race() {
            let fixture = <$fixture as lockcore_testkit::Fixture>::set_up().await;
            $crate::races::$race($crate::races::Race::new(fixture, stringify!($race)).await).await;
        })*
    };
}

pub(crate) use race_tests;

/// A lock of a store that several processes use.
pub(crate) struct Race<F: Fixture> {
    fixture: Arc<F>,
    /// The store may be shared by tests, so each race has a name of its own.
    name: &'static str,
    /// The shortest lease that the store ends on time.
    shortest: Duration,
}

impl<F: Fixture> Race<F> {
    pub(crate) async fn new(fixture: F, name: &'static str) -> Self {
        let shortest = fixture.client().await.limits().shortest_lease;
        Self { fixture: Arc::new(fixture), name, shortest }
    }

    /// The lease, or the shortest one that the store has.
    fn lease(&self, lease: Duration) -> Duration {
        lease.max(self.shortest)
    }

    /// A separate client, as if in another process.
    async fn client(&self) -> LocksBuilder {
        Locks::builder(self.backend().await)
    }

    async fn locks(&self) -> Locks {
        self.client().await.build().unwrap()
    }

    async fn backend(&self) -> F::Backend {
        self.fixture.client().await
    }

    fn lock_name(&self) -> LockName {
        LockName::new(self.name).unwrap()
    }
}

/// Waits for an event that must come soon.
async fn soon<R>(what: &str, future: impl Future<Output = R>) -> R {
    match timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// The protected resource: it refuses a token that is older than the last one.
#[derive(Default)]
struct Resource {
    greatest: AtomicU64,
}

impl Resource {
    fn write(&self, token: FencingToken) -> bool {
        let token = u64::from(token);
        self.greatest.fetch_max(token, Ordering::SeqCst) <= token
    }
}

/// SETNX, then EXPIRE: a client that dies in between leaves a lock forever.
pub(crate) async fn crash_between_taking_the_lock_and_setting_its_expiry<F: Fixture>(
    race: Race<F>,
) {
    let lease = race.lease(Duration::from_millis(400));
    let request = AcquireRequest::new(race.lock_name(), HoldId::unique("crashed:1"), lease);
    let start = Instant::now();
    let crashed = race.backend().await.acquire(&request).await.unwrap();
    assert!(matches!(crashed, AcquireOutcome::Acquired { .. }));
    // Nothing more is ever heard of it. The expiry was part of the acquisition.
    let locks = race.locks().await;
    let left = locks.lock(race.name).state().await.unwrap().remaining();
    // On a slow machine it is over by now.
    assert!(left.map_or(start.elapsed() >= lease, |left| left <= lease), "{left:?}");
    let next = soon("the end of the lease", locks.lock(race.name).acquire()).await.unwrap();
    next.release().await.unwrap();
}

/// GETSET with time stamps: both clients read that the lock has expired, and both write.
pub(crate) async fn two_waiters_that_both_see_it_expired_and_both_take_it<F: Fixture>(
    race: Race<F>,
) {
    let (backend, one, other) = (race.backend().await, race.locks().await, race.locks().await);
    let lease = race.lease(Duration::from_millis(60));
    // Ten rounds, or two where each takes longer than a second.
    let rounds = if lease < Duration::from_secs(1) { 10 } else { 2 };
    for round in 0..rounds {
        let abandoned = HoldId::unique(format!("abandoned:{round}"));
        let request = AcquireRequest::new(race.lock_name(), abandoned, lease);
        backend.acquire(&request).await.unwrap();
        let (first, second) = (one.lock(race.name), other.lock(race.name));
        let (mut first, mut second) = (Box::pin(first.acquire()), Box::pin(second.acquire()));
        // Both wait for the same end; the first to enter keeps the other out for as long as it
        // likes.
        let (inside, outside) = tokio::select! {
            guard = &mut first => (guard.unwrap(), second),
            guard = &mut second => (guard.unwrap(), first),
        };
        let both = timeout(Duration::from_millis(100), outside).await;
        assert!(both.is_err(), "round {round}: two are inside");
        inside.release().await.unwrap();
    }
}

/// DEL without a check: a late holder deletes the lock of its successor.
pub(crate) async fn a_holder_that_finishes_late_and_deletes_its_successors_lock<F: Fixture>(
    race: Race<F>,
) {
    let (slow, next) = (race.locks().await, race.locks().await);
    let late =
        slow.lock(race.name).lease(race.lease(Duration::from_millis(100))).acquire().await.unwrap();
    let successor = soon("the end of the lease", next.lock(race.name).acquire()).await.unwrap();
    assert!(matches!(late.release().await, Err(LockError::Lost { .. })));
    let state = slow.lock(race.name).state().await.unwrap();
    assert_eq!(state.holders()[0].owner(), successor.wire_owner());
    assert!(slow.lock(race.name).try_acquire().await.unwrap().is_none());
    successor.release().await.unwrap();
}

/// Client time stamps as values: a client whose clock is ahead takes every lock.
pub(crate) async fn clients_whose_clocks_differ_by_an_hour<F: Fixture>(race: Race<F>) {
    let ahead = race
        .client()
        .await
        .clock(Clock::with_suspension(|| Duration::from_secs(3600)))
        .build()
        .unwrap();
    let behind = race.locks().await;
    for (holder, other) in [(&behind, &ahead), (&ahead, &behind)] {
        let lease = race.lease(Duration::from_millis(500));
        let start = Instant::now();
        let guard = holder.lock(race.name).lease(lease).acquire().await.unwrap();
        let early = other.lock(race.name).try_acquire().await.unwrap();
        let is_held = guard.is_held();
        assert!(early.is_none() && is_held || start.elapsed() >= lease, "it ended for somebody");
        drop(early);
        let next = soon("the end of the lease", other.lock(race.name).acquire()).await.unwrap();
        assert!(start.elapsed() >= lease - Duration::from_millis(20), "{:?}", start.elapsed());
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
}

/// DEL by anybody: a lock is only as good as its worst user.
pub(crate) async fn a_release_by_someone_who_never_held_it<F: Fixture>(race: Race<F>) {
    let (backend, locks) = (race.backend().await, race.locks().await);
    let guard = locks.lock(race.name).acquire().await.unwrap();
    for stranger in [
        HoldId::unique("stranger:1"),
        HoldId::named("stranger", "stranger:2"),
        HoldId::named(guard.wire_owner(), "stranger:3"),
    ] {
        let answer =
            backend.release(&ReleaseRequest::new(race.lock_name(), stranger)).await.unwrap();
        assert_eq!(answer, ReleaseOutcome::NotHeld);
    }
    assert!(locks.lock(race.name).state().await.unwrap().is_held());
    guard.release().await.unwrap();
    let nobody = ReleaseRequest::new(race.lock_name(), HoldId::unique("stranger:1"));
    assert_eq!(backend.release(&nobody).await.unwrap(), ReleaseOutcome::NotHeld);
}

/// A pause by the garbage collector, the hypervisor or a debugger: the process does not know that
/// it was stopped.
pub(crate) async fn a_process_stopped_for_longer_than_its_lease_that_goes_on_working<F: Fixture>(
    race: Race<F>,
) {
    let lease = race.lease(Duration::from_millis(300));
    let resource = Arc::new(Resource::default());
    let (stopped, entered) = tokio::sync::oneshot::channel();
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    // The whole process is one thread: while it is stopped, no timer and no renewal of this client
    // runs.
    let process = std::thread::spawn({
        let (resource, fixture, name) = (resource.clone(), race.fixture.clone(), race.name);
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let locks = Locks::builder(fixture.client().await);
                let locks = locks.lease(lease).build().unwrap();
                let guard = locks.lock(name).acquire().await.unwrap();
                assert!(resource.write(guard.token()), "inside, and the first");
                stopped.send(()).unwrap();
                resumed.recv().unwrap();
                let refused = !resource.write(guard.token());
                (refused, guard.is_held(), guard.release().await)
            })
        }
    });
    entered.await.unwrap();
    let next =
        soon("the end of the lease", race.locks().await.lock(race.name).acquire()).await.unwrap();
    assert!(resource.write(next.token()));
    resume.send(()).unwrap();
    let (refused, believed, released) =
        tokio::task::spawn_blocking(|| process.join().unwrap()).await.unwrap();
    assert!(refused, "the resource refuses its token");
    assert!(!believed, "and it knows as soon as it looks");
    assert!(matches!(released, Err(LockError::Lost { .. })), "{released:?}");
    assert!(next.is_held(), "its late release has freed nothing");
    next.release().await.unwrap();
}
