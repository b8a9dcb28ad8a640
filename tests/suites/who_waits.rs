//! Tests of `Locks::waits`, which derives who waits for whom from the records of clients.

use std::{future::Future, time::Duration};

use arbtest::arbitrary::Unstructured;
use lockcore::{
    BackendErrorKind, ClientDescription, CycleKind, Lock, LockError, LockGuard, Locks, Owner,
    WaitCycle, WaitLink,
    backend::{Backend, Directory, Start},
};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    clients::{SECOND, two_clients},
    log::Log,
};

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn directory(store: &MemoryBackend) -> &dyn Directory {
    store.directory().unwrap()
}

/// The records at the store.
pub(crate) async fn records(store: &MemoryBackend) -> Vec<(String, String)> {
    directory(store).clients(&Start::Beginning).await.unwrap().entries
}

/// A hold, with its owner.
struct Holding(Owner, LockGuard);

async fn holds(lock: Lock) -> Holding {
    let owner = Owner::new();
    let guard = lock.owned_by(&owner).acquire().await.unwrap();
    Holding(owner, guard)
}

impl Holding {
    /// A task whose owner has the hold and waits for another one.
    fn and_waits(self, wanted: Lock) -> JoinHandle<()> {
        let Self(owner, guard) = self;
        waits_with(guard, wanted.owned_by(&owner).acquire())
    }
}

pub(crate) async fn holds_and_waits(held: Lock, wanted: Lock) -> JoinHandle<()> {
    holds(held).await.and_waits(wanted)
}

fn waits_with(
    guard: LockGuard,
    acquiring: impl Future<Output = Result<LockGuard, LockError>> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let _second = acquiring.await;
        drop(guard);
    })
}

/// The cycles that a client reports, once there are any, and how long that took.
pub(crate) async fn reported(locks: &Locks) -> (Vec<WaitCycle>, Duration) {
    let start = Instant::now();
    while start.elapsed() < 20 * SECOND {
        let waits = locks.waits().await.unwrap();
        if !waits.cycles().is_empty() {
            return (waits.cycles().to_vec(), start.elapsed());
        }
        tokio::time::sleep(100 * MS).await;
    }
    (Vec::new(), start.elapsed())
}

fn locks_of(cycle: &WaitCycle) -> Vec<&str> {
    cycle.links().iter().map(|link| link.waiting().lock()).collect()
}

pub(crate) fn kinds(cycles: &[WaitCycle]) -> Vec<CycleKind> {
    cycles.iter().map(WaitCycle::kind).collect()
}

// ---- deadlocks

