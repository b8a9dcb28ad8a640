//! [`CommandProxy`]: a proxy that inspects each command, as some services have.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockcore_testkit::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// The fate of a command.
pub(crate) enum Fate {
    Pass,
    /// Answered with this error, without reaching the server.
    Refuse(&'static str),
    /// Lost, together with its connection.
    Cut,
    /// Reaches the server so much later, and so does what comes after it on its connection.
    Delay(Duration),
    /// Neither the command nor anything after it on its connection is answered.
    Silence,
}

/// Decides from the number of the connection and the words of a command.
type Decide = dyn Fn(u64, &[String]) -> Fate + Send + Sync;

/// A proxy in front of a server. It ends with the runtime of the test.
pub(crate) struct CommandProxy {
    address: SocketAddr,
    hits: Arc<AtomicU64>,
}

impl CommandProxy {
    pub(crate) async fn start(
        server: &RedisServer,
        decide: impl Fn(&[String]) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self::start_numbered(server, move |_, words| decide(words)).await
    }

    /// A proxy that tells connections apart.
    pub(crate) async fn start_numbered(
        server: &RedisServer,
        decide: impl Fn(u64, &[String]) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, hits) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
        let (target, counter) = (server.address(), hits.clone());
        let decide: Arc<Decide> = Arc::new(decide);
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let Ok(server) = TcpStream::connect(&target).await else { continue };
                let decide = decide.clone();
                let decide = move |words: &[String]| decide(number, words);
                tokio::spawn(carry(client, server, decide, counter.clone()));
            }
        });
        Self { address, hits }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The number of commands that did not pass.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

/// Forwards one connection until one side closes it.
async fn carry(
    client: TcpStream,
    server: TcpStream,
    decide: impl Fn(&[String]) -> Fate,
    hits: Arc<AtomicU64>,
) {
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass_on(from_client, to_server, decide, &hits) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

async fn pass_on(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    decide: impl Fn(&[String]) -> Fate,
    hits: &AtomicU64,
) {
    let mut bytes = Vec::new();
    while client.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        while let Some((parts, length)) = command(&bytes) {
            let fate = decide(&parts);
            if !matches!(fate, Fate::Pass) {
                hits.fetch_add(1, Ordering::Relaxed);
            }
            let passed_on = match fate {
                Fate::Pass => bytes[..length].to_vec(),
                Fate::Delay(time) => {
                    tokio::time::sleep(time).await;
                    bytes[..length].to_vec()
                }
                // The server answers a replacement command, so that replies stay in order.
                Fate::Refuse(error) => {
                    let script = format!("return redis.error_reply('{error}')");
                    redis::cmd("EVAL").arg(script).arg(0).get_packed_command()
                }
                Fate::Cut => return,
                Fate::Silence => std::future::pending().await,
            };
            bytes.drain(..length);
            if server.write_all(&passed_on).await.is_err() {
                return;
            }
        }
    }
}

/// The words of the first command, and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let number = |at: usize| -> Option<(usize, usize)> {
        let end = at + bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let digits = std::str::from_utf8(&bytes[at + 1..end]).unwrap();
        Some((digits.parse().unwrap(), end + 2))
    };
    let (count, mut at) = number(0)?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let (length, start) = number(at)?;
        parts.push(String::from_utf8_lossy(bytes.get(start..start + length)?).into_owned());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((parts, at))
}
