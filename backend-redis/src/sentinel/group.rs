//! [`SentinelGroup`]: the Sentinels of one primary.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lockcore::{BackendError, BackendErrorKind};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, PushInfo,
    aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout_at};

use super::{
    answer::{self, Answer},
    url::SentinelUrl,
};
use crate::{
    credentials::Login,
    in_turn::{HEAD_START, ask_in_turn},
    server::address::Place,
    url::{self, Endpoint, relocated},
};

/// How long a Sentinel may take to connect, and to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most Sentinels that are remembered because others name them.
const MOST_LEARNED: usize = 16;

/// The Sentinels of one primary.
pub(crate) struct SentinelGroup {
    name: String,
    /// How servers are reached, except for the address.
    servers: ConnectionInfo,
    login: Login,
    /// The longest time that a Sentinel may take to connect, as the user set it.
    connect_timeout: Duration,
    /// The Sentinels in the order in which they are asked. Critical sections are short and do not
    /// await, so this is not tokio's mutex.
    sentinels: Mutex<Vec<Sentinel>>,
    /// Set once a Sentinel has named a primary.
    has_answered: AtomicBool,
}

/// One Sentinel, and how it is reached.
#[derive(Clone)]
struct Sentinel {
    info: ConnectionInfo,
    is_learned: bool,
    /// The last primary that it has named.
    named: Option<Endpoint>,
}

impl Sentinel {
    fn new(info: ConnectionInfo, is_learned: bool) -> Self {
        Self { info, is_learned, named: None }
    }

    fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

impl SentinelGroup {
    pub(crate) fn new(target: SentinelUrl, login: Login, connect_timeout: Duration) -> Self {
        let SentinelUrl { servers, sentinels, name } = target;
        let sentinels = sentinels.into_iter().map(|info| Sentinel::new(info, false));
        let sentinels = Mutex::new(sentinels.collect());
        let has_answered = AtomicBool::new(false);
        Self { name, servers, login, connect_timeout, sentinels, has_answered }
    }

    fn sentinels(&self) -> MutexGuard<'_, Vec<Sentinel>> {
        self.sentinels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of the primary that an answer names.
    pub(super) fn place(&self, answer: Answer) -> Place {
        let sentinels = answer.sentinels();
        let Answer { primary, epoch, named_by, .. } = answer;
        let info = relocated(&self.servers, primary);
        Place { info, named_by: Some(named_by), epoch, sentinels }
    }

    /// Asks the Sentinels where the primary is, until one knows. The one that answered last is
    /// asked first.
    pub(crate) async fn ask(self: &Arc<Self>) -> Result<Answer, BackendError> {
        let ask = |sentinel: Sentinel| {
            let group = self.clone();
            async move { group.ask_one(&sentinel).await }
        };
        let sentinels = self.sentinels().clone();
        // The last one has time for an answer, although all before it are silent.
        let turns = u32::try_from(sentinels.len()).unwrap_or(u32::MAX).saturating_add(1);
        let head_start = HEAD_START.min(self.connect_timeout / turns);
        match ask_in_turn(sentinels, head_start, ask, |_| true).await {
            Ok(answer) => {
                self.ask_first(&answer.named_by);
                self.note(&answer);
                Ok(answer)
            }
            Err(failures) => {
                let error = self.none_knows(failures);
                let is_known = self.has_answered.load(Ordering::Relaxed);
                if !is_known || error.kind() != BackendErrorKind::Configuration {
                    return Err(error);
                }
                // Operators replace a primary by removing the group and setting it up again.
                let message = error.message().to_owned();
                let kind = BackendErrorKind::Unavailable;
                Err(BackendError::new(kind, message).not_applied().with_source(error))
            }
        }
    }

    /// Asks all Sentinels. Returns `true` if a majority names another primary than `place`, and none
    /// names this one any more; without epochs, if a majority names the same other one, although
    /// some may still name this one. It is a majority of the `known` ones: a Sentinel that has been
    /// set up again knows no others for some seconds.
    ///
    /// Sentinels that do not answer within `patience` do not count.
    pub(super) async fn has_left(
        &self,
        place: &Place,
        known: usize,
        has_epochs: bool,
        patience: Duration,
    ) -> bool {
        let end = Instant::now() + patience;
        let sentinels = self.sentinels().clone();
        let is_majority = |count: usize| 2 * count > sentinels.len().max(known);
        let mut asked: FuturesUnordered<_> =
            sentinels.iter().map(|sentinel| self.ask_one(sentinel)).collect();
        let mut answers: Vec<Answer> = Vec::new();
        while let Ok(Some(answer)) = timeout_at(end, asked.next()).await {
            let Ok(answer) = answer else { continue };
            let names_other = !answer.names(&place.info);
            let like = answers.iter().filter(|it| it.primary == answer.primary).count();
            if !has_epochs && names_other && is_majority(like + 1) {
                return true;
            }
            answers.push(answer);
        }
        has_epochs
            && is_majority(answers.len())
            && !answers.iter().any(|answer| answer.names(&place.info))
    }

    async fn ask_one(&self, sentinel: &Sentinel) -> Result<Answer, BackendError> {
        let mut connection = self.connect(sentinel, |_| ()).await?;
        answer::ask(&mut connection, &sentinel.address(), &self.name).await
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The addresses of the Sentinels, with those that the others have named.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.sentinels().iter().map(Sentinel::address).collect()
    }

