//! Slots that move while their locks are used.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    Lock, LockError, LockGuard, Locks, Mode, Owner,
    backend::{Backend, ReleaseOutcome, SubscribeRequest},
};
use lockcore_testkit::{RedisCluster, SlotMigration};
use tokio::task::{JoinHandle, JoinSet};

use super::{backend, builder, locks, places};
use crate::{
    steps::{enters, hold, name, refused_for, releases, request, state},
    support::soon,
    timing::Lateness,
};

const LEASE: Duration = Duration::from_secs(4);
/// How many times a slot moves under contention.
const MIGRATIONS: u32 = 20;
/// The maximum extra delay of a grant because of the migration.
const PROMPT: Duration = Duration::from_millis(200);

async fn cluster() -> RedisCluster {
    RedisCluster::builder().replicas_each(0).start().await
}

/// A hold of each kind, all in one slot.
async fn holds_of_all_kinds(locks: &Locks) -> Vec<LockGuard> {
    let named = Owner::named("somebody");
    vec![
        locks.lock("{slot}:plain").acquire().await.unwrap(),
        locks.lock("{slot}:named").owned_by(&named).acquire().await.unwrap(),
        locks.fair_lock("{slot}:fair").acquire().await.unwrap(),
        locks.rw_lock("{slot}:read").read().acquire().await.unwrap(),
        locks.rw_lock("{slot}:write").write().acquire().await.unwrap(),
        locks.semaphore("{slot}:leased", 5).permits(2).acquire().await.unwrap(),
        locks.plain_semaphore("{slot}:unleased", 5).permits(2).acquire().await.unwrap(),
    ]
}

async fn outlives_the_lease(guards: &[LockGuard]) {
    tokio::time::sleep(LEASE + LEASE / 2).await;
    for guard in guards {
        assert!(guard.is_held(), "{} was renewed", guard.name());
    }
}

