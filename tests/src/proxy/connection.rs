//! One connection through a [`Proxy`](super::Proxy).

use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
    time::Instant,
};

use super::{Conditions, On, Shared, Way, reset, resp};

/// One connection, as both directions see it.
struct Connection {
    number: u64,
    shared: Arc<Shared>,
    /// `true` if the client has subscribed to anything.
    listens: AtomicBool,
    /// For each unanswered request, `true` if it is one of a lock. Locked for short critical
    /// sections without awaits.
    unanswered: Mutex<VecDeque<bool>>,
}

/// Data on its way, and when it arrives.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

/// Why a direction has ended.
enum End {
    /// The sender has closed it, and the receiver was told.
    Closed,
    /// The connection must be reset.
    Broken,
}

/// Carries one connection until it ends.
pub(super) async fn serve(number: u64, client: TcpStream, shared: Arc<Shared>) {
    let mut resets = shared.resets.subscribe();
    resets.mark_unchanged();
    shared.connections.fetch_add(1, Ordering::SeqCst);
    if let Ok(server) =
        TcpStream::connect((Ipv4Addr::LOCALHOST, shared.target.load(Ordering::SeqCst))).await
    {
        let connection = Connection {
            number,
            shared: shared.clone(),
            listens: AtomicBool::new(false),
            unanswered: Mutex::default(),
        };
        tokio::select! {
            () = carry(&connection, client, server) => {}
            // The halves are dropped by then, and the connection with them.
            _ = resets.changed() => {}
        }
    } else {
        reset(&client);
    }
    shared.connections.fetch_sub(1, Ordering::SeqCst);
    shared.open.send_modify(|open| {
        open.remove(&number);
    });
}

async fn carry(connection: &Connection, client: TcpStream, server: TcpStream) {
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    // A connection that the proxy closes ends with a reset; if its other end closed it, that close
    // is forwarded first.
    reset(&client);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (requests, mut due_requests) = unbounded_channel();
    let (replies, mut due_replies) = unbounded_channel();
    let up = async {
        let take = async {
            tokio::select! {
                () = connection.take(Way::ToServer, from_client, requests) => {}
                () = connection.abandoned() => {}
            }
        };
        tokio::join!(take, connection.give(Way::ToServer, to_server, &mut due_requests)).1
    };
    let down = async {
        let give = async {
            tokio::select! {
                end = connection.give(Way::ToClient, to_client, &mut due_replies) => return end,
                () = connection.abandoned() => {}
            }
            // Continue to read: closing a connection with unread data resets it, and the server may
            // then lose data that it has not read either.
            while due_replies.recv().await.is_some() {}
            End::Closed
        };
        tokio::join!(connection.take(Way::ToClient, from_server, replies), give).1
    };
    tokio::pin!(up, down);
    // A closed client may have sent data that is still on its way; a closed server receives
    // nothing.
    tokio::select! {
        end = &mut up => if let End::Closed = end {
            let _ = tokio::time::timeout(Duration::from_secs(1), down).await;
        },
        _ = &mut down => {
            let _ = tokio::time::timeout(Duration::from_secs(60), up).await;
        }
    }
}

