//! [`Connection`]: one connection for requests, which is opened again when it is lost.

mod keeper;

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lockcore::{BackendError, BackendErrorKind};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_postgres::{
    Client, Row, Statement,
    types::{ToSql, Type},
};

use self::keeper::Keeper;
use crate::{
    answer::answer, clock::ServerClock, error, past::Past, schema::Schema, session::Begun,
    target::Target,
};

/// How long renewals come before other requests on a new connection. A renewal whose task is not
/// polled, because its thread is blocked, would keep all others from it.
const RENEWALS_FIRST: Duration = Duration::from_millis(500);

/// The pause before a renewal is sent for the third time, the longest pause, and the factor from one
/// to the next. A renewal whose statement ends its session would otherwise keep all other requests
/// from the connection.
const RESEND_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(800)];
const RESEND_FACTOR: u32 = 4;

/// How long to wait for the end of a connection that the server has announced. A pooler may keep it
/// open all the same.
const CLOSING: Duration = Duration::from_millis(200);

/// The interval at which a connection is pinged.
pub(crate) const PING: Duration = Duration::from_secs(5);

/// An argument of a function of the store, with its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection for requests. They arrive in the order in which they were first polled, even across
/// a loss of the connection: requests that an old connection has not carried out are ended at the
/// server before the next connection takes its place.
///
/// Only renewals overtake others, of those that wait for the connection. A new session is slow at
/// first, and a hold is lost if its renewal waits for all other requests. A renewal of a hold that
/// has been released, or is about to be, changes nothing. A renewal that has lost two connections
/// overtakes no more: it may be what ends them.
pub(crate) struct Connection {
    address: String,
    state: watch::Receiver<State>,
    /// The number of renewals that wait for the connection.
    renewals: watch::Sender<usize>,
    response_timeout: Duration,
    keeper: JoinHandle<()>,
}

#[derive(Clone)]
enum State {
    Connecting,
    Up(Arc<Live>),
    /// The error and the number of the last attempt, until another one succeeds.
    Down(BackendError, u64),
}

/// An open connection.
struct Live {
    client: Client,
    /// The server's address, for messages.
    address: String,
    /// The prepared statements, by their text.
    prepared: HashMap<String, Statement>,
    clock: ServerClock,
    opened: Instant,
    /// How many of the renewals that wait for a connection wait for the next one after this.
    lost_by: AtomicUsize,
    /// When the last answer came, in milliseconds since it was opened.
    last_answer: AtomicU64,
    given_up: Notify,
}

impl Live {
    /// Sends a statement with its first poll.
    async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let Some(statement) = self.prepared.get(sql) else {
            return self.client.query_typed(sql, parameters).await;
        };
        let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(statement, &values).await
    }

    fn answered(&self) {
        let passed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_answer.fetch_max(passed, Ordering::Relaxed);
    }

    /// Returns `true` if the server has sent nothing for this time.
    fn is_silent_for(&self, time: Duration) -> bool {
        let last = Duration::from_millis(self.last_answer.load(Ordering::Relaxed));
        // Plus a millisecond, because the times are rounded down.
        self.opened.elapsed() + Duration::from_millis(1) >= last + time
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.state.borrow() {
            State::Connecting => "connecting",
            State::Up(_) => "up",
            State::Down(..) => "down",
        };
        f.debug_struct("Connection").field("address", &self.address).field("state", &state).finish()
    }
}

