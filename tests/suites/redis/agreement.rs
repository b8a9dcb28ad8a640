//! Redis gives the same answers as the memory backend, the reference, to any sequence of requests.
//! Each test generates random sequences, the same in each run, and sends them to both.

use std::{collections::HashMap, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseRequest, RenewRequest,
        ResizeRequest,
    },
};
use lockcore_memory::MemoryBackend;
use lockcore_redis::RedisBackend;
use lockcore_testkit::RedisServer;

use crate::support::connect;

const SEQUENCES: u64 = 60;
const REQUESTS: usize = 60;

/// The tolerance for remaining leases, since both are not asked at exactly the same time.
const TOLERANCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn on_exclusive_and_fair_locks() {
    agree(&[Mode::Exclusive, Mode::Fair]).await;
}

#[tokio::test]
async fn on_read_write_locks() {
    agree(&[Mode::Read, Mode::Read, Mode::Write]).await;
}

#[tokio::test]
async fn on_leased_permits() {
    agree(&[Mode::permits(1, 4), Mode::permits(2, 4), Mode::permits(3, 4), Mode::permits(5, 4)])
        .await;
}

#[tokio::test]
async fn on_plain_permits() {
    agree(&[Mode::plain_permits(1, 4), Mode::plain_permits(2, 4), Mode::plain_permits(4, 4)]).await;
}

#[tokio::test]
async fn on_kinds() {
    agree(&[Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write]).await;
}

async fn agree(modes: &[Mode]) {
    let server = RedisServer::start();
    let redis = connect(&server).await;
    for seed in 1..=SEQUENCES {
        Sequence::new(seed, modes, &redis).run().await;
    }
}

/// A sequence of requests, the same for the same seed.
struct Sequence<'a> {
    random: u64,
    modes: &'a [Mode],
    name: LockName,
    memory: MemoryBackend,
    redis: &'a RedisBackend,
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
    fn new(seed: u64, modes: &'a [Mode], redis: &'a RedisBackend) -> Self {
        let mut sequence = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            modes,
            name: LockName::new(format!("sequence:{seed}")).unwrap(),
            memory: MemoryBackend::new(),
            redis,
            actors: Vec::new(),
            tokens: HashMap::new(),
            ids: 0,
            story: Vec::new(),
        };
        // On Redis, the holds of one named owner share a place in the queue of a fair lock, so each
        // has one at a time.
        let owners: &[_] = match modes.contains(&Mode::Fair) {
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
        // Each from its own client: among the holds of one client, Redis knows which is newer.
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
        let queue =
            self.one_of(&[None, Some(Duration::from_secs(500)), Some(Duration::from_secs(1000))]);
        // A waiter has the name in use in memory, but not on Redis. A hold that grows does not
        // wait.
        let queue = queue.filter(|_| count == 1 && !self.has_kinds());
        let within = self.within(actor);
        let request = AcquireRequest::new(self.name.clone(), actor.hold.clone(), lease)
            .mode(actor.mode)
            .count(if is_permit { 1 } else { count })
            .queue(queue)
            .within(within);
        let answers = [self.memory.acquire(&request).await, self.redis.acquire(&request).await];
        self.note(&request, &answers);
        let agree = match &answers {
            [
                Ok(AcquireOutcome::Acquired { token: memory }),
                Ok(AcquireOutcome::Acquired { token: redis }),
            ] => {
                let before = self.tokens.insert(actor.hold.clone(), [*memory, *redis]);
                // Either both take it for a repetition, or neither does.
                before.is_none_or(|[first, second]| (first == *memory) == (second == *redis))
            }
            [Ok(memory), Ok(redis)] => {
                self.tokens.remove(&actor.hold);
                are_alike(memory, redis, &request)
            }
            [memory, redis] => kind_of(memory) == kind_of(redis),
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
            self.redis.renew(&requests).await.unwrap(),
        ];
        self.note(&requests, &answers);
        self.check(format!("{:?}", answers[0]) == format!("{:?}", answers[1]));
    }

    async fn release(&mut self, actor: &Actor, remaining: u32) {
        let is_permit = matches!(actor.mode, Mode::Permit { .. });
        let request = ReleaseRequest::new(self.name.clone(), actor.hold.clone())
            .mode(actor.mode)
            .remaining(if is_permit { 0 } else { remaining });
        let answers = [self.memory.release(&request).await, self.redis.release(&request).await];
        self.note(&request, &answers);
        if request.remaining == 0 {
            self.tokens.remove(&actor.hold);
        }
        let agree = match &answers {
            [Ok(memory), Ok(redis)] => memory == redis,
            // The release of a hold that does not exist, in a mode that the name is not used in.
            [memory, _] => matches!(memory, Ok(lockcore::backend::ReleaseOutcome::NotHeld)),
        };
        self.check(agree);
    }

    async fn resize_or_force(&mut self) {
        let total = u32::try_from(self.below(7)).unwrap();
        if matches!(self.modes[0], Mode::Permit { plain: false, .. }) && total > 0 {
            let answers = [
                self.memory.resize(&ResizeRequest::new(self.name.clone(), total)).await,
                self.redis.resize(&ResizeRequest::new(self.name.clone(), total)).await,
            ];
            self.note(&format!("resize to {total}"), &answers);
            self.check(answers.iter().all(Result::is_ok));
        } else {
            let answers = [
                self.memory.force_release(&self.name).await,
                self.redis.force_release(&self.name).await,
            ];
            self.note(&"force", &answers);
            self.tokens.clear();
            let [memory, redis] = answers.map(Result::unwrap);
            self.check(memory == redis);
        }
    }

    async fn inspect(&mut self) {
        let states = [
            self.memory.inspect(&self.name).await.unwrap(),
            self.redis.inspect(&self.name).await.unwrap(),
        ];
        let agree = holders(&states[0]) == holders(&states[1])
            && (self.modes.contains(&Mode::Fair) || waiters(&states[0]) == waiters(&states[1]))
            && is_close(states[0].remaining(), states[1].remaining())
            && self.permits_agree(&states[0], &states[1]);
        self.note(&"inspect", &states);
        self.check(agree);
    }

    /// Redis may keep an idle semaphore for a while, and does not know the number of plain permits.
    fn permits_agree(&self, memory: &LockState, redis: &LockState) -> bool {
        let is_known = |limit: Option<u32>| {
            memory.limit().is_none() || limit.is_none() || limit == memory.limit()
        };
        is_known(redis.limit())
            && (memory.available().is_none() || memory.available() == redis.available())
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
            "memory and Redis disagree about the last of these:\n{}",
            self.story[last..].join("\n")
        );
    }
}

