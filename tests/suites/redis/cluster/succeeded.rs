//! A node that answers although another one has succeeded it.
//!
//! The nodes are fakes: a real one gives such an answer only by chance, between the failover and its
//! demotion.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockcore::backend::{Backend, HoldId, RenewOutcome, RenewRequest};
use lockcore_redis::{ClusterMessages, RedisBackend};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::{
    steps::{LEASE, name},
    support::soon,
};

/// Two nodes, of which the second succeeds the first.
struct Nodes {
    ports: [u16; 2],
    has_succeeded: AtomicBool,
    /// Notified when a client has asked the second node for the map since then.
    is_known: Notify,
}

impl Nodes {
    async fn start() -> Arc<Self> {
        let (first, second) =
            tokio::join!(TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let listeners = [first.unwrap(), second.unwrap()];
        let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
        let nodes = Arc::new(Self {
            ports,
            has_succeeded: AtomicBool::new(false),
            is_known: Notify::new(),
        });
        for (node, listener) in listeners.into_iter().enumerate() {
            let nodes = nodes.clone();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(nodes.clone().serve(socket, node));
                }
            });
        }
        nodes
    }

    async fn serve(self: Arc<Self>, mut socket: TcpStream, node: usize) {
        let mut received = Vec::new();
        while socket.read_buf(&mut received).await.is_ok_and(|read| read > 0) {
            while let Some((words, length)) = command(&received) {
                received.drain(..length);
                let reply = self.reply(&words, node).await;
                if socket.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn reply(&self, words: &[String], node: usize) -> String {
        let has_succeeded = self.has_succeeded.load(Ordering::SeqCst);
        let first = words.iter().take(2).map(|word| word.to_uppercase()).collect::<Vec<_>>();
        match first.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["HELLO", ..] => {
                let fields =
                    ["server", "redis", "version", "7.0.15", "proto", "3", "role", "master"];
                format!("%4\r\n{}", fields.map(bulk).concat())
            }
            ["INFO", ..] => bulk(&format!(
                "redis_version:7.0.15\r\nrun_id:{node}\r\nredis_mode:cluster\r\nrole:master\r\n\
                 maxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nloading:0\r\n\
                 cluster_enabled:1\r\n"
            )),
            ["CLIENT", "ID"] => ":7\r\n".to_owned(),
            ["CLIENT", "KILL"] => ":0\r\n".to_owned(),
            ["CLUSTER", "SLOTS"] => {
                if has_succeeded && node == 1 {
                    self.is_known.notify_one();
                }
                self.slots(has_succeeded)
            }
            ["CLUSTER", ..] => bulk("cluster_state:ok\r\n"),
            ["EVALSHA" | "EVAL", ..] => {
                let renewed = words.iter().filter(|word| *word == "exclusive").count();
                if node == 0 && renewed > 0 {
                    self.has_succeeded.store(true, Ordering::SeqCst);
                    self.is_known.notified().await;
                    // The client has the map by then, and has not stopped listening yet.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                format!("*{renewed}\r\n{}", ":1\r\n".repeat(renewed))
            }
            ["SUBSCRIBE" | "SSUBSCRIBE", ..] => "-ERR no messages\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    }

    fn slots(&self, has_succeeded: bool) -> String {
        let range = |first: u16, last: u16, port: u16| {
            let node = format!("*3\r\n{}:{port}\r\n{}", bulk("127.0.0.1"), bulk("id"));
            format!("*3\r\n:{first}\r\n:{last}\r\n{node}")
        };
        let [one, two] = self.ports;
        match has_succeeded {
            false => format!("*2\r\n{}{}", range(0, 8191, one), range(8192, 16383, two)),
            true => format!("*1\r\n{}", range(0, 16383, two)),
        }
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// The words of the first command, and its length, if it is complete.
fn command(received: &[u8]) -> Option<(Vec<String>, usize)> {
    let number = |at: usize| -> Option<(usize, usize)> {
        let end = at + received.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        Some((std::str::from_utf8(&received[at + 1..end]).unwrap().parse().unwrap(), end + 2))
    };
    let (count, mut at) = number(0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = number(at)?;
        let word = received.get(start..start + length + 2)?;
        words.push(String::from_utf8_lossy(&word[..length]).into_owned());
        at = start + length + 2;
    }
    Some((words, at))
}

/// The new primary does not know of the renewal.
#[tokio::test]
async fn its_renewals_are_not_believed() {
    // In slots of the first node. One hold is renewed by a call of its own.
    for names in [&["b"][..], &["b", "hello"]] {
        let nodes = Nodes::start().await;
        let backend = RedisBackend::builder()
            .cluster(nodes.ports.map(|port| format!("127.0.0.1:{port}")))
            .cluster_messages(ClusterMessages::Plain)
            .connect()
            .await
            .unwrap();
        let request = |id: &&str| RenewRequest::new(name(id), HoldId::unique("owner:1"), LEASE);
        let requests: Vec<_> = names.iter().map(request).collect();
        let outcomes = soon("the answer", backend.renew(&requests)).await.unwrap();
        assert!(nodes.has_succeeded.load(Ordering::SeqCst), "the first node was not asked");
        let is_unknown = |outcome: &RenewOutcome| matches!(outcome, RenewOutcome::Failed(_));
        assert!(outcomes.iter().all(is_unknown), "{names:?}: {outcomes:?}");
    }
}