impl Connection {
    /// Begins to connect.
    pub(crate) fn start(
        target: Target,
        schema: Schema,
        response_timeout: Duration,
        path: Path,
        past: Arc<Past>,
    ) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let (address, begun) = (target.address().to_owned(), Begun::new(&target));
        let keeper = Keeper {
            target,
            schema,
            response_timeout,
            path,
            past,
            lost: None,
            begun,
            state: sender,
        };
        let (renewals, keeper) = (watch::Sender::new(0), tokio::spawn(keeper.keep()));
        Self { address, state, renewals, response_timeout, keeper }
    }

    /// Waits for the first attempt to connect.
    pub(crate) async fn connected(&self) -> Result<(), BackendError> {
        let mut state = self.state.clone();
        let tried = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match tried.as_deref() {
            Ok(State::Down(error, _)) => Err(error.clone()),
            // The task ends with this connection, which still exists.
            _ => Ok(()),
        }
    }

    /// The connection, once it is up. Fails if an attempt fails that ends after this call: the
    /// error of an earlier attempt may be out of date.
    async fn live(&self) -> Result<Arc<Live>, BackendError> {
        let mut state = self.state.clone();
        let mut failed_before = None;
        loop {
            match &*state.borrow_and_update() {
                State::Up(live) if !live.client.is_closed() => return Ok(live.clone()),
                State::Down(error, attempt) => {
                    if attempt > failed_before.get_or_insert(*attempt) {
                        return Err(error.clone());
                    }
                }
                // Lost, and about to be opened again.
                State::Up(_) | State::Connecting => _ = failed_before.get_or_insert(0),
            }
            if state.changed().await.is_err() {
                return Err(error::abandoned(&self.address));
            }
        }
    }

    /// The time by which a request that begins now must be answered, including any wait for the
    /// connection.
    pub(crate) fn limit(&self) -> Instant {
        Instant::now() + self.response_timeout
    }

    /// Calls a function of the store. Nothing is sent before the first poll of the future.
    pub(crate) async fn call(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, BackendError> {
        let limit = self.limit();
        let live = self.live_after_renewals(limit).await?;
        self.send(&live, limit, doing, sql, parameters).await
    }

    /// The time by which a renewal that begins now must be sent, and by which it must be answered.
    ///
    /// The time for the answer begins when it is sent: one that was sent late, and given up, would
    /// keep the next one waiting, and its answer would tell nobody that the hold is renewed. But
    /// the core gives all renewals of a call up after a third of the shortest `lease`.
    pub(crate) fn renewal_limits(&self, lease: Duration) -> RenewalLimits {
        let sent = self.limit();
        RenewalLimits { sent, answered: sent.max(Instant::now() + lease / 4) }
    }

    /// Makes a renewal, which is answered with one row. If its connection is lost, it goes over the
    /// next one: the caller waits for other renewals as well, and would try again too late.
    pub(crate) async fn renew(
        &self,
        limits: RenewalLimits,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, BackendError> {
        let (mut pause, mut is_unsure) = (Duration::ZERO, false);
        // The server may have carried an earlier attempt out.
        let unless_unsure = |error: BackendError, is_unsure| match is_unsure {
            true => error.maybe_applied(),
            false => error,
        };
        let (mut lost, mut still_waits) = (None::<Weak<Live>>, None);
        loop {
            let waits =
                still_waits.take().unwrap_or_else(|| WaitingRenewal::new(&self.renewals, None));
            let live = self.live_by(limits.sent).await;
            let live = live.map_err(|error| unless_unsure(error, is_unsure))?;
            let limit = self.limit().min(limits.answered);
            let mut request = pin!(self.send(&live, limit, doing, sql, parameters));
            // The first poll sends it.
            let first = poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await;
            drop(waits);
            let rows = match first {
                Poll::Ready(rows) => rows,
                Poll::Pending => request.await,
            };
            let error = match rows {
                Err(error) if error.kind() == BackendErrorKind::Connection => error,
                rows => {
                    let row = rows.and_then(|rows| the_only(rows, doing));
                    return row.map_err(|error| unless_unsure(error, is_unsure));
                }
            };
            is_unsure |= error.is_outcome_unknown();
            // It goes first on the next connection, which may be up before this task runs again. Until
            // then, the lost one may fail twice.
            let first = lost.get_or_insert_with(|| Arc::downgrade(&live));
            still_waits = std::ptr::eq(first.as_ptr(), Arc::as_ptr(&live))
                .then(|| WaitingRenewal::new(&self.renewals, Some(live.clone())));
            let again = async {
                tokio::time::sleep(pause).await;
                let is_over = |state: &State| match state {
                    State::Up(current) => !Arc::ptr_eq(current, &live),
                    State::Connecting | State::Down(..) => true,
                };
                let mut state = self.state.clone();
                let over = state.wait_for(is_over);
                if live.client.is_closed() {
                    let _ = over.await;
                } else {
                    let _ = timeout(CLOSING, over).await;
                }
            };
            if timeout_at(limits.sent, again).await.is_err() {
                return Err(unless_unsure(error, is_unsure));
            }
            pause = (pause * RESEND_FACTOR).clamp(RESEND_PAUSES[0], RESEND_PAUSES[1]);
        }
    }

    /// Calls a function with one more parameter, the time at which it is called, and returns its
    /// answer and the number in it. The function refuses a request that it takes for a late one, or
    /// that was undone.
    ///
    /// That request is not sent again here: by the time at which its answer is looked at, the caller
    /// may have undone it. The next one goes by the time in the answer.
    pub(crate) async fn call_dated(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<(i32, i64), BackendError> {
        let limit = self.limit();
        let live = self.live_after_renewals(limit).await?;
        let asked = live.clock.now();
        let parameters = [parameters, &[(&asked, Type::INT8)]].concat();
        let row = the_only(self.send(&live, limit, doing, sql, &parameters).await?, doing)?;
        match answer(&row, doing)? {
            (6, time) => {
                live.clock.note(time);
                Err(error::late(&live.address))
            }
            (5, _) => Err(error::undone(&live.address)),
            answer => Ok(answer),
        }
    }

    async fn live_by(&self, limit: Instant) -> Result<Arc<Live>, BackendError> {
        match timeout_at(limit, self.live()).await {
            // Sent too late, it would keep the server from the requests behind it.
            Ok(Ok(live)) if Instant::now() < limit => Ok(live),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Err(error::not_connected(&self.address, self.response_timeout)),
        }
    }

    /// The connection, once it is up and the renewals that waited for it are sent.
    async fn live_after_renewals(&self, limit: Instant) -> Result<Arc<Live>, BackendError> {
        loop {
            let live = self.live_by(limit).await?;
            let mut renewals = self.renewals.subscribe();
            let last = live.opened + RENEWALS_FIRST;
            // Those that wait for the next one keep nobody from this one, unless it has ended.
            let for_next = || match live.client.is_closed() {
                true => 0,
                false => live.lost_by.load(Ordering::Relaxed),
            };
            let are_sent = |waiting: &usize| *waiting <= for_next();
            if are_sent(&renewals.borrow_and_update()) || last <= Instant::now() {
                return Ok(live);
            }
            let _ = timeout_at(limit.min(last), renewals.wait_for(are_sent)).await;
        }
    }

    async fn send(
        &self,
        live: &Live,
        limit: Instant,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, BackendError> {
        let waited = self.response_timeout;
        match timeout_at(limit, live.query(sql, parameters)).await {
            Ok(answer) => {
                live.answered();
                if answer.as_ref().is_err_and(error::needs_another_session) {
                    live.given_up.notify_one();
                }
                answer.map_err(|error| error::of_request(error, doing, &live.address))
            }
            Err(_) => {
                // Requests before this one may have been slow. If nothing arrives at all, another
                // connection may be better.
                if live.is_silent_for(waited) {
                    live.given_up.notify_one();
                }
                Err(error::no_answer(doing, &live.address, waited))
            }
        }
    }

    /// Calls a function that answers with one row.
    pub(crate) async fn call_one(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, BackendError> {
        the_only(self.call(doing, sql, parameters).await?, doing)
    }
}

/// The time limits of a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalLimits {
    sent: Instant,
    answered: Instant,
}

/// Counts a renewal that waits for the connection, until dropped.
struct WaitingRenewal<'a> {
    waiting: &'a watch::Sender<usize>,
    lost: Option<Arc<Live>>,
}

impl<'a> WaitingRenewal<'a> {
    /// With `lost`, it waits for the next connection after that.
    fn new(waiting: &'a watch::Sender<usize>, lost: Option<Arc<Live>>) -> Self {
        waiting.send_modify(|waiting| {
            *waiting += 1;
            // Together, for those who compare the two.
            if let Some(lost) = &lost {
                lost.lost_by.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { waiting, lost }
    }
}

impl Drop for WaitingRenewal<'_> {
    fn drop(&mut self) {
        let Self { waiting, lost } = self;
        waiting.send_modify(|waiting| {
            *waiting -= 1;
            if let Some(lost) = lost {
                lost.lost_by.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

fn the_only(mut rows: Vec<Row>, doing: &str) -> Result<Row, BackendError> {
    rows.pop().filter(|_| rows.is_empty()).ok_or_else(|| error::unexpected(doing))
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// The path between a client and the server.
#[derive(Clone, Debug)]
pub(crate) enum Path {
    /// The session at the server is this client's alone. These statements are prepared in it.
    Direct(Vec<String>),
    /// A pooler shares sessions among clients. Nothing can be prepared, and no session can be
    /// ended, because another client may use it. Marks keep out late requests.
    Pooled,
}
