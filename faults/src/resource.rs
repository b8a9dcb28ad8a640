//! The resource that locks protect: values that are read and written, and a check of fencing
//! tokens. Faults never hit it.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use lockcore_testkit::{EventLog, What};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

use crate::protocol::{Result, failure};

#[derive(Debug, Default)]
struct Value {
    greatest: u64,
    version: u64,
}

/// The resource, which serves on a Unix socket.
#[derive(Debug)]
pub(crate) struct Resource(JoinHandle<()>);

impl Resource {
    /// Serves on `socket`. If it is not `fenced`, it accepts every write.
    pub(crate) fn start(socket: &Path, log: EventLog, fenced: bool) -> Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let values: Arc<Mutex<HashMap<String, Value>>> = Arc::default();
        let log = Arc::new(log);
        Ok(Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, values.clone(), log.clone(), fenced));
            }
        })))
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Requests are `read NAME TOKEN` and `write NAME TOKEN BASE`; the answer is a version, or `stale`.
async fn serve(
    stream: UnixStream,
    values: Arc<Mutex<HashMap<String, Value>>>,
    log: Arc<EventLog>,
    fenced: bool,
) {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer =
            answer(&line, &mut values.lock().unwrap_or_else(PoisonError::into_inner), &log, fenced);
        if to.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(line: &str, values: &mut HashMap<String, Value>, log: &EventLog, fenced: bool) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let name = words.get(1).copied().unwrap_or_default();
    let value = values.entry(name.into()).or_default();
    let (token, base) = (number(2), number(3));
    let accepted = !fenced || token >= value.greatest;
    if accepted {
        value.greatest = value.greatest.max(token);
    }
    if words[0] == "write" {
        let next = value.version + 1;
        log.now(0, What::Wrote { name: name.into(), token, base, value: next, accepted });
        if accepted {
            value.version = next;
        }
    }
    if accepted { format!("{}\n", value.version) } else { "stale\n".into() }
}

/// A client's connection to the resource. After a failure a new connection is made, so that no late
/// answer is taken for the next one.
#[derive(Debug)]
pub(crate) struct ResourceClient {
    socket: PathBuf,
    connection: tokio::sync::Mutex<Option<BufReader<UnixStream>>>,
}

impl ResourceClient {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, connection: tokio::sync::Mutex::default() }
    }

    /// The current version; `None` if the token is stale.
    pub(crate) async fn read(&self, name: &str, token: u64) -> Result<Option<u64>> {
        self.ask(format!("read {name} {token}\n")).await
    }

    /// Writes a new version on top of `base`; `None` if the token is stale.
    pub(crate) async fn write(&self, name: &str, token: u64, base: u64) -> Result<Option<u64>> {
        self.ask(format!("write {name} {token} {base}\n")).await
    }

    async fn ask(&self, request: String) -> Result<Option<u64>> {
        let mut connection = self.connection.lock().await;
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => BufReader::new(UnixStream::connect(&self.socket).await?),
        };
        stream.write_all(request.as_bytes()).await?;
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(failure("the resource has gone"));
        }
        *connection = Some(stream);
        Ok(line.trim().parse().ok())
    }
}
