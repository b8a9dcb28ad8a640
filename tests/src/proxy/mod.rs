//! [`Proxy`]: a bad network between clients and a Redis server.

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

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// On which connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum On {
    /// All.
    #[default]
    All,
    /// Those that have never subscribed to anything.
    Commands,
    /// Those that have.
    Messages,
}

/// What the network does to what passes through. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// How long everything takes, each way.
    pub latency: Duration,
    /// By how much that varies: each message is late by up to so much more, in its order.
    pub jitter: Duration,
    /// Nothing gets through this way; it is kept until it does again, as by TCP after a short partition.
    pub cut_to_server: bool,
    /// The other way.
    pub cut_to_client: bool,
    /// Only these connections are cut.
    pub cut_on: On,
    /// New connections are refused.
    pub refuse: bool,
    /// Everything is sent byte by byte.
    pub slices: bool,
    /// Every second message that the server pushes is left out.
    pub drop_every_second_push: bool,
}

/// A TCP proxy in front of a Redis server, for one client or several.
///
/// It knows where messages begin and end, so that a fault can hit the reply to a certain request.
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

/// What all connections of a proxy have in common.
#[derive(Debug)]
struct Shared {
    /// Whether what passes through is not the protocol of clients, and is carried as it comes.
    is_opaque: bool,
    /// The port of the server that new connections lead to.
    target: AtomicU16,
    conditions: watch::Sender<Conditions>,
    /// Raised to end all connections that exist: by a reset.
    resets: watch::Sender<u64>,
    /// Up to which connection the clients' ends are reset.
    abandoned: watch::Sender<u64>,
    /// The connections that have not ended.
    open: watch::Sender<BTreeSet<u64>>,
    /// Requests of locks that were answered.
    answers: AtomicU64,
    /// At which answer to a request of a lock the connection breaks instead; 0 for none.
    lose_answer: AtomicU64,
    /// After how many more bytes to a client its connection is reset; `u64::MAX` for never.
    reset_after: AtomicU64,
    /// For how many ns the next request of a lock is kept, though its client may have gone.
    delay_next: AtomicU64,
    /// Up to which connection nothing gets through any more, whatever the conditions.
    frozen: watch::Sender<(u64, On)>,
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// A stray reply, which goes to a client before the next answer to a request of a lock. Short
    /// critical sections.
    stray: Mutex<Option<Vec<u8>>>,
    noise: AtomicU64,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1, in front of the server on port `target`, on the current runtime.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(target: u16) -> io::Result<Self> {
        Self::start_as(target, false).await
    }

    /// Starts a proxy between servers, which do not speak the protocol of clients: it looks for no
    /// messages in what it carries.
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

    /// The URL that clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes what the network does, to connections that exist as well.
    pub fn set(&self, conditions: Conditions) {
        self.shared.conditions.send_replace(conditions);
    }

    /// Leads new connections to the server on port `target`, as a name or a virtual address does after a failover. Those that exist stay where
    /// they are.
    pub fn redirect(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
    }

    /// Gives the client `reply` before the next answer to a request of a lock, as if the server had sent it.
    pub fn insert_reply(&self, reply: &[u8]) {
        *self.shared.stray.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply.to_vec());
    }

    /// Lets everything pass again, also what was frozen.
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

    /// Resets all connections (RST) at their clients' end. The server is not told: what clients had
    /// sent is on its way as before, and frozen for as long as it is.
    pub fn abandon(&self) {
        self.shared.abandoned.send_replace(self.accepted());
    }

    /// Lets everything pass again, and resolves when the server has had what was sent on
    /// connections that were [abandoned](Self::abandon): it has closed them since, or had a second
    /// for that.
    pub async fn deliver(&self) {
        self.heal();
        let last = *self.shared.abandoned.borrow();
        let mut open = self.shared.open.subscribe();
        // The sender is in `self`: it cannot be gone.
        let _ = open.wait_for(|open| open.first().is_none_or(|first| *first > last)).await;
    }

    /// The `k`-th request of a lock from now on is carried out, but instead of its answer the client gets a reset.
    pub fn lose_answer(&self, k: u64) {
        let answers = self.shared.answers.load(Ordering::SeqCst);
        self.shared.lose_answer.store(answers + k, Ordering::SeqCst);
    }

    /// Whether the answer that was to be lost is lost.
    #[must_use]
    pub fn has_lost_answer(&self) -> bool {
        self.shared.lose_answer.load(Ordering::SeqCst) == 0
    }

    /// After so many more bytes to clients, whatever they belong to, the connection is reset.
    pub fn reset_after(&self, bytes: u64) {
        self.shared.reset_after.store(bytes, Ordering::SeqCst);
    }

    /// The next request of a lock, and what follows on its connection, reaches the server only after `time`, also if the client has gone by then.
    pub fn delay_next_request(&self, time: Duration) {
        self.shared.delay_next.store(crate::span(time), Ordering::SeqCst);
    }

    /// Nothing gets through any more on the connections that exist, in either direction, and nobody is told: they are half open, until
    /// [`heal`](Self::heal). New ones are not concerned.
    pub fn freeze(&self, on: On) {
        self.shared.frozen.send_replace((self.accepted(), on));
    }

    /// How many requests of locks were answered.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::SeqCst)
    }

    /// How many connections were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections there have been.
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

/// Has the socket be closed with a reset.
fn reset(stream: &TcpStream) {
    // An error means that it is closed already.
    let _ = stream.set_zero_linger();
}

impl Shared {
    /// A number below `bound`, from a sequence that only looks random.
    fn noise(&self, bound: u64) -> u64 {
        let mut x = self.noise.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if bound == 0 { 0 } else { (x ^ (x >> 31)) % bound }
    }
}

#[cfg(test)]
mod tests;
