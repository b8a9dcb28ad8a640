//! Processes that carry out what a scenario asks of a subject: this program once more, its like in
//! Go, or a JVM.
//!
//! Each subject is measured in processes of its own, so that none finds the heap, the connections or the tasks of another.

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

/// What a worker is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) subject: Subject,
    pub(crate) url: String,
    pub(crate) lease: Duration,
}

/// What a worker is to do. Numbers of names go on from `from`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Have tasks acquire and release.
    Load { names: Names, tasks: usize, span: Span },
    /// Acquire this and keep it; when it was had.
    Acquire(String),
    /// Release that; when it was begun.
    Release,
    /// Acquire as many names, and keep them.
    Hold { prefix: String, from: usize, count: usize },
    /// Acquire and release as many names, one after the other.
    Visit { prefix: String, from: usize, count: usize },
    /// Have as many tasks wait for so many names, and say nothing more of them.
    Wait { prefix: String, names: usize, count: usize },
    /// Have one task wait for each of as many names.
    Await { prefix: String, count: usize },
    /// When those had them, in the order of the names, by the wall clock.
    Grants,
    /// Enter and leave a hold so many times: the times of a pair.
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

/// A worker. It ends with its handle.
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

    /// The id of its process.
    pub(crate) fn pid(&self) -> Result<u32> {
        match self {
            Self::Process(process) => process.pid(),
            Self::Java(redisson) => Ok(redisson.pid()),
        }
    }

    /// Ends it at once, as a crash would; resolves when it is gone.
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

    /// An order with nothing to tell.
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