    /// Connects to the Sentinel at `address`.
    pub(crate) async fn connect_to(
        &self,
        address: &str,
    ) -> Result<MultiplexedConnection, BackendError> {
        let found = self.sentinels().iter().find(|known| known.address() == address).cloned();
        match found {
            Some(sentinel) => self.connect(&sentinel, |_| ()).await,
            None => Err(self.none_knows(Vec::new())),
        }
    }

    /// Connects to the Sentinel that is to be asked next. Returns its address as well.
    pub(super) async fn connect_to_next(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, String), BackendError> {
        let Some(sentinel) = self.sentinels().first().cloned() else {
            return Err(self.none_knows(Vec::new()));
        };
        let address = sentinel.address();
        match self.connect(&sentinel, on_push).await {
            Ok(connection) => Ok((connection, address)),
            Err(error) => {
                self.ask_last(&address);
                Err(error)
            }
        }
    }

    async fn connect(
        &self,
        sentinel: &Sentinel,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, BackendError> {
        let info = self.login.apply(sentinel.info.clone(), self.connect_timeout).await?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE.min(self.connect_timeout)))
            .set_response_timeout(Some(PATIENCE))
            .set_push_sender(move |push| {
                on_push(push);
                Ok::<(), ()>(())
            });
        let connecting = async {
            let client = Client::open(info.set_redis_settings(settings))?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        connecting.await.map_err(|error| answer::failed(error, &sentinel.address()))
    }

    /// Asks the Sentinel that `connection` leads to.
    pub(super) async fn ask_again(
        &self,
        connection: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<Answer, BackendError> {
        let answer = answer::ask(connection, address, &self.name).await?;
        self.note(&answer);
        Ok(answer)
    }

    /// Remembers the primary and the Sentinels that the one that has answered names.
    fn note(&self, answer: &Answer) {
        self.has_answered.store(true, Ordering::Relaxed);
        let mut sentinels = self.sentinels();
        let like = sentinels.iter_mut().find(|sentinel| sentinel.address() == answer.named_by);
        let Some(like) = like else { return };
        like.named = Some(answer.primary.clone());
        let like = like.info.clone();
        for other in &answer.others {
            let info = relocated(&like, other.clone());
            let learned = sentinels.iter().filter(|sentinel| sentinel.is_learned).count();
            let is_known = sentinels.iter().any(|known| known.info.addr() == info.addr());
            if !is_known && learned < MOST_LEARNED {
                sentinels.push(Sentinel::new(info, true));
            }
        }
        // Sentinels that were learned from this one, and that it no longer knows, are gone.
        let names = |sentinel: &Sentinel| {
            let address = sentinel.address();
            address == answer.named_by
                || answer.others.iter().any(|(host, port)| address == format!("{host}:{port}"))
        };
        sentinels.retain(|sentinel| !sentinel.is_learned || names(sentinel));
    }

    /// Asks the Sentinel at `address` first from now on.
    fn ask_first(&self, address: &str) {
        self.sentinels().sort_by_key(|sentinel| sentinel.address() != address);
    }

    /// The server that the Sentinel at `address` has named is of no use. The Sentinel is asked last
    /// from now on, unless it has named another one since.
    pub(super) fn reject(&self, address: &str, server: &ConnectionInfo) {
        let server = url::endpoint(server.addr());
        let still_names = |sentinel: &Sentinel| {
            sentinel.address() == address && (sentinel.named.is_none() || sentinel.named == server)
        };
        if self.sentinels().iter().any(still_names) {
            self.ask_last(address);
        }
    }

    /// Asks the Sentinel at `address` last from now on.
    pub(super) fn ask_last(&self, address: &str) {
        self.sentinels().sort_by_key(|sentinel| sentinel.address() == address);
    }

    fn none_knows(&self, failures: Vec<BackendError>) -> BackendError {
        // A permanent error is not hidden behind a temporary one, unless a retry can help.
        let kind = match failures.iter().find(|failure| failure.is_retryable()) {
            Some(_) => BackendErrorKind::Unavailable,
            None => failures.first().map_or(BackendErrorKind::Configuration, BackendError::kind),
        };
        let failures = match <[BackendError; 1]>::try_from(failures) {
            Ok([only]) => return only,
            Err(failures) => failures,
        };
        let listed: Vec<String> = failures.iter().map(ToString::to_string).collect();
        let listed = listed.join("; ");
        let message = format!("no Sentinel says where the primary `{}` is ({listed})", self.name);
        BackendError::new(kind, message)
    }
}

/// Omits all credentials.
impl fmt::Debug for SentinelGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<String> = self.sentinels().iter().map(Sentinel::address).collect();
        f.debug_struct("SentinelGroup")
            .field("name", &self.name)
            .field("sentinels", &sentinels)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sentinel::url::parse;

    #[test]
    fn a_sentinel_is_asked_last_unless_it_has_named_another_server_since() {
        let target = parse("redis+sentinel://one,two/primary", true).unwrap().unwrap();
        let group = SentinelGroup::new(target, Login::default(), Duration::from_secs(1));
        let answer = |primary: &str| Answer {
            primary: (primary.to_owned(), 6379),
            epoch: None,
            others: Vec::new(),
            named_by: "one:26379".to_owned(),
        };
        let [old, new] = ["old", "new"].map(|primary| group.place(answer(primary)));
        let first = || group.addresses().swap_remove(0);

        group.note(&answer("old"));
        group.note(&answer("new"));
        group.reject("one:26379", &old.info);
        assert_eq!(first(), "one:26379");
        group.reject("one:26379", &new.info);
        assert_eq!(first(), "two:26379");
    }
}