/// The other task may get what it waits for, and then release the lock.
#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_in_two_tasks_is_in_no_certain_deadlock() {
    let (_, here, there) = two_clients();
    let busy = holds(there.lock("busy")).await;
    let job = holds(here.lock("a")).await;
    let other_task = tokio::spawn(here.lock("busy").owned_by(&job.0).acquire());
    let other = holds(there.lock("b")).await;
    let waiting = [job.and_waits(here.lock("b")), other.and_waits(there.lock("a"))];
    let (cycles, _) = reported(&here).await;
    assert_eq!(kinds(&cycles), [CycleKind::Probable]);
    other_task.abort();
    let _ = other_task.await;
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(kinds(&reported(&here).await.0), [CycleKind::Deadlock], "it waits once now");
    waiting.iter().for_each(JoinHandle::abort);
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn three_owners_in_three_clients_are_reported_within_five_seconds() {
    let store = MemoryBackend::new();
    let client = |program: &str| {
        let described = ClientDescription::new().host("host-1").program(program);
        Locks::builder(store.clone()).namespace("shop:").description(described).build().unwrap()
    };
    let (a, b, c, observer) = (client("a"), client("b"), client("c"), client("observer"));
    let (x, y, z) = (a.lock("x"), b.lock("y"), c.fair_lock("z"));
    let (x, y, z) = (holds(x).await, holds(y).await, holds(z).await);
    let _first = x.and_waits(a.lock("y"));
    let _second = y.and_waits(b.lock("z"));
    tokio::time::sleep(10 * SECOND).await;
    assert!(observer.waits().await.unwrap().cycles().is_empty(), "nothing is closed yet");

    let _third = z.and_waits(c.lock("x"));
    let (cycles, after) = reported(&observer).await;
    assert!(after <= 5 * SECOND, "{after:?}");
    assert_eq!(kinds(&cycles), [CycleKind::Deadlock]);
    let mut programs: Vec<&str> = Vec::new();
    for link in cycles[0].links() {
        let (waiting, hold) = (link.waiting(), link.blocked_by().unwrap());
        let client = waiting.client();
        programs.push(client.program());
        assert_eq!((client.host(), client.pid()), ("host-1", std::process::id()));
        assert!(waiting.site().contains("who_waits.rs:"), "{}", waiting.site());
        assert!(hold.site().contains("who_waits.rs:"), "{}", hold.site());
        assert_eq!(waiting.lock(), hold.lock(), "the full name");
        assert!(waiting.waited() > SECOND && hold.is_renewed() && !hold.is_by_task());
        assert!(waiting.owner().starts_with('#') && !waiting.is_limited());
    }
    programs.sort_unstable();
    assert_eq!(programs, ["a", "b", "c"]);
    let mut names = locks_of(&cycles[0]);
    names.sort_unstable();
    assert_eq!(names, ["shop:x", "shop:y", "shop:z"]);
    let text = cycles[0].to_string();
    assert!(text.starts_with("a deadlock: owner #") && text.contains("`shop:x`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_on_the_wire_leads_to_its_client() {
    let (_, locks, other) = two_clients();
    let guard = locks.lock("a").acquire().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let waits = other.waits().await.unwrap();
    let wire = guard.wire_owner();
    let holder = waits.client_of(wire).unwrap();
    assert!(wire.starts_with(holder.id()) && !holder.host().is_empty());
    assert_eq!(holder.version(), env!("CARGO_PKG_VERSION"));
    assert!(waits.client_of("somebody:1").is_none() && waits.client_of("job").is_none());
    assert_eq!(waits.clients().len(), 2, "with the one that asks");
}

#[tokio::test(start_paused = true)]
async fn readers_and_writers_that_wait_for_each_other_are_reported() {
    for (held, wanted, is_deadlock) in [
        ("read", "write", true),
        ("write", "read", true),
        ("write", "write", true),
        ("read", "read", false),
    ] {
        let (_, a, b) = two_clients();
        let side = |locks: &Locks, name: &str, side: &str| match side {
            "read" => locks.rw_lock(name).read(),
            _ => locks.rw_lock(name).write(),
        };
        let _one = holds_and_waits(side(&a, "x", held), side(&a, "y", wanted)).await;
        let _two = holds_and_waits(side(&b, "y", held), side(&b, "x", wanted)).await;
        let (cycles, _) = reported(&a).await;
        let expected: &[CycleKind] = if is_deadlock { &[CycleKind::Deadlock] } else { &[] };
        assert_eq!(kinds(&cycles), expected, "{held}, {wanted}");
    }
}

/// The usual mistake: two tasks without scopes, so that each acquisition has its own owner.
#[tokio::test(start_paused = true)]
async fn tasks_with_fresh_owners_are_probably_a_deadlock() {
    let (_, a, b) = two_clients();
    let both = |locks: &Locks, first: &str, second: &str| {
        let (first, second) = (locks.lock(first), locks.lock(second));
        tokio::spawn(async move {
            let _first = first.acquire().await;
            tokio::time::sleep(SECOND).await;
            let _second = second.acquire().await;
        })
    };
    let _tasks = (both(&a, "x", "y"), both(&b, "y", "x"));
    let (cycles, after) = reported(&b).await;
    assert_eq!(kinds(&cycles), [CycleKind::Probable]);
    assert!(cycles[0].links().iter().all(|link| link.blocked_by().unwrap().is_by_task()));
    assert!(after <= 6 * SECOND, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_named_owner_is_the_same_in_all_clients() {
    let (_, a, b) = two_clients();
    let job = Owner::named("job-7");
    let held = a.lock("x").owned_by(&job).acquire().await.unwrap();
    let _other = b.lock("elsewhere").acquire().await.unwrap();
    // The owner holds in one client and waits for something in the other one.
    let _waits_here = waits_with(held, a.lock("elsewhere").owned_by(&job).acquire());
    let _waits_there = tokio::spawn(b.lock("y").owned_by(&job).acquire());
    let (cycles, _) = reported(&a).await;
    assert!(cycles.is_empty(), "`job-7` waits for nobody who waits for it");

    let (_, a, b) = two_clients();
    let held = a.lock("x").owned_by(&job).acquire().await.unwrap();
    let _elsewhere = b.lock("elsewhere").acquire().await.unwrap();
    let _one = holds_and_waits(b.lock("y"), b.lock("x")).await;
    let _waits_here = waits_with(held, a.lock("elsewhere").owned_by(&job).acquire());
    let _waits_there = tokio::spawn(b.lock("y").owned_by(&job).acquire());
    let (cycles, _) = reported(&a).await;
    assert_eq!(kinds(&cycles), [CycleKind::Probable], "it may get what it waits for elsewhere");
    let owners = cycles[0].links().iter().map(|link| link.waiting());
    assert!(owners.filter(|waiting| waiting.is_named()).all(|wait| wait.owner() == "job-7"));
}

/// Each of its waits is over before anybody could see it twice.
#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_elsewhere_again_and_again_is_in_no_certain_deadlock() {
    let (_, a, b) = two_clients();
    let job = Owner::named("job-7");
    let held = a.lock("x").owned_by(&job).acquire().await.unwrap();
    let _elsewhere = b.lock("elsewhere").acquire().await.unwrap();
    let _one = holds_and_waits(b.lock("y"), b.lock("x")).await;
    let _waits_there = waits_with(held, a.lock("y").owned_by(&job).acquire());
    let elsewhere = a.lock("elsewhere").owned_by(&job);
    let _waits_here = tokio::spawn(async move {
        loop {
            let _ = elsewhere.acquire_timeout(4 * SECOND).await;
        }
    });
    let (mut cycles, _) = reported(&b).await;
    for step in 0..10 {
        assert_eq!(kinds(&cycles), [CycleKind::Probable], "step {step}");
        tokio::time::sleep(370 * MS).await;
        cycles = b.waits().await.unwrap().cycles().to_vec();
    }
}

/// A reader is kept out by a writer, which waits for another reader, which waits for the first one.
#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_that_waits_is_reported() {
    for is_limited in [false, true] {
        let (store, a, b) = two_clients();
        let c = Locks::new(store);
        let (reads, holds_m) = (holds(a.rw_lock("l").read()).await, holds(b.lock("m")).await);
        let writer = c.rw_lock("l").write();
        let _writes = tokio::spawn(async move {
            match is_limited {
                true => writer.acquire_timeout(60 * SECOND).await,
                false => writer.acquire().await,
            }
        });
        tokio::time::sleep(100 * MS).await;
        let _reads = reads.and_waits(a.lock("m"));
        let _behind = holds_m.and_waits(b.rw_lock("l").read());
        let (cycles, after) = reported(&a).await;
        let kind = if is_limited { CycleKind::Passing } else { CycleKind::Deadlock };
        assert_eq!(kinds(&cycles), [kind]);
        assert!(after <= 5 * SECOND, "{after:?}");
        let links = cycles[0].links();
        let modes =
            |link: &WaitLink| (link.waiting().mode().to_owned(), link.blocked_by().is_some());
        let modes: Vec<_> = links.iter().map(modes).collect();
        for mode in [("exclusive", true), ("read", false), ("write", true)] {
            assert!(modes.contains(&(mode.0.to_owned(), mode.1)), "{modes:?}");
        }
        assert!(cycles[0].to_string().contains("who waits to write"), "{}", cycles[0]);
    }
}

/// The same in one client, where the writer has a place in the local queue.
#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_of_its_own_client_is_warned_of() {
    let (log, _log) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let lock = locks.rw_lock("l");
    let (reads, other) = (holds(lock.read()).await, holds(locks.lock("m")).await);
    let writing = tokio::spawn(lock.write().acquire());
    tokio::time::sleep(100 * MS).await;
    let _reads = reads.and_waits(locks.lock("m"));
    let behind = other.and_waits(lock.read());
    let (cycles, _) = reported(&locks).await;
    assert_eq!(kinds(&cycles), [CycleKind::Deadlock]);
    assert!(log.line_with("wait for each other").contains("who waits to write"));
    writing.abort();
    tokio::time::timeout(SECOND, behind).await.expect("nothing else is in the way").unwrap();
}

/// Only 32 holds were recorded with a wait, and the relevant one might be missing.
#[tokio::test(start_paused = true)]
async fn the_hold_that_matters_may_be_one_of_many() {
    let (_, a, b) = two_clients();
    let owner = Owner::new();
    let mut held = Vec::new();
    for at in 0..100 {
        held.push(a.lock(format!("x{at}")).owned_by(&owner).acquire().await.unwrap());
        tokio::time::sleep(MS).await;
    }
    let _other = holds_and_waits(b.lock("y"), b.lock("x99")).await;
    let _waiting = tokio::spawn(a.lock("y").owned_by(&owner).acquire());
    let (cycles, _) = reported(&b).await;
    assert_eq!(kinds(&cycles), [CycleKind::Deadlock]);
}

/// Each wait is in one cycle only, and a wait that the store refutes was kept in its cycle until
/// the end.
#[tokio::test(start_paused = true)]
async fn records_that_the_store_refutes_hide_no_deadlock() {
    let (store, a, b) = two_clients();
    let _one = holds_and_waits(a.lock("x"), a.lock("y")).await;
    let _two = holds_and_waits(b.lock("y"), b.lock("x")).await;
    // A waiter for `y` waits for each of these, which come first and are in shorter cycles.
    for at in 0..70 {
        let hold = |lock: &str| {
            format!(r#"{{"lock":"{lock}","mode":"exclusive","wire":"gone:{at}","renewed":true}}"#)
        };
        let waits = format!(
            r#"{{"number":1,"lock":"x","mode":"exclusive","holds":[{}]}},
               {{"number":2,"lock":"z{at}","mode":"exclusive","holds":[{}]}}"#,
            hold("y"),
            hold(&format!("z{at}")),
        );
        let forged = format!(r#"{{"v":1,"looks":1,"waits":[{waits}]}}"#);
        let id = format!("-{at}");
        directory(&store).put_client(&id, &forged, 60 * SECOND).await.unwrap();
    }
    let (cycles, after) = reported(&a).await;
    assert_eq!(kinds(&cycles), [CycleKind::Deadlock]);
    assert!(after <= 6 * SECOND, "{after:?}");
    let mut names = locks_of(&cycles[0]);
    names.sort_unstable();
    assert_eq!(names, ["x", "y"]);
    assert!(cycles[0].links().iter().all(|link| !link.waiting().client().id().starts_with('-')));
}

// ---- what is none

/// A client that holds `x`, and whose owner waits for `y`, while `b` holds `y` and waits for `x`.
async fn waits_for_each_other(a: &Locks, b: &Locks) -> (LockGuard, JoinHandle<()>, JoinHandle<()>) {
    let job = Owner::named("job");
    let guard = a.lock("x").owned_by(&job).acquire().await.unwrap();
    let wanted = a.lock("y").owned_by(&job).acquire();
    let waiter = tokio::spawn(async move { drop(wanted.await) });
    let other = holds_and_waits(b.lock("y"), b.lock("x")).await;
    tokio::time::sleep(4 * SECOND).await;
    (guard, waiter, other)
}

/// Two looks at a record that was not rewritten in between saw the same.
#[tokio::test(start_paused = true)]
async fn a_wait_that_nobody_tells_of_any_more_is_no_deadlock() {
    let store = MemoryBackend::new();
    let backend = Faulty::new(store.clone());
    let faults = backend.faults();
    let (a, b) = (Locks::new(backend), Locks::new(store));
    let (guard, waiter, _other) = waits_for_each_other(&a, &b).await;
    faults.every(Op::PutClient, Fault::Delay(300 * MS));
    assert_eq!(kinds(b.waits().await.unwrap().cycles()), [CycleKind::Deadlock], "a slow store");
    faults.every(Op::PutClient, Fault::Refuse(BackendErrorKind::Connection));
    waiter.abort();
    tokio::time::sleep(400 * MS).await;
    let start = Instant::now();
    let waits = b.waits().await.unwrap();
    assert!(start.elapsed() <= 3 * SECOND, "{:?}", start.elapsed());
    assert_eq!(waits.waiting().len(), 2, "it is still in the record");
    assert!(guard.is_held());
    assert_eq!(kinds(waits.cycles()), []);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_restarted_does_not_wait_for_what_it_waited_for_before() {
    let (store, a, b) = two_clients();
    let (_guard, _waiter, _other) = waits_for_each_other(&a, &b).await;
    a.abandon();
    let again = Locks::new(store);
    let job = Owner::named("job");
    let _guard = again.lock("x").owned_by(&job).acquire().await.unwrap();
    let _elsewhere = b.lock("elsewhere").acquire().await.unwrap();
    let _waits = tokio::spawn(again.lock("elsewhere").owned_by(&job).acquire());
    tokio::time::sleep(4 * SECOND).await;
    let waits = b.waits().await.unwrap();
    let of_job = waits.waiting().iter().filter(|waiting| waiting.owner() == "job");
    assert_eq!(of_job.count(), 2, "the record of the old process is still there");
    assert_eq!(kinds(waits.cycles()), []);
}

#[tokio::test(start_paused = true)]
async fn what_ends_by_itself_is_no_deadlock() {
    let (_, a, b) = two_clients();
    let (one, two) = (Owner::new(), Owner::new());
    let held = a.lock("x").owned_by(&one).acquire().await.unwrap();
    let limited = a.lock("y").owned_by(&one).acquire_timeout(60 * SECOND);
    let _waits = waits_with(held, limited);
    let _other = holds_and_waits(b.lock("y").owned_by(&two), b.lock("x").owned_by(&two)).await;
    let (cycles, _) = reported(&a).await;
    assert_eq!(kinds(&cycles), [CycleKind::Passing], "a time limit");
    assert_eq!(cycles[0].links().iter().filter(|link| link.waiting().is_limited()).count(), 1);

    let (_, a, b) = two_clients();
    let _one = holds_and_waits(a.lock("x").lease(60 * SECOND), a.lock("y")).await;
    let _two = holds_and_waits(b.lock("y"), b.lock("x")).await;
    let (cycles, _) = reported(&a).await;
    assert_eq!(kinds(&cycles), [CycleKind::Passing], "a fixed lease");
}

/// A cycle that is reported unless `ends` ends it between the two looks.
async fn ended_between_the_looks(ends: impl FnOnce(&JoinHandle<()>, LockGuard)) -> usize {
    let (_, a, b) = two_clients();
    let owner = Owner::new();
    let guard = a.lock("x").owned_by(&owner).acquire().await.unwrap();
    let wanted = a.lock("y").owned_by(&owner).acquire();
    let waiter = tokio::spawn(async move {
        let _second = wanted.await;
        std::future::pending::<()>().await;
    });
    let _other = holds_and_waits(b.lock("y"), b.lock("x")).await;
    tokio::time::sleep(4 * SECOND).await;
    let looking = tokio::spawn({
        let observer = b.clone();
        async move { observer.waits().await.unwrap().cycles().len() }
    });
    tokio::time::sleep(100 * MS).await;
    assert!(!looking.is_finished(), "something like a cycle is looked at twice");
    ends(&waiter, guard);
    let cycles = looking.await.unwrap();
    waiter.abort();
    cycles
}

#[tokio::test(start_paused = true)]
async fn a_hold_or_a_wait_that_ends_between_the_two_looks_is_no_deadlock() {
    let keep = |_: &JoinHandle<()>, guard: LockGuard| std::mem::forget(guard);
    assert_eq!(ended_between_the_looks(keep).await, 1, "otherwise it is one");
    assert_eq!(ended_between_the_looks(|_, guard| drop(guard)).await, 0, "a hold");
    let gives_up = |waiter: &JoinHandle<()>, guard| {
        waiter.abort();
        std::mem::forget(guard);
    };
    assert_eq!(ended_between_the_looks(gives_up).await, 0, "a wait");
}

#[tokio::test(start_paused = true)]
async fn without_anything_like_a_cycle_the_report_comes_at_once() {
    // Each client has Unix time from the host's clock, which goes on between the two.
    let real = std::time::Instant::now();
    let (_, a, b) = two_clients();
    let apart = real.elapsed() + MS;
    let _held = a.lock("x").acquire().await.unwrap();
    let _waiting = tokio::spawn(b.lock("x").acquire());
    tokio::time::sleep(3 * SECOND).await;
    let start = Instant::now();
    let waits = a.waits().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((waits.waiting().len(), waits.cycles().len()), (1, 0));
    let waiting = &waits.waiting()[0];
    assert_eq!((waiting.lock(), waiting.mode(), waiting.holds().len()), ("x", "exclusive", 0));
    let waited = waiting.waited();
    assert!(waited.abs_diff(3 * SECOND) <= apart, "{waited:?}, {apart:?}");
}

/// Tasks that acquire in the same order, in all modes and ways, often wait for each other but never
/// in a cycle.
#[tokio::test(start_paused = true)]
async fn a_thousand_runs_without_a_deadlock_are_no_alarm() {
    let (log, _log) = Log::start();
    let mut waited = 0;
    for run in 0..1000_u64 {
        let seed: Vec<u8> = (0..400_u64)
            .map(|at| {
                ((run + 1).wrapping_mul(at + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
            })
            .collect();
        waited += run_in_order(&mut Unstructured::new(&seed)).await;
    }
    assert!(waited > 1000, "only {waited} long waits were seen");
    assert_eq!(log.lines_with("wait for each other"), Vec::<String>::new());
}

async fn run_in_order(u: &mut Unstructured<'_>) -> usize {
    let store = MemoryBackend::new();
    let clients = [(); 3].map(|()| Locks::new(store.clone()));
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let locks = clients[u.choose_index(3).unwrap()].clone();
        let mut plan = Vec::new();
        for name in ["a", "b", "c", "d"] {
            if !u.ratio(1, 3).unwrap() {
                let lock = match name {
                    "a" if u.arbitrary().unwrap() => locks.fair_lock("a"),
                    "a" | "c" => locks.lock(name),
                    "b" if u.arbitrary().unwrap() => locks.rw_lock("b").read(),
                    "b" => locks.rw_lock("b").write(),
                    _ => locks.semaphore("d", 2).permits(u.int_in_range(1..=2).unwrap()),
                };
                let lock = if u.ratio(1, 8).unwrap() { lock.lease(3 * SECOND) } else { lock };
                let limit = u.ratio(1, 4).unwrap().then_some(4 * SECOND);
                plan.push((lock, limit, u.int_in_range(0..=2500).unwrap() * MS));
            }
        }
        let work = async move {
            let mut guards = Vec::new();
            for (lock, limit, pause) in plan {
                let acquired = match limit {
                    Some(limit) => lock.acquire_timeout(limit).await,
                    None => lock.acquire().await,
                };
                guards.extend(acquired.ok());
                tokio::time::sleep(pause).await;
            }
        };
        let is_scoped = u.arbitrary().unwrap();
        let owner = Owner::new();
        tasks.push(tokio::spawn(async move {
            if is_scoped { owner.scope(work).await } else { work.await }
        }));
    }
    let mut long = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        let waits = clients[0].waits().await.unwrap();
        assert!(waits.cycles().is_empty(), "{}", waits.cycles()[0]);
        long += waits.waiting().len();
        tokio::time::sleep(900 * MS).await;
    }
    long
}

// ---- inside one client

#[tokio::test(start_paused = true)]
async fn a_cycle_inside_one_client_is_warned_of_once() {
    let (log, _log) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let (x, y) = (holds(locks.lock("x")).await, holds(locks.lock("y")).await);
    let _one = x.and_waits(locks.lock("y"));
    let _two = holds_and_waits(locks.rw_lock("z").write(), locks.lock("x")).await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(log.lines_with("wait for each other"), Vec::<String>::new());
    let _three = y.and_waits(locks.rw_lock("z").read());
    tokio::time::sleep(4 * SECOND).await;
    let line = log.line_with("wait for each other");
    assert!(line.contains("WARN") && line.contains("owner #"), "{line}");
    for name in ["`x`", "`y`", "`z`", "who_waits.rs:"] {
        assert!(line.contains(name), "{name}: {line}");
    }
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(log.lines_with("wait for each other").len(), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn a_cycle_that_ends_by_itself_is_not_warned_of() {
    let (log, _log) = Log::start();
    let locks = Locks::new(MemoryBackend::new());
    let owner = Owner::new();
    let held = locks.lock("x").owned_by(&owner).acquire().await.unwrap();
    let _limited = waits_with(held, locks.lock("y").owned_by(&owner).acquire_timeout(30 * SECOND));
    let other = holds_and_waits(locks.lock("y"), locks.lock("x")).await;
    tokio::time::sleep(40 * SECOND).await;
    assert!(other.is_finished(), "the time limit has ended it");
    assert_eq!(log.lines_with("wait for each other"), Vec::<String>::new());
}

/// A waiter that is not first has no timer and no request, so only the check of the background task
/// sees it, which must work after an idle time as well.
#[tokio::test(start_paused = true)]
async fn whoever_waits_after_a_pause_is_seen_again() {
    let (store, a, b) = two_clients();
    for round in 0..3 {
        let held = a.lock("x").acquire().await.unwrap();
        let waiting = tokio::spawn(b.lock("x").acquire());
        tokio::time::sleep(3 * SECOND).await;
        let waits = Locks::new(store.clone()).waits().await.unwrap();
        assert_eq!(waits.waiting().len(), 1, "round {round}");
        drop(held);
        drop(waiting.await.unwrap().unwrap());
        tokio::time::sleep(200 * SECOND).await;
        assert_eq!(records(&store).await, [], "round {round}");
    }
}
