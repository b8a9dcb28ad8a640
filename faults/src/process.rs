//! [`ClientProcess`]: another process of this program, as a client.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::protocol::{Answer, ClientConfig, Order, Result, failure};

/// The time limit of an order.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client process. It ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct ClientProcess {
    pub(crate) config: ClientConfig,
    pub(crate) said: PathBuf,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    killed: bool,
}

impl ClientProcess {
    /// Starts a client and waits until it is connected.
    pub(crate) async fn start(
        config: ClientConfig,
        environment: &[(String, String)],
    ) -> Result<Self> {
        let mut client = Self::spawn(config, environment)?;
        match client.answer().await? {
            Answer::Done => Ok(client),
            answer => Err(failure(format!(
                "{} did not start: {answer:?}; {}",
                client.name(),
                client.complaints()
            ))),
        }
    }

    fn spawn(config: ClientConfig, environment: &[(String, String)]) -> Result<Self> {
        let said = config.log.with_extension("stderr");
        let mut child = Command::new(std::env::current_exe()?)
            .arg("client")
            .arg(serde_json::to_string(&config)?)
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&said)?)
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or_else(|| failure("no way to the client"))?;
        let answers = child.stdout.take().ok_or_else(|| failure("no way from the client"))?;
        Ok(Self {
            config,
            said,
            child,
            orders,
            answers: BufReader::new(answers).lines(),
            killed: false,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.client
    }

    /// Gives an order and waits until it is carried out.
    pub(crate) async fn order(&mut self, order: Order) -> Result<Answer> {
        self.send(&order).await?;
        let done = self.done().await;
        done.map_err(|error| failure(format!("{order:?}: {error}")))
    }

    /// The answer to the previous order, which must not have failed.
    pub(crate) async fn done(&mut self) -> Result<Answer> {
        match self.answer().await? {
            Answer::Failed(error) => Err(failure(format!("{}: {error}", self.name()))),
            answer => Ok(answer),
        }
    }

    /// Gives an order whose answer is fetched later, with [`answer`](Self::answer).
    pub(crate) async fn send(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        Ok(self.orders.write_all(line.as_bytes()).await?)
    }

    /// The answer to the previous order.
    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await;
        match line.map_err(|_| failure(format!("{} does not answer", self.name())))?? {
            Some(line) => Ok(serde_json::from_str(&line)?),
            None => Err(failure(format!("{} has ended: {}", self.name(), self.complaints()))),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.killed
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.killed |= signal == Signal::KILL || signal == Signal::TERM;
        signal_process(self.pid(), signal)
    }

    /// Waits for the end of the process. Returns `true` if it succeeded.
    pub(crate) async fn ended(&mut self) -> Result<bool> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        Ok(ended.map_err(|_| failure(format!("{} does not end", self.name())))??.success())
    }

    /// The end of its standard error.
    fn complaints(&self) -> String {
        last_lines(&self.said)
    }
}

/// Sends a signal to a process.
pub(crate) fn signal_process(pid: Option<u32>, signal: Signal) -> Result<()> {
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    Ok(kill_process(pid.ok_or_else(|| failure("the process has ended"))?, signal)?)
}

fn last_lines(path: &Path) -> String {
    let said = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = said.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