fn are_alike(memory: &AcquireOutcome, redis: &AcquireOutcome, request: &AcquireRequest) -> bool {
    match (memory, redis) {
        (AcquireOutcome::Held { remaining: memory }, AcquireOutcome::Held { remaining: redis }) => {
            // In the queue of a fair lock, Redis uses Redisson's retry times.
            request.mode == Mode::Fair || is_close(*memory, *redis)
        }
        // A store of plain permits need not know.
        (AcquireOutcome::TooMany { .. }, AcquireOutcome::Held { .. }) => {
            matches!(request.mode, Mode::Permit { plain: true, .. })
        }
        (memory, redis) => memory == redis,
    }
}

fn kind_of(
    answer: &Result<AcquireOutcome, BackendError>,
) -> Result<std::mem::Discriminant<AcquireOutcome>, lockcore::BackendErrorKind> {
    answer.as_ref().map(std::mem::discriminant).map_err(BackendError::kind)
}

fn is_close(memory: Option<Duration>, redis: Option<Duration>) -> bool {
    match (memory, redis) {
        (Some(memory), Some(redis)) => memory.abs_diff(redis) < TOLERANCE,
        (memory, redis) => memory == redis,
    }
}

/// Waiting writers, which have no particular order.
fn waiters(state: &LockState) -> Vec<&String> {
    let mut waiters: Vec<_> = state.waiters().iter().collect();
    waiters.sort();
    waiters
}

/// The holders, in no particular order. A fair hold may be reported as an exclusive one.
fn holders(state: &LockState) -> Vec<(String, String, u32)> {
    let mode = |mode: Mode| match mode {
        Mode::Fair => Mode::Exclusive.to_string(),
        Mode::Permit { count, .. } => format!("{count} permits"),
        mode => mode.to_string(),
    };
    let holder = |holder: &lockcore::Holder| {
        (holder.owner().into(), mode(holder.mode()), holder.hold_count())
    };
    let mut holders: Vec<_> = state.holders().iter().map(holder).collect();
    holders.sort();
    holders
}
