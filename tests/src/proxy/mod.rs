//! [`Proxy`]: a bad network between clients and a server.

mod connection;
mod resp;

use std::{
    collections::BTreeSet,
    io,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// The connections that a fault affects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum On {
    /// All connections.
    #[default]
    All,
    /// Connections that have never subscribed to anything.
    Commands,
    /// Connections that have subscribed.
    Messages,
}

/// The conditions of the network. The default is an undisturbed one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The delay of every message, in each direction.
    pub latency: Duration,
    /// The maximum extra delay of each message. Messages stay in order.
    pub jitter: Duration,
    /// Blocks the direction to the server. Data is kept until it can pass again, as by TCP after a
    /// short partition.
    pub cut_to_server: bool,
    /// Blocks the direction to the clients.
    pub cut_to_client: bool,
    /// The connections that are blocked.
    pub cut_on: On,
    /// Refuses new connections.
    pub refuse: bool,
    /// Sends everything byte by byte.
    pub slices: bool,
    /// Drops every second message that the server pushes.
    pub drop_every_second_push: bool,
}

/// A TCP proxy in front of a server, for one client or several.
///
/// [`start`](Self::start) is for Redis: such a proxy recognizes messages, so that a fault can hit
/// the reply to a specific request. [`start_opaque`](Self::start_opaque) is for any protocol, and
/// for all faults but those that concern single messages.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use lockcore_testkit::{Conditions, Proxy, RedisServer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let server = RedisServer::start();
/// let proxy = Proxy::start(server.port()).await?;
/// proxy.set(Conditions { latency: Duration::from_millis(20), ..Conditions::default() });
/// // `proxy.url()` is for the clients.
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    /// `true` if the proxy forwards bytes without looking for messages.
    is_opaque: bool,
    /// The port of the server that new connections lead to.
    target: AtomicU16,
    conditions: watch::Sender<Conditions>,
    /// Incremented to reset all existing connections.
    resets: watch::Sender<u64>,
    /// The last connection whose client's end is reset, together with all before it.
    abandoned: watch::Sender<u64>,
    /// The connections that have not ended.
    open: watch::Sender<BTreeSet<u64>>,
    /// The number of answers to requests of locks.
    answers: AtomicU64,
    /// The number of the answer to a request of a lock that is replaced by a reset; 0 for none.
    lose_answer: AtomicU64,
    /// The number of answers that were replaced so far.
    lost_answers: AtomicU64,
    /// The number of bytes to clients until a reset; `u64::MAX` for none.
    reset_after: AtomicU64,
    /// The delay of the next request of a lock in ns, even if its client leaves.
    delay_next: AtomicU64,
    /// The last connection that is frozen, together with all before it, whatever the conditions.
    frozen: watch::Sender<(u64, On)>,
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// A stray reply, inserted before the next answer to a request of a lock. Locked for short
    /// critical sections.
    stray: Mutex<Option<Vec<u8>>>,
    noise: AtomicU64,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1, in front of the Redis server on port `target`,
    /// on the current runtime.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(target: u16) -> io::Result<Self> {
        Self::start_as(target, false).await
    }

    /// Starts a proxy for any protocol, between clients and a server or between servers: it
    /// forwards bytes without looking for messages.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start_opaque(target: u16) -> io::Result<Self> {
        Self::start_as(target, true).await
    }

    async fn start_as(target: u16, is_opaque: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            is_opaque,
            target: AtomicU16::new(target),
            conditions: watch::Sender::default(),
            resets: watch::Sender::default(),
            abandoned: watch::Sender::default(),
            open: watch::Sender::default(),
            answers: AtomicU64::new(0),
            lose_answer: AtomicU64::new(0),
            lost_answers: AtomicU64::new(0),
            reset_after: AtomicU64::new(u64::MAX),
            delay_next: AtomicU64::new(0),
            frozen: watch::Sender::default(),
            connections: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stray: Mutex::default(),
            noise: AtomicU64::new(u64::from(port)),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { port, shared, accepting })
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL that clients of Redis connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes the conditions, for existing connections as well.
    pub fn set(&self, conditions: Conditions) {
        self.shared.conditions.send_replace(conditions);
    }

    /// Directs new connections to the server on port `target`, as a name or a virtual address does
    /// after a failover. Existing connections stay where they are.
    pub fn redirect(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// Inserts `reply` before the next answer to a request of a lock, as if the server had sent it.
    pub fn insert_reply(&self, reply: &[u8]) {
        *self.shared.stray.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply.to_vec());
    }

    /// Lets everything pass again, including frozen data.
    pub fn heal(&self) {
        self.set(Conditions::default());
        self.shared.frozen.send_replace((0, On::All));
        self.shared.lose_answer.store(0, Ordering::SeqCst);
        self.shared.reset_after.store(u64::MAX, Ordering::SeqCst);
        self.shared.delay_next.store(0, Ordering::SeqCst);
    }

    /// Resets all connections (RST).
    pub fn reset(&self) {
        self.shared.resets.send_modify(|resets| *resets += 1);
    }

    /// Resets all connections (RST) at their clients' end. The server is not told: data from the
    /// clients is still on its way, and stays frozen if it was.
    pub fn abandon(&self) {
        self.shared.abandoned.send_replace(self.accepted());
    }

    /// Lets everything pass again, and completes when the server has received the data of
    /// [abandoned](Self::abandon) connections: it has closed them since, or has had a second for
    /// that.
    pub async fn deliver(&self) {
        self.heal();
        let last = *self.shared.abandoned.borrow();
        let mut open = self.shared.open.subscribe();
        // `self` contains the sender, so it cannot be closed.
        let _ = open.wait_for(|open| open.first().is_none_or(|first| *first > last)).await;
    }

    /// Carries out the `k`-th request of a lock from now on, but resets the connection instead of
    /// answering.
    pub fn lose_answer(&self, k: u64) {
        let answers = self.shared.answers.load(Ordering::SeqCst);
        self.shared.lose_answer.store(answers + k, Ordering::SeqCst);
    }

    /// Returns `true` if the answer of [`lose_answer`](Self::lose_answer) has been lost.
    #[must_use]
    pub fn has_lost_answer(&self) -> bool {
        self.shared.lose_answer.load(Ordering::SeqCst) == 0
    }

    /// The number of answers that [`lose_answer`](Self::lose_answer) has lost so far.
    #[must_use]
    pub fn lost_answers(&self) -> u64 {
        self.shared.lost_answers.load(Ordering::SeqCst)
    }

    /// Resets a connection after `bytes` more bytes to clients, whatever messages they belong to.
    pub fn reset_after(&self, bytes: u64) {
        self.shared.reset_after.store(bytes, Ordering::SeqCst);
    }

    /// Delays the next request of a lock, and whatever follows on its connection, by `time`, even
    /// if the client leaves before.
    pub fn delay_next_request(&self, time: Duration) {
        self.shared.delay_next.store(crate::span(time), Ordering::SeqCst);
    }

    /// Blocks the existing connections in both directions without telling anybody: they are half
    /// open until [`heal`](Self::heal). New connections are not affected.
    pub fn freeze(&self, on: On) {
        self.shared.frozen.send_replace((self.accepted(), on));
    }

    /// The number of answers to requests of locks so far.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::SeqCst)
    }

    /// The number of connections that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.conditions.borrow().refuse {
            shared.refused.fetch_add(1, Ordering::SeqCst);
            reset(&client);
            continue;
        }
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        shared.open.send_modify(|open| {
            open.insert(number);
        });
        tokio::spawn(connection::serve(number, client, shared.clone()));
    }
}

/// Makes the socket close with a reset.
fn reset(stream: &TcpStream) {
    // An error means that the socket is closed already.
    let _ = stream.set_zero_linger();
}

impl Shared {
    /// A pseudorandom number below `bound`.
    fn noise(&self, bound: u64) -> u64 {
        let mut x = self.noise.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if bound == 0 { 0 } else { (x ^ (x >> 31)) % bound }
    }
}

#[cfg(test)]
mod tests;
