//! [`Keeper`]: the task that keeps a [`Connection`](super::Connection) open.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::Duration,
};

use futures_util::{
    TryFutureExt,
    future::{try_join_all, try_join5},
};
use lockcore::BackendError;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_postgres::{Client, Statement};

use super::{Live, PING, Path, State};
use crate::{
    clock::ServerClock,
    error,
    past::Past,
    schema::Schema,
    session::{Begun, Session},
    target::{Opened, Target},
};

/// The first pause between the beginnings of two attempts to connect, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// The answers of the server to a new connection.
struct Prepared {
    /// Set if the session that was lost has ended.
    has_ended: bool,
    /// The new session, unless a pooler shares it among clients.
    session: Option<Session>,
    statements: HashMap<String, Statement>,
    /// The server's clock, in microseconds since 1970.
    time: i64,
}

/// The task behind a [`Connection`](super::Connection).
pub(super) struct Keeper {
    pub(super) target: Target,
    pub(super) schema: Schema,
    pub(super) response_timeout: Duration,
    pub(super) path: Path,
    pub(super) past: Arc<Past>,
    /// The session that was lost last, unless a pooler keeps it for others.
    pub(super) lost: Option<Session>,
    pub(super) begun: Begun,
    pub(super) state: watch::Sender<State>,
}

impl Keeper {
    pub(super) async fn keep(mut self) {
        let (mut pause, mut attempt) = (PAUSES[0], 0);
        loop {
            attempt += 1;
            let began = Instant::now();
            match self.open().await {
                Ok((opened, mut prepared)) => {
                    self.lost = prepared.session.take();
                    self.serve(opened, prepared).await;
                    self.state.send_replace(State::Connecting);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot connect to PostgreSQL");
                    self.state.send_replace(State::Down(error, attempt));
                }
            }
            // An attempt or a session that has lasted longer than the pause is followed by the next
            // attempt at once. A session that ends soon counts as a failure.
            let is_brief = began.elapsed() < PAUSES[1];
            tokio::time::sleep_until(began + pause).await;
            pause = if is_brief { (pause * 2).min(PAUSES[1]) } else { PAUSES[0] };
        }
    }

    /// Connects, and makes sure that no request sent over an earlier connection takes effect later.
    async fn open(&self) -> Result<(Opened, Prepared), BackendError> {
        let opened = self.begun.open(&self.target, None).await?;
        let (address, limit) = (self.target.address(), self.response_timeout);
        let prepared = timeout(limit, self.prepare(&opened.client)).await;
        match prepared.unwrap_or_else(|_| Err(error::not_connected(address, limit))) {
            Ok(Prepared { has_ended: false, .. }) => Err(error::still_busy(address)),
            Ok(prepared) => {
                self.target.prefer(&opened);
                Ok((opened, prepared))
            }
            Err(error) => {
                self.target.leave(&opened);
                Err(error)
            }
        }
    }

    /// Takes one round trip: the server gets all of it at once.
    async fn prepare(&self, client: &Client) -> Result<Prepared, BackendError> {
        let (often, has_session) = match &self.path {
            Path::Direct(often) => (often.as_slice(), true),
            Path::Pooled => (&[][..], false),
        };
        let of_connecting = |error| self.of_connecting(error);
        let ended = async {
            match &self.lost {
                Some(lost) => lost.end(client, &self.schema).await.map_err(of_connecting),
                None => Ok(true),
            }
        };
        let session = async {
            match has_session {
                true => Session::of(client, &self.schema).await.map(Some).map_err(of_connecting),
                false => Ok(None),
            }
        };
        // No request was sent over these, so nothing depends on their end.
        let others = async {
            if has_session {
                self.begun.end_others(client, &self.schema).await;
            }
            Ok(())
        };
        let prepared = try_join_all(often.iter().map(|sql| client.prepare(sql)));
        let prepared = prepared.map_err(of_connecting);
        // Statements are prepared first: until the end, the server shows that this session is being
        // opened, and not that it serves requests.
        let (prepared, has_ended, time, (), session) =
            try_join5(prepared, ended, self.raise_tokens(client), others, session).await?;
        let statements = often.iter().cloned().zip(prepared).collect();
        let session = session.map(|(session, server)| {
            self.past.note(server);
            session
        });
        Ok(Prepared { has_ended, session, statements, time })
    }

    fn of_connecting(&self, error: tokio_postgres::Error) -> BackendError {
        error::of_connecting(error, self.target.address())
    }

    /// This may be another server by now, or one with an older state. Otherwise the tokens would be
    /// raised with the next grant, which would have to wait for that. Returns the server's time.
    async fn raise_tokens(&self, client: &Client) -> Result<i64, BackendError> {
        let of_connecting = |error| self.of_connecting(error);
        let sql = self.schema.sql("SELECT lockcore.clock() FROM lockcore.raise_tokens_to_clock()");
        let row = client.query_typed_one(&sql, &[]).await.map_err(of_connecting)?;
        row.try_get(0).map_err(of_connecting)
    }

    /// Asks whether the session takes writes, and for the time. Ends sessions that were lost.
    async fn ping(&self, live: &Live) -> Result<bool, tokio_postgres::Error> {
        if matches!(self.path, Path::Direct(_)) {
            self.begun.end_others(&live.client, &self.schema).await;
        }
        let sql = "SELECT current_setting('transaction_read_only') = 'off', lockcore.clock()";
        let row = live.client.query_typed_one(&self.schema.sql(sql), &[]).await?;
        live.clock.note(row.try_get(1)?);
        row.try_get(0)
    }

    /// Offers the connection for requests until it is lost.
    async fn serve(&self, opened: Opened, prepared: Prepared) {
        let Opened { client, mut driver, address, .. } = opened;
        let (prepared, clock) = (prepared.statements, ServerClock::at(prepared.time));
        let (opened, given_up) = (Instant::now(), Notify::new());
        let (lost_by, last_answer) = (AtomicUsize::new(0), AtomicU64::new(0));
        let live =
            Live { client, address, prepared, clock, opened, lost_by, last_answer, given_up };
        let live = Arc::new(live);
        self.state.send_replace(State::Up(live.clone()));
        loop {
            tokio::select! {
                () = driver.lost() => return,
                () = live.given_up.notified() => return,
                () = tokio::time::sleep(PING) => {}
            }
            let ping = timeout(self.response_timeout, self.ping(&live));
            let answer = tokio::select! {
                () = driver.lost() => return,
                answer = ping => answer,
            };
            match answer {
                Ok(Ok(true)) => live.answered(),
                // Another server may take them, and know that a lock is free by now.
                Ok(Ok(false)) => return,
                // Requests before it may be slow, and may have been answered meanwhile.
                _ if live.is_silent_for(self.response_timeout) => return,
                _ => {}
            }
        }
    }
}
