//! The work of a worker: it reads orders, carries them out and answers.

use std::{sync::Arc, time::Instant};

use lockcore::Locks;
use lockcore_testkit::{monotonic, span, wall_clock};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    task::JoinSet,
};

use crate::{
    error::{Result, failure},
    measure::load::{Lock, load},
    subjects::{AnyHold, AnyLock, Peer},
    worker::{Answer, Config, Order, THREADS},
};

/// The hidden command that makes this program a worker.
pub(crate) const COMMAND: &str = "worker";

/// The number of concurrent acquisitions when many names are to be held.
const AT_A_TIME: usize = 64;

/// Serves until there are no more orders.
pub(crate) fn serve(config: &str) -> Result<()> {
    let config: Config = serde_json::from_str(config)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    // A task carries out the orders, as in a user's program. `block_on` would run them on this
    // thread, which is not one of those that read from sockets: each reply would have to wake it.
    let served = runtime.block_on(async move { tokio::spawn(carry_out_orders(config)).await? });
    // Standard input is read by a thread that cannot be ended, and tasks may wait for locks that
    // nobody will release.
    runtime.shutdown_background();
    served
}

async fn carry_out_orders(config: Config) -> Result<()> {
    let client = Peer::connect(config.subject, &config.url, config.lease).await?;
    answer(&Answer::Done)?;
    let mut session = Session::new(client);
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let done = session.carry_out(serde_json::from_str(&line)?).await;
        answer(&done.unwrap_or_else(|error| Answer::Failed(error.to_string())))?;
    }
    Ok(())
}

fn answer(answer: &Answer) -> Result<()> {
    println!("{}", serde_json::to_string(answer)?);
    Ok(())
}

struct Session {
    client: Peer,
    /// The hold between `Acquire` and `Release`.
    held: Option<(Arc<AnyLock>, AnyHold)>,
    /// The holds of `Hold`, kept for the lifetime of the process.
    kept: Vec<AnyHold>,
    waiting: JoinSet<Result<()>>,
    awaiting: JoinSet<Result<(usize, u64)>>,
}

impl Session {
    fn new(client: Peer) -> Self {
        Self {
            client,
            held: None,
            kept: Vec::new(),
            waiting: JoinSet::new(),
            awaiting: JoinSet::new(),
        }
    }

    async fn carry_out(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Load { names, tasks, span } => {
                let locks = self.client.locks(&names, tasks)?;
                return Ok(Answer::Load(load::<true, _>(locks, span).await?));
            }
            Order::Acquire(name) => {
                let lock = self.client.lock(&name)?;
                let hold = lock.acquire().await?;
                let had = monotonic();
                self.held = Some((lock, hold));
                return Ok(Answer::Stamp(had));
            }
            Order::Release => {
                let (lock, hold) = self.held.take().ok_or_else(|| failure("nothing is held"))?;
                let begun = monotonic();
                lock.release(hold).await?;
                return Ok(Answer::Stamp(begun));
            }
            Order::Hold { prefix, from, count } => self.hold(&prefix, from, count).await?,
            Order::Visit { prefix, from, count } => {
                for number in from..from + count {
                    let lock = self.client.lock(&format!("{prefix}-{number}"))?;
                    lock.release(lock.acquire().await?).await?;
                }
            }
            Order::Wait { prefix, names, count } => {
                for number in 0..count {
                    self.waiting.spawn(self.client.turn(&format!("{prefix}-{}", number % names))?);
                }
            }
            Order::Await { prefix, count } => {
                for number in 0..count {
                    let lock = self.client.lock(&format!("{prefix}-{number}"))?;
                    self.awaiting.spawn(async move {
                        let hold = lock.acquire().await?;
                        let had = wall_clock();
                        lock.release(hold).await.map(|()| (number, had))
                    });
                }
            }
            Order::Grants => {
                let mut grants = Vec::new();
                while let Some(granted) = self.awaiting.join_next().await {
                    grants.push(granted??);
                }
                grants.sort_unstable();
                return Ok(Answer::Stamps(grants.into_iter().map(|(_, had)| had).collect()));
            }
            Order::Nest { samples, pairs } => return self.nest(samples, pairs).await,
        }
        Ok(Answer::Done)
    }

    async fn hold(&mut self, prefix: &str, from: usize, count: usize) -> Result<()> {
        let mut acquiring = JoinSet::new();
        for number in from..from + count {
            if acquiring.len() == AT_A_TIME {
                self.keep(acquiring.join_next().await)?;
            }
            let lock = self.client.lock(&format!("{prefix}-{number}"))?;
            acquiring.spawn(async move { lock.acquire().await });
        }
        while !acquiring.is_empty() {
            self.keep(acquiring.join_next().await)?;
        }
        Ok(())
    }

    fn keep(
        &mut self,
        acquired: Option<std::result::Result<Result<AnyHold>, tokio::task::JoinError>>,
    ) -> Result<()> {
        if let Some(hold) = acquired {
            self.kept.push(hold??);
        }
        Ok(())
    }

    async fn nest(&self, samples: usize, pairs: u32) -> Result<Answer> {
        let Peer::Lockcore(client) = &self.client else {
            return Err(failure("only lockcore can enter again"));
        };
        let locks = client.0.clone();
        // In a separate task, like user code.
        let times = tokio::spawn(async move { nested_pairs(&locks, samples, pairs).await });
        Ok(Answer::Stamps(times.await??))
    }
}

/// The time of one pair, from `samples` samples of `pairs` pairs each: reading a clock takes as
/// long as a pair.
async fn nested_pairs(locks: &Locks, samples: usize, pairs: u32) -> Result<Vec<u64>> {
    locks
        .scope(async {
            let lock = locks.lock("nested");
            let outer = lock.acquire().await?;
            let mut times = Vec::with_capacity(samples);
            for _ in 0..samples {
                let begun = Instant::now();
                for _ in 0..pairs {
                    lock.acquire().await?.release().await?;
                }
                times.push(span(begun.elapsed()) / u64::from(pairs));
            }
            outer.release().await?;
            Ok(times)
        })
        .await
}