impl Connection {
    /// Reads one direction, message by message, and sets when each arrives at the other end.
    async fn take(&self, way: Way, mut from: OwnedReadHalf, to: UnboundedSender<Piece>) {
        let mut input = Vec::new();
        let mut due = Instant::now();
        let mut pushes = 0_u64;
        loop {
            let mut chunk = [0; 16 * 1024];
            match from.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(length) => input.extend_from_slice(&chunk[..length]),
            }
            loop {
                let end = match resp::message(&input) {
                    _ if self.shared.is_opaque => input.len(),
                    Ok(Some(end)) => end,
                    Ok(None) => break,
                    Err(resp::Malformed) => input.len(),
                };
                let rest = input.split_off(end);
                let bytes = std::mem::replace(&mut input, rest);
                if bytes.is_empty() {
                    break;
                }
                due = due.max(Instant::now() + self.delay(way, &bytes));
                match way {
                    _ if self.shared.is_opaque => {}
                    Way::ToServer => self.note_request(&bytes),
                    Way::ToClient if bytes[0] == b'>' => {
                        pushes += u64::from(is_message(&bytes));
                        if self.conditions().drop_every_second_push
                            && is_message(&bytes)
                            && pushes.is_multiple_of(2)
                        {
                            continue;
                        }
                    }
                    Way::ToClient => {
                        if let Some(stray) = self.stray() {
                            let _ = to.send(Piece { due, bytes: stray });
                        }
                        if self.is_answer_to_lose() {
                            return;
                        }
                    }
                }
                if to.send(Piece { due, bytes }).is_err() {
                    return;
                }
            }
        }
    }

    /// Writes one direction, subject to the conditions.
    async fn give(
        &self,
        way: Way,
        mut to: OwnedWriteHalf,
        pieces: &mut UnboundedReceiver<Piece>,
    ) -> End {
        let mut conditions = self.shared.conditions.subscribe();
        while let Some(piece) = pieces.recv().await {
            tokio::time::sleep_until(piece.due).await;
            self.passable(way, &mut conditions).await;
            let slices = self.conditions().slices;
            let allowed = self.allowed(way, piece.bytes.len());
            let bytes = &piece.bytes[..allowed];
            for bytes in bytes.chunks(if slices { 1 } else { bytes.len().max(1) }) {
                if to.write_all(bytes).await.is_err() {
                    return End::Broken;
                }
                if slices {
                    tokio::task::yield_now().await;
                }
            }
            if allowed < piece.bytes.len() {
                return End::Broken;
            }
        }
        self.passable(way, &mut conditions).await;
        let _ = to.shutdown().await;
        End::Closed
    }

    /// Completes when the client's end is to be reset.
    async fn abandoned(&self) {
        // The sender lives as long as `self`.
        let _ = self.shared.abandoned.subscribe().wait_for(|up_to| *up_to >= self.number).await;
    }

    fn conditions(&self) -> Conditions {
        self.shared.conditions.borrow().clone()
    }

    /// Completes when this direction is open.
    async fn passable(&self, way: Way, conditions: &mut watch::Receiver<Conditions>) {
        // The senders live as long as `self`.
        let mut frozen = self.shared.frozen.subscribe();
        let _ = frozen.wait_for(|(up_to, on)| *up_to < self.number || !self.is_meant(*on)).await;
        let _ = conditions.wait_for(|conditions| !self.is_cut(way, conditions)).await;
    }

    fn is_meant(&self, on: On) -> bool {
        match on {
            On::All => true,
            On::Commands => !self.listens.load(Ordering::SeqCst),
            On::Messages => self.listens.load(Ordering::SeqCst),
        }
    }

    fn is_cut(&self, way: Way, conditions: &Conditions) -> bool {
        self.is_meant(conditions.cut_on)
            && match way {
                Way::ToServer => conditions.cut_to_server,
                Way::ToClient => conditions.cut_to_client,
            }
    }

    fn delay(&self, way: Way, bytes: &[u8]) -> Duration {
        let conditions = self.conditions();
        let jitter = Duration::from_nanos(self.shared.noise(crate::span(conditions.jitter)));
        let mut delay = conditions.latency + jitter;
        if way == Way::ToServer && is_request(bytes) {
            delay += Duration::from_nanos(self.shared.delay_next.swap(0, Ordering::SeqCst));
        }
        delay
    }

    fn note_request(&self, bytes: &[u8]) {
        let names = [
            &b"\r\nSUBSCRIBE\r\n"[..],
            b"\r\nUNSUBSCRIBE\r\n",
            b"\r\nSSUBSCRIBE\r\n",
            b"\r\nSUNSUBSCRIBE\r\n",
        ];
        if names.iter().any(|name| begins(bytes, name)) {
            // This request is answered by pushes.
            self.listens.store(true, Ordering::SeqCst);
            return;
        }
        self.unanswered().push_back(is_request(bytes));
    }

    /// The stray reply to insert before this reply.
    fn stray(&self) -> Option<Vec<u8>> {
        if self.unanswered().front() != Some(&true) {
            return None;
        }
        self.shared.stray.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts a reply. Returns `true` if it must be lost.
    fn is_answer_to_lose(&self) -> bool {
        if self.unanswered().pop_front() != Some(true) {
            return false;
        }
        let number = self.shared.answers.fetch_add(1, Ordering::SeqCst) + 1;
        let lose = &self.shared.lose_answer;
        let is_lost = lose.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.shared.lost_answers.fetch_add(is_lost.into(), Ordering::SeqCst);
        is_lost
    }

    /// How many of `bytes` bytes may pass before the connection is reset.
    fn allowed(&self, way: Way, bytes: usize) -> usize {
        let left = &self.shared.reset_after;
        if way == Way::ToServer || left.load(Ordering::SeqCst) == u64::MAX {
            return bytes;
        }
        let wanted = bytes as u64;
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            // The reset happens once.
            Some(if left == u64::MAX || left < wanted { u64::MAX } else { left - wanted })
        });
        let before = before.unwrap_or(u64::MAX);
        usize::try_from(before.min(wanted)).unwrap_or(bytes)
    }

    fn unanswered(&self) -> std::sync::MutexGuard<'_, VecDeque<bool>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if a request begins with `needle`, in upper or lower case.
fn begins(bytes: &[u8], needle: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(40)];
    start.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle))
}

/// Returns `true` for a request of a lock: a script call, or the `HDEL` of a release.
fn is_request(bytes: &[u8]) -> bool {
    let commands: [&[u8]; 3] = [b"\r\nEVALSHA\r\n", b"\r\nEVAL\r\n", b"\r\nHDEL\r\n"];
    commands.iter().any(|command| begins(bytes, command))
}

/// Returns `true` if a push is a message, not the confirmation of a subscription.
fn is_message(bytes: &[u8]) -> bool {
    begins(bytes, b"\r\nmessage\r\n") || begins(bytes, b"\r\nsmessage\r\n")
}
