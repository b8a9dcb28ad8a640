//! [`PostgresProxy`]: faults between a client and its server.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use lockcore_testkit::PostgresServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// A proxy in front of a server. The server's side of a connection stays open when the client's
/// side is cut, as in a network failure.
pub(crate) struct PostgresProxy {
    port: u16,
    /// The number of times that all connections were cut.
    cut: watch::Sender<u32>,
    swallows: Arc<AtomicBool>,
    refuses: Arc<AtomicBool>,
    statements: Statements,
    accepting: JoinHandle<()>,
}

/// The statements that clients have sent, in the order of their arrival. One that was prepared is
/// empty.
type Statements = Arc<Mutex<Vec<String>>>;

/// The server's sides of connections, which stay open.
type Kept = Arc<Mutex<Vec<OwnedWriteHalf>>>;

impl PostgresProxy {
    pub(crate) async fn before(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, cuts) = watch::channel(0);
        let (swallows, refuses) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let statements = Statements::default();
        let sent = statements.clone();
        let (address, flags) = (server.address(), (swallows.clone(), Arc::clone(&refuses)));
        let accepting = tokio::spawn(async move {
            let kept = Kept::default();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let refuses: &AtomicBool = &flags.1;
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&address).await else { continue };
                let (swallows, kept, sent) = (flags.0.clone(), kept.clone(), sent.clone());
                let (mut cuts, (from, to)) = (cuts.clone(), client.into_split());
                let (answers, requests) = server.into_split();
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        () = pass_requests(from, requests, kept, sent) => {}
                        () = pass_answers(answers, to, swallows) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { port, cut, swallows, refuses, statements, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the clients' sides of all connections.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// Sets whether notifications are lost, as with a pooler that shares connections among clients.
    pub(crate) fn swallow_notifications(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }

    /// Takes the statements that clients have sent since it was called last.
    pub(crate) fn take_statements(&self) -> Vec<String> {
        std::mem::take(&mut *self.statements.lock().unwrap())
    }

    /// Sets whether new connections are closed at once.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Forwards what the client sends until it closes, which the server is not told.
async fn pass_requests(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    kept: Kept,
    statements: Statements,
) {
    struct Keep(Option<OwnedWriteHalf>, Kept);
    impl Drop for Keep {
        fn drop(&mut self) {
            self.1.lock().unwrap().extend(self.0.take());
        }
    }
    let mut to = Keep(Some(to), kept);
    let mut messages = Messages::default();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let Some(to) = &mut to.0 else { return };
        messages.read(&buffer[..length], &statements);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// The messages of a client: the first has a length that includes itself, and the rest. The others
/// have a letter before that.
#[derive(Default)]
struct Messages {
    unread: Vec<u8>,
    has_begun: bool,
}

impl Messages {
    fn read(&mut self, bytes: &[u8], statements: &Statements) {
        self.unread.extend_from_slice(bytes);
        loop {
            let head = usize::from(self.has_begun);
            let Some(length) = self.unread.get(head..head + 4) else { return };
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.unread.len() < head + length {
                return;
            }
            let message: Vec<u8> = self.unread.drain(..head + length).collect();
            if self.has_begun {
                statements.lock().unwrap().extend(statement(message[0], &message[5..]));
            }
            self.has_begun = true;
        }
    }
}

/// The statement that a message has the server carry out: the text of a simple query, the text that
/// is parsed without a name, or none for one that was parsed before.
fn statement(letter: u8, body: &[u8]) -> Option<String> {
    let mut texts = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let (first, second) = (texts.next()?, texts.next());
    match letter {
        b'Q' => Some(first.into_owned()),
        b'P' if first.is_empty() => second.map(std::borrow::Cow::into_owned),
        // A portal without a name, for a statement that has one.
        b'B' if second.is_some_and(|name| !name.is_empty()) => Some(String::new()),
        _ => None,
    }
}

/// Forwards the answers of the server: a letter, a length that includes itself, and the rest.
async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, swallows: Arc<AtomicBool>) {
    const NOTIFICATION: u8 = b'A';
    loop {
        let mut head = [0; 5];
        if from.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        if from.read_exact(&mut body).await.is_err() {
            return;
        }
        if head[0] == NOTIFICATION && swallows.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&[&head[..], &body[..]].concat()).await.is_err() {
            return;
        }
    }
}
