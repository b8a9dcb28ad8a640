//! [`AnsweringProxy`]: a proxy that answers some commands itself, as some services have.

use std::{net::SocketAddr, sync::Arc};

use lockcore_testkit::RedisServer;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

/// The raw answer to a command. `None` lets the command pass.
type Answer = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// A proxy in front of a server. It ends with the runtime of the test.
pub(crate) struct AnsweringProxy(SocketAddr);

impl AnsweringProxy {
    pub(crate) async fn start(
        server: &RedisServer,
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), server.address());
        let answer: Arc<Answer> = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&target).await else { continue };
                tokio::spawn(carry(client, server, answer.clone()));
            }
        });
        Self(address)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.0)
    }
}

/// Text as a reply.
pub(crate) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

async fn carry(client: TcpStream, server: TcpStream, answer: Arc<Answer>) {
    let (mut requests, replies) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let replies = Arc::new(Mutex::new(replies));
    let to_client = replies.clone();
    tokio::spawn(async move {
        let mut chunk = [0; 16 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut chunk).await {
            if to_client.lock().await.write_all(&chunk[..length]).await.is_err() {
                return io::Result::Ok(());
            }
        }
        to_client.lock().await.shutdown().await
    });
    let (mut input, mut chunk) = (Vec::new(), [0; 16 * 1024]);
    while let Ok(length @ 1..) = requests.read(&mut chunk).await {
        input.extend_from_slice(&chunk[..length]);
        while let Some((parts, end)) = command(&input) {
            let bytes: Vec<u8> = input.drain(..end).collect();
            let sent = match answer(&parts) {
                Some(reply) => replies.lock().await.write_all(reply.as_bytes()).await,
                None => to_server.write_all(&bytes).await,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

/// The words of the command that `input` begins with, the first in capitals, and where it ends.
fn command(input: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |at: usize| {
        let length = input.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let number = std::str::from_utf8(&input[at + 1..at + length]).ok()?.parse().ok()?;
        Some((number, at + length + 2))
    };
    let (count, mut at): (usize, usize) = line(0)?;
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, begin): (usize, usize) = line(at)?;
        at = begin + length + 2;
        let part = input.get(begin..begin + length).filter(|_| input.len() >= at)?;
        parts.push(String::from_utf8_lossy(part).into_owned());
    }
    if let Some(name) = parts.first_mut() {
        name.make_ascii_uppercase();
    }
    Some((parts, at))
}
