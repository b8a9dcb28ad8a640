//! A store gives the same answers as the memory backend, the reference, to any sequence of
//! requests. Each test generates random sequences, the same in each run, and sends them to both.

use std::{collections::HashMap, mem::Discriminant, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseRequest, RenewRequest,
        ResizeRequest,
    },
};
use lockcore_memory::MemoryBackend;

use crate::{
    new_name,
    stores::{Difference, Differences, Store},
};

/// The number of sequences, on a store that is not slow.
const SEQUENCES: u32 = 60;
const REQUESTS: usize = 60;

/// The tolerance for remaining leases, since both are not asked at exactly the same time.
const TOLERANCE: Duration = Duration::from_secs(20);

pub(crate) fn exclusive_and_fair_locks_do_as_in_memory(store: &Store) {
    agree(store, &[Mode::Exclusive, Mode::Fair]);
}

pub(crate) fn read_write_locks_do_as_in_memory(store: &Store) {
    agree(store, &[Mode::Read, Mode::Read, Mode::Write]);
}

pub(crate) fn leased_permits_do_as_in_memory(store: &Store) {
    let of_four = |count| Mode::permits(count, 4);
    agree(store, &[of_four(1), of_four(2), of_four(3), of_four(5)]);
}

pub(crate) fn plain_permits_do_as_in_memory(store: &Store) {
    let of_four = |count| Mode::plain_permits(count, 4);
    agree(store, &[of_four(1), of_four(2), of_four(4)]);
}

pub(crate) fn kinds_do_as_in_memory(store: &Store) {
    agree(store, &[Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write]);
}

fn agree(store: &Store, modes: &[Mode]) {
    for seed in 1..=SEQUENCES / store.slowness {
        store.runtime.block_on(Sequence::new(seed.into(), modes, store).run());
    }
}

/// A sequence of requests, the same for the same seed.
struct Sequence<'a> {
    random: u64,
    modes: &'a [Mode],
    name: LockName,
    memory: MemoryBackend,
    store: &'a dyn Backend,
    differences: Differences,
    actors: Vec<Actor>,
    tokens: HashMap<HoldId, [FencingToken; 2]>,
    ids: usize,
    /// The requests and answers so far, for the message of a failed test.
    story: Vec<String>,
}

/// A contender, with one outermost acquisition after the other.
#[derive(Clone)]
struct Actor {
    owner: Option<&'static str>,
    hold: HoldId,
    mode: Mode,
}

