//! [`Keeper`]: the task that keeps the connection of a [`WakeupListener`](super::WakeupListener)
//! open, and hands its messages on.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{BackendError, BackendErrorKind};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_postgres::{Client, Notification, SimpleQueryMessage, types::Type};
use uuid::Uuid;

use super::{Progress, Shared};
use crate::{
    connection::{Connection, PING, Parameter},
    error,
    schema::Schema,
    session::Begun,
    target::{Opened, Target},
};

/// The first pause after an attempt to connect that failed, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// The longest wait for a session that nothing is heard from to stop listening.
const STOPPING: Duration = Duration::from_millis(200);

/// The messages of a connection.
type Inbox = mpsc::UnboundedReceiver<Notification>;

/// Shows whether a client hears messages: over its other connection, it sends a message to a
/// channel to which it listens. An open connection alone does not prove that. It may lead to a
/// server that has been replaced, to which no client sends any more.
pub(super) struct Pulse {
    /// The channel that all clients listen to: if one of them sends, the others need not.
    pub(super) channel: String,
    /// The message that this client sends.
    pub(super) id: String,
}

/// The task behind a [`WakeupListener`](super::WakeupListener).
pub(super) struct Keeper {
    pub(super) target: Target,
    pub(super) schema: Schema,
    pub(super) sender: Arc<Connection>,
    pub(super) pulse: Pulse,
    pub(super) response_timeout: Duration,
    pub(super) shared: Arc<Shared>,
    pub(super) progress: watch::Sender<Progress>,
    /// Set once a message has come.
    pub(super) has_heard: bool,
    pub(super) begun: Begun,
}

/// Something that goes on while messages are handed on.
type Errand<'a, T> = Option<Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>>;