#[tokio::test]
async fn holds_of_all_kinds_outlive_a_migration_that_is_longer_than_the_lease() {
    let cluster = cluster().await;
    let locks = builder(&cluster).await.lease(LEASE).build().unwrap();
    let guards = holds_of_all_kinds(&locks).await;
    let (slot, _, to) = places(&cluster, "{slot}").await;

    let migration = cluster.begin_migration(slot, to).await;
    outlives_the_lease(&guards).await;
    cluster.move_keys(&migration).await;
    outlives_the_lease(&guards).await;
    cluster.finish_migration(migration).await;
    outlives_the_lease(&guards).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// The number of holds that are renewed while their slot moves, which takes twice the lease.
const HOLDS: usize = 100;
const MOVES_FOR: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_slot_that_moves_key_by_key_loses_no_hold() {
    let cluster = cluster().await;
    let locks = builder(&cluster).await.lease(LEASE).build().unwrap();
    let mut acquiring = JoinSet::new();
    for number in 0..HOLDS {
        let lock = locks.lock(format!("{{slot}}:{number}"));
        acquiring.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = soon("all holds", acquiring.join_all()).await;
    let (slot, from, to) = places(&cluster, "{slot}").await;
    let migration = cluster.begin_migration(slot, to).await;
    let mut next = tokio::time::interval(MOVES_FOR / u32::try_from(HOLDS).unwrap());
    for guard in &guards {
        next.tick().await;
        cluster.move_keys_of(&migration, &[guard.name()]).await;
    }
    for guard in &guards {
        assert!(guard.is_held(), "{} was renewed", guard.name());
    }
    // The tokens stayed until now.
    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
    cluster.migrate_slot(slot, from).await;
    outlives_the_lease(&guards).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn holds_of_all_kinds_are_released_before_and_after_their_keys_have_moved() {
    let cluster = cluster().await;
    let locks = locks(&cluster).await;
    let (slot, _, to) = places(&cluster, "{slot}").await;
    for have_moved in [false, true] {
        let guards = holds_of_all_kinds(&locks).await;
        let migration = cluster.begin_migration(slot, to).await;
        if have_moved {
            cluster.move_keys(&migration).await;
        }
        for guard in guards {
            let name = guard.name().to_owned();
            guard.release().await.unwrap_or_else(|error| panic!("{name}, {have_moved}: {error}"));
        }
        cluster.cancel_migration(migration).await;
    }
}

/// The keys of a slot at a node.
async fn keys_in(cluster: &RedisCluster, slot: u16, node: usize) -> Vec<String> {
    let command = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"];
    cluster.node(node).query(&command).await
}

#[tokio::test]
async fn nobody_gets_in_while_only_some_keys_of_a_held_lock_have_moved() {
    let cluster = cluster().await;
    let [holder, other] = [locks(&cluster).await, locks(&cluster).await];
    let (slot, from, to) = places(&cluster, "{slot}").await;
    let names = ["{slot}:plain", "{slot}:fair", "{slot}:write", "{slot}:leased"];
    for do_locks_move in [false, true] {
        let guards = vec![
            holder.lock(names[0]).acquire().await.unwrap(),
            holder.fair_lock(names[1]).acquire().await.unwrap(),
            holder.rw_lock(names[2]).write().acquire().await.unwrap(),
            holder.semaphore(names[3], 1).acquire().await.unwrap(),
        ];
        let migration = cluster.begin_migration(slot, to).await;
        let mut moving = keys_in(&cluster, slot, from).await;
        moving.retain(|key| names.contains(&key.as_str()) == do_locks_move);
        assert!(moving.len() >= names.len(), "{moving:?}");
        let moving: Vec<&str> = moving.iter().map(String::as_str).collect();
        cluster.move_keys_of(&migration, &moving).await;
        let attempts = [
            other.lock(names[0]).try_acquire().await,
            other.fair_lock(names[1]).try_acquire().await,
            other.rw_lock(names[2]).write().try_acquire().await,
            other.semaphore(names[3], 1).try_acquire().await,
        ];
        for (name, attempt) in names.iter().zip(attempts) {
            assert!(!matches!(attempt, Ok(Some(_))), "{name}, {do_locks_move}: {attempt:?}");
        }
        cluster.move_keys(&migration).await;
        cluster.finish_migration(migration).await;
        for guard in guards {
            guard.release().await.unwrap();
        }
        cluster.migrate_slot(slot, from).await;
    }
}

#[tokio::test]
async fn a_lock_is_used_at_once_where_its_slot_has_gone() {
    let cluster = cluster().await;
    let locks = locks(&cluster).await;
    let (slot, from, to) = places(&cluster, "lock").await;
    locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
    cluster.migrate_slot(slot, to).await;
    let start = Instant::now();
    let guard = locks.lock("lock").acquire().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(cluster.node(to).query::<bool>(&["EXISTS", "lock"]).await);
    guard.release().await.unwrap();
    cluster.migrate_slot(slot, from).await;
    locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn new_locks_of_all_kinds_begin_at_the_target_of_a_migration() {
    let cluster = cluster().await;
    let locks = locks(&cluster).await;
    let (slot, from, to) = places(&cluster, "{slot}").await;
    let migration = cluster.begin_migration(slot, to).await;
    let guards = soon("all kinds", holds_of_all_kinds(&locks)).await;
    let number = slot.to_string();
    let count_keys = ["CLUSTER", "COUNTKEYSINSLOT", &number];
    let keys_at = async |node| cluster.node(node).query::<usize>(&count_keys).await;
    assert_eq!(keys_at(from).await, 0);
    assert!(keys_at(to).await > guards.len());
    for guard in guards {
        guard.release().await.unwrap();
    }
    let latch = locks.latch("slot");
    latch.set_count(1).await.unwrap();
    latch.count_down().await.unwrap();
    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
}

#[tokio::test]
async fn a_name_whose_keys_are_on_both_sides_is_tried_again() {
    let cluster = cluster().await;
    let locks = locks(&cluster).await;
    let (slot, _, to) = places(&cluster, "lock").await;
    // Leaves the token.
    locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
    let migration = cluster.begin_migration(slot, to).await;
    let LockError::Backend(error) = locks.lock("lock").try_acquire().await.unwrap_err() else {
        panic!("not an error of the backend")
    };
    assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
    let acquiring = tokio::spawn({
        let lock = locks.lock("lock");
        async move { lock.acquire().await }
    });
    cluster.move_keys(&migration).await;
    soon("the lock", acquiring).await.unwrap().unwrap().release().await.unwrap();
    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
}

/// The observations of contenders for one lock.
#[derive(Default)]
struct Contention {
    is_inside: AtomicBool,
    is_over: AtomicBool,
    entries: AtomicU32,
    /// When a contender entered, and the longest time in which none did.
    last: Mutex<(Option<Instant>, Duration)>,
}

impl Contention {
    fn entered(&self) {
        assert!(!self.is_inside.swap(true, Ordering::AcqRel), "granted twice");
        self.entries.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock().unwrap();
        let now = Instant::now();
        let pause = last.0.replace(now).map_or(Duration::ZERO, |last| now - last);
        last.1 = last.1.max(pause);
    }

    fn left(&self) {
        assert!(self.is_inside.swap(false, Ordering::AcqRel));
    }

    async fn contend(self: Arc<Self>, lock: Lock) {
        let mut last = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let guard = lock.acquire().await.unwrap();
            self.entered();
            assert!(last.replace(guard.token()) < Some(guard.token()), "tokens rise");
            tokio::task::yield_now().await;
            self.left();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn migrations_to_and_fro_under_contention_grant_nothing_twice_and_stop_nobody() {
    let cluster = cluster().await;
    let (slot, from, to) = places(&cluster, "lock").await;
    let contention = Arc::new(Contention::default());
    let mut contenders = JoinSet::new();
    for _ in 0..4 {
        contenders.spawn(contention.clone().contend(locks(&cluster).await.lock("lock")));
    }
    let (mut longest, lateness) = (Duration::ZERO, Lateness::measure());
    for _ in 0..MIGRATIONS / 2 {
        for to in [to, from] {
            let migration = cluster.begin_migration(slot, to).await;
            let start = Instant::now();
            cluster.move_keys(&migration).await;
            cluster.finish_migration(migration).await;
            longest = longest.max(start.elapsed());
        }
    }
    contention.is_over.store(true, Ordering::Relaxed);
    soon("all contenders", contenders.join_all()).await;
    let (entries, pause) =
        (contention.entries.load(Ordering::Relaxed), contention.last.lock().unwrap().1);
    let late = lateness.longest();
    let times = format!("{pause:?} without one, a migration took {longest:?}, late by {late:?}");
    println!("{entries} entries, {times}");
    assert!(entries > 100, "{entries}");
    assert!(pause < longest + PROMPT + late, "{times}");
}

/// Begins to move a slot, with the keys for which `moves` returns `true`.
async fn half_moved(
    cluster: &RedisCluster,
    name: &str,
    moves: impl Fn(&str) -> bool,
) -> SlotMigration {
    let (slot, from, to) = places(cluster, name).await;
    let migration = cluster.begin_migration(slot, to).await;
    let slot = slot.to_string();
    let keys: Vec<String> =
        cluster.node(from).query(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
    let moved: Vec<&str> = keys.iter().map(String::as_str).filter(|key| moves(key)).collect();
    assert!(!moved.is_empty() && moved.len() < keys.len(), "{moved:?} of {keys:?}");
    cluster.move_keys_of(&migration, &moved).await;
    migration
}

/// Accepts a release that succeeds, or is refused during a migration and continues in the
/// background.
async fn released_or_tried_again(releasing: JoinHandle<Result<(), LockError>>) {
    match soon("the release", releasing).await.unwrap() {
        Err(LockError::Backend(error)) => assert!(error.is_retryable(), "{error}"),
        released => released.unwrap(),
    }
}

#[tokio::test]
async fn no_writer_enters_beside_readers_whose_leases_have_not_moved_yet() {
    let cluster = cluster().await;
    let (one, other) = (locks(&cluster).await, locks(&cluster).await);
    let readers = [
        one.rw_lock("rw").read().acquire().await.unwrap(),
        one.rw_lock("rw").read().acquire().await.unwrap(),
    ];
    let is_lease = |key: &str| key.contains("rwlock_timeout");
    let migration = half_moved(&cluster, "rw", |key| !is_lease(key)).await;
    let refused = other.rw_lock("rw").write().acquire_timeout(Duration::from_millis(500)).await;
    assert!(refused.is_err(), "a writer beside readers");

    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
    for reader in readers {
        assert!(reader.is_held());
        reader.release().await.unwrap();
    }
    drop(soon("the writer", other.rw_lock("rw").write().acquire()).await.unwrap());
}

#[tokio::test]
async fn a_release_does_not_end_the_hold_of_a_reader_whose_lease_has_not_moved_yet() {
    let cluster = cluster().await;
    let (one, other) = (locks(&cluster).await, locks(&cluster).await);
    let reader = |name| one.rw_lock("rw").read().owned_by(&Owner::named(name));
    let stays = reader("stays").acquire().await.unwrap();
    let leaves = reader("leaves").acquire().await.unwrap();
    let migration = half_moved(&cluster, "rw", |key| !key.contains("stays")).await;
    let releasing = tokio::spawn(leaves.release());
    let refused = other.rw_lock("rw").write().acquire_timeout(Duration::from_millis(500)).await;
    assert!(refused.is_err(), "a writer beside a reader");

    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
    released_or_tried_again(releasing).await;
    assert!(other.rw_lock("rw").write().try_acquire().await.unwrap().is_none());
    stays.release().await.unwrap();
    drop(soon("the writer", other.rw_lock("rw").write().acquire()).await.unwrap());
}

/// The queue, or a part of it, is still where the slot comes from, and seems to be empty.
#[tokio::test]
async fn a_fair_lock_that_has_moved_before_its_queue_is_released_and_the_waiters_are_told() {
    const QUEUE: &str = "redisson_lock_queue:{fair}";
    let cluster = cluster().await;
    let client = backend(&cluster).connect().await.unwrap();
    let fair = |owner: &str| {
        request("fair", &hold(owner), Mode::Fair).queue(Some(Duration::from_secs(60)))
    };
    for moved in [&["fair"][..], &["fair", QUEUE]] {
        enters(&client, &fair("p:1")).await;
        refused_for(&client, &fair("p:2")).await;
        refused_for(&client, &fair("p:3")).await;
        let waiter = SubscribeRequest::new(name("fair"), hold("p:2")).mode(Mode::Fair);
        let mut wakeups = client.subscribe(&waiter).await.unwrap();
        let migration = half_moved(&cluster, "fair", |key| moved.contains(&key)).await;
        assert_eq!(releases(&client, &fair("p:1")).await, ReleaseOutcome::Released);
        soon("the wake-up", wakeups.woken()).await;
        cluster.move_keys(&migration).await;
        cluster.finish_migration(migration).await;
        assert_eq!(state(&client, "fair").await.waiters(), ["p:2", "p:3"], "{moved:?}");
        for waiter in ["p:2", "p:3"] {
            releases(&client, &fair(waiter)).await;
        }
    }
}

#[tokio::test]
async fn a_fair_hold_of_a_named_owner_is_released_although_only_its_lock_has_moved() {
    let cluster = cluster().await;
    let (one, other) = (locks(&cluster).await, locks(&cluster).await);
    let held = one.fair_lock("fair").owned_by(&Owner::named("me")).acquire().await.unwrap();
    let migration = half_moved(&cluster, "fair", |key| key == "fair").await;
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(PROMPT).await;
    cluster.move_keys(&migration).await;
    cluster.finish_migration(migration).await;
    released_or_tried_again(releasing).await;
    drop(soon("the next", other.fair_lock("fair").acquire()).await.unwrap());
}