impl<'a> Sequence<'a> {
    fn new(seed: u64, modes: &'a [Mode], store: &'a Store) -> Self {
        let mut sequence = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            modes,
            name: new_name(),
            memory: MemoryBackend::new(),
            store: &*store.backend,
            differences: store.differences,
            actors: Vec::new(),
            tokens: HashMap::new(),
            ids: 0,
            story: Vec::new(),
        };
        // Where the holds of one named owner share a place, each owner has one hold at a time.
        let share_places = sequence.differences.has(Difference::RedissonQueue);
        let owners: &[_] = match share_places && modes.contains(&Mode::Fair) {
            true => &[None, None, None, Some("job-17"), Some("job-18")],
            false => &[None, None, None, Some("job-17"), Some("job-17"), Some("job-18")],
        };
        for owner in owners.iter().copied() {
            let actor = sequence.actor(owner);
            sequence.actors.push(actor);
        }
        sequence
    }

    /// A number below `end`: xorshift.
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from((self.random >> 16) % end as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len())]
    }

    fn actor(&mut self, owner: Option<&'static str>) -> Actor {
        self.ids += 1;
        // Each from its own client: among the holds of one client, a store may know which is newer.
        let id = format!("client-{}:1", self.ids);
        let hold = owner
            .map_or_else(|| HoldId::unique(id.as_str()), |owner| HoldId::named(owner, id.as_str()));
        Actor { owner, hold, mode: self.one_of(self.modes) }
    }

    async fn run(&mut self) {
        for _ in 0..REQUESTS {
            let number = self.below(self.actors.len());
            let actor = self.actors[number].clone();
            match self.below(20) {
                0..=7 => self.acquire(&actor, 1).await,
                // Only contenders whose last request was granted ask for more.
                8 | 9 if self.tokens.contains_key(&actor.hold) => {
                    let count = u32::try_from(2 + self.below(2)).unwrap();
                    self.acquire(&actor, count).await;
                }
                10 | 11 => self.renew(&actor).await,
                12..=14 => self.release(&actor, 0).await,
                15 => self.release(&actor, 1).await,
                16 => self.resize_or_force().await,
                _ => {
                    if actor.mode == Mode::Fair {
                        self.release(&actor, 0).await;
                    }
                    self.actors[number] = self.actor(actor.owner);
                }
            }
            self.inspect().await;
        }
    }

    async fn acquire(&mut self, actor: &Actor, count: u32) {
        let is_permit = matches!(actor.mode, Mode::Permit { .. });
        let lease = self.lease();
        let queues: &[_] = match self.differences.has(Difference::KeepsPlacesForTheLongestTime) {
            true => &[None, Some(1000), Some(1000)],
            false => &[None, Some(500), Some(1000)],
        };
        let queue = self.one_of(queues).map(Duration::from_secs);
        // Nobody waits where that decides about kinds in one way in memory and in another way here.
        // A hold that grows does not wait.
        let may_wait =
            !self.has_kinds() || !self.differences.has(Difference::WaitersDoNotUseTheName);
        let queue = queue.filter(|_| count == 1 && may_wait);
        let within = self.within(actor);
        let request = AcquireRequest::new(self.name.clone(), actor.hold.clone(), lease)
            .mode(actor.mode)
            .count(if is_permit { 1 } else { count })
            .queue(queue)
            .within(within);
        let answers = [self.memory.acquire(&request).await, self.store.acquire(&request).await];
        self.note(&request, &answers);
        let agree = match &answers {
            [
                Ok(AcquireOutcome::Acquired { token: memory }),
                Ok(AcquireOutcome::Acquired { token: store }),
            ] => {
                let before = self.tokens.insert(actor.hold.clone(), [*memory, *store]);
                // Either both take it for a repetition, or neither does.
                before.is_none_or(|[first, second]| (first == *memory) == (second == *store))
            }
            [Ok(memory), Ok(store)] => {
                self.tokens.remove(&actor.hold);
                self.are_alike(memory, store, &request)
            }
            [memory, store] => kind_of(memory) == kind_of(store),
        };
        self.check(agree);
    }

    fn has_kinds(&self) -> bool {
        self.modes.contains(&Mode::Fair) && self.modes.contains(&Mode::Read)
    }

    /// For a reader, sometimes the hold of a writer.
    fn within(&mut self, actor: &Actor) -> Option<HoldId> {
        let number = self.below(2 * self.actors.len());
        let writer = self.actors.get(number).filter(|writer| writer.mode == Mode::Write)?;
        (actor.mode == Mode::Read).then(|| writer.hold.clone())
    }

    async fn renew(&mut self, actor: &Actor) {
        let lease = self.lease();
        let request =
            RenewRequest::new(self.name.clone(), actor.hold.clone(), lease).mode(actor.mode);
        let requests = [request];
        let answers = [
            self.memory.renew(&requests).await.unwrap(),
            self.store.renew(&requests).await.unwrap(),
        ];
        self.note(&requests, &answers);
        self.check(format!("{:?}", answers[0]) == format!("{:?}", answers[1]));
    }

    async fn release(&mut self, actor: &Actor, remaining: u32) {
        let is_permit = matches!(actor.mode, Mode::Permit { .. });
        let request = ReleaseRequest::new(self.name.clone(), actor.hold.clone())
            .mode(actor.mode)
            .remaining(if is_permit { 0 } else { remaining });
        let answers = [self.memory.release(&request).await, self.store.release(&request).await];
        self.note(&request, &answers);
        if request.remaining == 0 {
            self.tokens.remove(&actor.hold);
        }
        let [memory, store] = answers.map(Result::unwrap);
        self.check(memory == store);
    }

    async fn resize_or_force(&mut self) {
        let total = u32::try_from(self.below(7)).unwrap();
        if matches!(self.modes[0], Mode::Permit { plain: false, .. }) && total > 0 {
            let answers = [
                self.memory.resize(&ResizeRequest::new(self.name.clone(), total)).await,
                self.store.resize(&ResizeRequest::new(self.name.clone(), total)).await,
            ];
            self.note(&format!("resize to {total}"), &answers);
            self.check(answers.iter().all(Result::is_ok));
        } else {
            let answers = [
                self.memory.force_release(&self.name).await,
                self.store.force_release(&self.name).await,
            ];
            self.note(&"force", &answers);
            self.tokens.clear();
            let [memory, store] = answers.map(Result::unwrap);
            self.check(memory == store);
        }
    }

    async fn inspect(&mut self) {
        let states = [
            self.memory.inspect(&self.name).await.unwrap(),
            self.store.inspect(&self.name).await.unwrap(),
        ];
        let agree = self.holders(&states[0]) == self.holders(&states[1])
            && self.waiters(&states[0]) == self.waiters(&states[1])
            && is_close(states[0].remaining(), states[1].remaining())
            && self.permits_agree(&states[0], &states[1]);
        self.note(&"inspect", &states);
        self.check(agree);
    }

    fn permits_agree(&self, memory: &LockState, store: &LockState) -> bool {
        let is_idle = memory.limit().is_none() && memory.available().is_none();
        if is_idle && self.differences.has(Difference::KeepsIdleSemaphores) {
            return true;
        }
        let is_plain =
            self.modes.iter().any(|mode| matches!(mode, Mode::Permit { plain: true, .. }));
        let is_unknown = is_plain
            && self.differences.has(Difference::CountsNoPlainPermits)
            && store.limit().is_none();
        (is_unknown || store.limit() == memory.limit()) && store.available() == memory.available()
    }

    fn are_alike(
        &self,
        memory: &AcquireOutcome,
        store: &AcquireOutcome,
        request: &AcquireRequest,
    ) -> bool {
        match (memory, store) {
            (
                AcquireOutcome::Held { remaining: memory },
                AcquireOutcome::Held { remaining: store },
            ) => {
                let has_other_times =
                    request.mode == Mode::Fair && self.differences.has(Difference::RedissonQueue);
                has_other_times || is_close(*memory, *store)
            }
            (AcquireOutcome::TooMany { .. }, AcquireOutcome::Held { .. }) => {
                matches!(request.mode, Mode::Permit { plain: true, .. })
                    && self.differences.has(Difference::CountsNoPlainPermits)
            }
            (memory, store) => memory == store,
        }
    }

    /// The waiters: those of a fair lock in their order, and writers in any. A queue of Redisson has
    /// others.
    fn waiters<'s>(&self, state: &'s LockState) -> Vec<&'s String> {
        let mut waiters: Vec<_> = state.waiters().iter().collect();
        if !self.modes.contains(&Mode::Fair) {
            waiters.sort();
        } else if self.differences.has(Difference::RedissonQueue) {
            waiters.clear();
        }
        waiters
    }

    /// The holders, in no particular order.
    fn holders(&self, state: &LockState) -> Vec<(String, String, u32)> {
        let mode = |mode: Mode| match mode {
            Mode::Fair if self.differences.has(Difference::ReportsFairAsExclusive) => {
                Mode::Exclusive.to_string()
            }
            Mode::Permit { count, .. } => format!("{count} permits"),
            mode => mode.to_string(),
        };
        let holder =
            |holder: &Holder| (holder.owner().into(), mode(holder.mode()), holder.hold_count());
        let mut holders: Vec<_> = state.holders().iter().map(holder).collect();
        holders.sort();
        holders
    }

    fn lease(&mut self) -> Duration {
        let seconds = self.one_of(&[300, 600, 900]);
        Duration::from_secs(seconds)
    }

    fn note(&mut self, asked: &dyn std::fmt::Debug, answers: &dyn std::fmt::Debug) {
        self.story.push(format!("{asked:?}\n    {answers:?}"));
    }

    fn check(&self, agree: bool) {
        let last = self.story.len().saturating_sub(60);
        assert!(
            agree,
            "memory and the store disagree about the last of these:\n{}",
            self.story[last..].join("\n")
        );
    }
}

fn kind_of(
    answer: &Result<AcquireOutcome, BackendError>,
) -> Result<Discriminant<AcquireOutcome>, BackendErrorKind> {
    answer.as_ref().map(std::mem::discriminant).map_err(BackendError::kind)
}

fn is_close(memory: Option<Duration>, store: Option<Duration>) -> bool {
    match (memory, store) {
        (Some(memory), Some(store)) => memory.abs_diff(store) < TOLERANCE,
        (memory, store) => memory == store,
    }
}
