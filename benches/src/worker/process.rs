//! [`Process`]: a worker that reads orders and writes answers as JSON.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    error::{Result, failure},
    subjects::Subject,
    worker::{Answer, Config, Order, THREADS},
};

/// The time limit of an order.
const PATIENCE: Duration = Duration::from_secs(120);

/// A worker process. Its standard error is that of the benchmark.
#[derive(Debug)]
pub(crate) struct Process {
    subject: Subject,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a process and waits until it is connected.
    pub(crate) async fn start(program: &Path, config: &Config) -> Result<Self> {
        let mut child = Command::new(program)
            .arg(super::serve::COMMAND)
            .arg(serde_json::to_string(config)?)
            // Go has as many threads for its tasks as the others.
            .env("GOMAXPROCS", THREADS.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or_else(|| failure("no way to the worker"))?;
        let answers = child.stdout.take().ok_or_else(|| failure("no way from the worker"))?;
        let answers = BufReader::new(answers).lines();
        let mut process = Self { subject: config.subject, child, orders, answers };
        match process.answer().await? {
            Answer::Done => Ok(process),
            answer => Err(failure(format!("a worker begins with {answer:?}"))),
        }
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.child.id().ok_or_else(|| failure("the worker has ended"))
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Gives an order and waits until it is carried out.
    pub(crate) async fn order(&mut self, order: &Order) -> Result<Answer> {
        let line = serde_json::to_string(order)? + "\n";
        self.orders.write_all(line.as_bytes()).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Answer> {
        let name = self.subject.name();
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await;
        match line.map_err(|_| failure(format!("a worker of {name} does not answer")))?? {
            Some(line) => match serde_json::from_str(&line)? {
                Answer::Failed(error) => Err(failure(format!("{name}: {error}"))),
                answer => Ok(answer),
            },
            None => Err(failure(format!("a worker of {name} has ended"))),
        }
    }
}
