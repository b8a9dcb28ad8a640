//! Processes that carry out the orders of a scenario for a subject: this program once more, its
//! counterpart in Go, or a JVM.
//!
//! Each subject is measured in separate processes, so that none is affected by the heap, the
//! connections or the tasks of another.

mod process;
mod serve;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::process::Process;
pub(crate) use self::serve::{COMMAND, serve};
use crate::{
    error::{Result, failure},
    measure::load::{Load, Span},
    subjects::{Names, Runtime, Subject, go, redisson::Redisson},
};

/// Threads of a worker's runtime: one for each core of the machine that the bars are for.
const THREADS: usize = 2;

/// The configuration of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) subject: Subject,
    pub(crate) url: String,
    pub(crate) lease: Duration,
}

/// An order to a worker. Numbers of names start at `from`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make tasks acquire and release.
    Load { names: Names, tasks: usize, span: Span },
    /// Acquire this lock and keep it; answer with the time of the grant.
    Acquire(String),
    /// Release that lock; answer with the start time.
    Release,
    /// Acquire this many names, and keep them.
    Hold { prefix: String, from: usize, count: usize },
    /// Acquire and release this many names, one after the other.
    Visit { prefix: String, from: usize, count: usize },
    /// Make `count` tasks wait for `names` names, without reporting the grants.
    Wait { prefix: String, names: usize, count: usize },
    /// Make one task wait for each of this many names.
    Await { prefix: String, count: usize },
    /// The times of those grants, in the order of the names, by the wall clock.
    Grants,
    /// Enter and leave a hold this many times; answer with the times of a pair.
    Nest { samples: usize, pairs: u32 },
}

/// The answer to an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Load(Load),
    /// Nanoseconds.
    Stamp(u64),
    Stamps(Vec<u64>),
    Failed(String),
}

/// A worker. It ends when the handle is dropped.
#[derive(Debug)]
pub(crate) enum Worker {
    Process(Box<Process>),
    Java(Box<Redisson>),
}

impl Worker {
    /// Starts a worker, connected to the server.
    pub(crate) async fn start(subject: Subject, url: &str, lease: Duration) -> Result<Self> {
        let program = match subject.runtime() {
            Runtime::Java => return Ok(Self::Java(Box::new(Redisson::start(url, lease).await?))),
            Runtime::Rust => std::env::current_exe()?,
            Runtime::Go => go::program()?,
        };
        let config = Config { subject, url: url.into(), lease };
        Ok(Self::Process(Box::new(Process::start(&program, &config).await?)))
    }

    /// The process id.
    pub(crate) fn pid(&self) -> Result<u32> {
        match self {
            Self::Process(process) => process.pid(),
            Self::Java(redisson) => Ok(redisson.pid()),
        }
    }

    /// Kills it at once, like a crash, and returns when it is gone.
    pub(crate) async fn kill(self) -> Result<()> {
        match self {
            Self::Process(process) => process.kill().await,
            Self::Java(redisson) => redisson.kill().await,
        }
    }

    async fn order(&mut self, order: Order) -> Result<Answer> {
        match self {
            Self::Process(process) => process.order(&order).await,
            Self::Java(redisson) => redisson.order(order).await,
        }
    }

    pub(crate) async fn load(&mut self, names: Names, tasks: usize, span: Span) -> Result<Load> {
        match self.order(Order::Load { names, tasks, span }).await? {
            Answer::Load(load) => Ok(load),
            answer => Err(not_expected(&answer)),
        }
    }

    /// An order without a result.
    pub(crate) async fn carry_out(&mut self, order: Order) -> Result<()> {
        match self.order(order).await? {
            Answer::Done => Ok(()),
            answer => Err(not_expected(&answer)),
        }
    }

    /// An order that is answered with a time, in nanoseconds.
    pub(crate) async fn stamp(&mut self, order: Order) -> Result<u64> {
        match self.order(order).await? {
            Answer::Stamp(stamp) => Ok(stamp),
            answer => Err(not_expected(&answer)),
        }
    }

    /// An order that is answered with times, in nanoseconds.
    pub(crate) async fn stamps(&mut self, order: Order) -> Result<Vec<u64>> {
        match self.order(order).await? {
            Answer::Stamps(stamps) => Ok(stamps),
            answer => Err(not_expected(&answer)),
        }
    }
}

fn not_expected(answer: &Answer) -> crate::error::Error {
    failure(format!("a worker answers something else: {answer:?}"))
}