/// Waits for the end of an errand, or forever if there is none.
async fn end_of<T>(errand: &mut Errand<'_, T>) -> Result<T, BackendError> {
    match errand {
        Some(running) => {
            let result = running.await;
            *errand = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// The time without a message after which a client sends one. It is random, so that one client
/// sends first and the others need not.
fn quiet() -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() % 1_000).unwrap_or_default();
    PING + PING * random / 1_000
}

impl Keeper {
    pub(super) async fn keep(mut self) {
        let mut pause = PAUSES[0];
        loop {
            let ended = match self.open().await {
                Ok((opened, inbox)) => {
                    self.has_heard = true;
                    pause = PAUSES[0];
                    self.serve(opened, inbox).await
                }
                Err(error) => error,
            };
            self.shared.board().heard.clear();
            tracing::debug!(error = %ended, "wake-ups from PostgreSQL are interrupted");
            self.progress.send_replace(Progress::Down(ended));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Connects to the server that the requests go to. If the first one is another, it tries as
    /// many as there are hosts.
    async fn open(&self) -> Result<(Opened, Inbox), BackendError> {
        let mut left = self.target.count_of_hosts();
        loop {
            let (sender, mut inbox) = mpsc::unbounded_channel();
            let opened = self.begun.open(&self.target, Some(sender)).await?;
            let channel = &self.pulse.channel;
            let listening = self.run(&opened.client, &format!("LISTEN \"{channel}\"")).await;
            let heard = match listening {
                Ok(()) => match self.send().await {
                    Ok(()) => self.hears_itself(&mut inbox).await,
                    Err(error) => {
                        // It is one of the connection for requests.
                        self.stop_listening(&opened.client).await;
                        return Err(error);
                    }
                },
                Err(error) => Err(error),
            };
            match heard {
                Ok(()) => {
                    let ended = self.begun.end_others(&opened.client, &self.schema);
                    let _ = tokio::time::timeout(self.response_timeout, ended).await;
                    self.target.prefer(&opened);
                    return Ok((opened, inbox));
                }
                Err(error) => {
                    self.stop_listening(&opened.client).await;
                    self.target.leave(&opened);
                    left -= 1;
                    if left == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A session that a pooler lends to others must not go on listening.
    async fn stop_listening(&self, client: &Client) {
        let sql = format!("UNLISTEN \"{}\"", self.pulse.channel);
        let _ = tokio::time::timeout(STOPPING, client.batch_execute(&sql)).await;
    }

    /// Hands messages on until the connection is lost or of no use any more.
    async fn serve(&self, mut opened: Opened, inbox: Inbox) -> BackendError {
        let Opened { client, driver, .. } = &mut opened;
        let ended = tokio::select! {
            () = driver.lost() => return self.lost(),
            ended = self.hand_on(client, inbox) => ended,
        };
        // The requests may go to another server by now.
        self.target.leave(&opened);
        ended
    }

    /// Hands messages on until a request fails, or a message does not arrive. Requests to the server
    /// do not delay messages.
    async fn hand_on(&self, client: &Client, mut inbox: Inbox) -> BackendError {
        // Earlier waiters may have missed something.
        let mut missed = self.shared.board().begin();
        let echo = Notify::new();
        let (mut telling, mut ping): (Errand<'_, Vec<String>>, Errand<'_, ()>) = (None, None);
        let mut silence = pin!(tokio::time::sleep(quiet()));
        loop {
            if telling.is_none() {
                telling = self.tell(client);
            }
            tokio::select! {
                Some(notification) = inbox.recv() => {
                    // The ping that looks for lost sessions comes, whatever is heard.
                    if !self.begun.is_looking() {
                        silence.as_mut().reset(Instant::now() + quiet());
                    }
                    if notification.payload() == self.pulse.id {
                        echo.notify_one();
                    }
                    self.shared.deliver(&notification);
                }
                told = end_of(&mut telling) => match told {
                    Ok(begun) => {
                        self.shared.board().begun(&begun);
                        self.progress.send_replace(Progress::Going);
                        self.shared.wake(begun.iter().filter(|name| missed.remove(*name)));
                    }
                    Err(error) => return error,
                },
                () = self.shared.changed.notified(), if telling.is_none() => {}
                answer = end_of(&mut ping) => {
                    if let Err(error) = answer {
                        return error;
                    }
                    silence.as_mut().reset(Instant::now() + quiet());
                }
                () = silence.as_mut(), if ping.is_none() => {
                    ping = Some(Box::pin(self.ping(client, &echo)));
                }
            }
        }
    }

    fn lost(&self) -> BackendError {
        let message = format!("the connection to PostgreSQL at {} was lost", self.target.address());
        BackendError::new(BackendErrorKind::Connection, message).not_applied()
    }

    /// Ends sessions that were lost. Checks that the server still takes writes, and that a message
    /// arrives if one can be sent.
    async fn ping(&self, client: &Client, echo: &Notify) -> Result<(), BackendError> {
        let limit = self.response_timeout;
        let asked = async {
            self.begun.end_others(client, &self.schema).await;
            takes_writes(client).await
        };
        let answer = tokio::time::timeout(limit, asked).await;
        if !matches!(answer, Ok(Ok(true))) {
            return Err(self.lost());
        }
        // A pulse that was given up may have come late. It says nothing about this one.
        let _ = echo.notified().now_or_never();
        match self.send().await {
            Ok(()) => tokio::time::timeout(limit, echo.notified()).await.map_err(|_| self.lost()),
            // The other connection is in trouble, and this one has just answered.
            Err(_) => Ok(()),
        }
    }

    async fn send(&self) -> Result<(), BackendError> {
        let Pulse { channel, id } = &self.pulse;
        let parameters: [Parameter<'_>; 2] = [(channel, Type::TEXT), (id, Type::TEXT)];
        let sql = "SELECT pg_notify($1, $2)";
        self.sender.call("testing the wake-ups", sql, &parameters).await.map(drop)
    }

    /// Begins to tell the server about the channels that have changed, if any have. Returns the
    /// channels whose messages it sends from then on.
    fn tell<'a>(&'a self, client: &'a Client) -> Errand<'a, Vec<String>> {
        let (begun, ended) = self.shared.board().next_changes();
        if begun.is_empty() && ended.is_empty() {
            return None;
        }
        let statement = |word: &str, channel: &String| format!("{word} \"{channel}\";");
        let begin = begun.iter().map(|channel| statement("LISTEN", channel));
        let end = ended.iter().map(|channel| statement("UNLISTEN", channel));
        let sql: String = begin.chain(end).collect();
        Some(Box::pin(async move { self.run(client, &sql).await.map(|()| begun) }))
    }

    async fn run(&self, client: &Client, sql: &str) -> Result<(), BackendError> {
        let address = self.target.address();
        match tokio::time::timeout(self.response_timeout, client.batch_execute(sql)).await {
            Ok(answer) => {
                answer.map_err(|error| error::of_request(error, "listening", address).not_applied())
            }
            Err(_) => {
                Err(error::no_answer("listening", address, self.response_timeout).not_applied())
            }
        }
    }

    /// Waits for the message that it has sent itself. Behind a pooler that shares connections among
    /// clients, listening succeeds, and nothing is ever heard.
    async fn hears_itself(&self, inbox: &mut Inbox) -> Result<(), BackendError> {
        let heard = async {
            while let Some(notification) = inbox.recv().await {
                if notification.payload() == self.pulse.id {
                    return true;
                }
            }
            false
        };
        let address = self.target.address();
        match tokio::time::timeout(self.response_timeout, heard).await {
            Ok(true) => {
                self.progress.send_replace(Progress::Going);
                Ok(())
            }
            Ok(false) => Err(self.lost()),
            // The configuration is right, but the connections may lead to different servers by now.
            Err(_) if self.has_heard => {
                let message = format!(
                    "no wake-ups come from PostgreSQL at {address}: a message that was sent did \
                     not arrive there"
                );
                Err(BackendError::new(BackendErrorKind::Unavailable, message).not_applied())
            }
            Err(_) => Err(error::configuration(format!(
                "no wake-ups come from PostgreSQL at {address}: a message that was sent there did \
                 not arrive. A pooler in transaction mode does not pass them on; give the server's \
                 own address with `listen_url`, of the same database"
            ))),
        }
    }
}

/// Asks whether the session takes writes. Requests that change nothing would not notice.
async fn takes_writes(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let rows = client.simple_query("SHOW transaction_read_only").await?;
    let is_on = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
        _ => false,
    };
    Ok(!rows.iter().any(is_on))
}
