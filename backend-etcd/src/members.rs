//! [`Members`]: the members of the cluster, and how a request gets to one of them.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions};
use lockcore::{BackendError, BackendErrorKind};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use crate::{
    error,
    requests::{Answered, Request, WhichCluster},
};

/// The longest wait for one of several members. The core gives up on a call after 5 s.
const LONGEST_SHARE: Duration = Duration::from_secs(4);

/// A member that has not answered for this time when its caller gives up is not asked next.
const SLOW: Duration = Duration::from_millis(200);

/// The members, one of which gets all requests until it fails.
///
/// The etcd client would spread requests over all members. A member that is down answers fastest,
/// with an error, and would get more requests than the others.
pub(crate) struct Members {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The id of the cluster, and the member that told it first.
    cluster: OnceLock<(u64, usize)>,
    /// The prefix of all keys, which is itself a key that the client may read.
    prefix: String,
    response_timeout: Duration,
    /// `true` if there are credentials to get a token with.
    has_user: bool,
}

struct Member {
    /// The address without credentials, for messages.
    address: String,
    url: String,
    options: ConnectOptions,
    client: OnceCell<Client>,
    /// Set once the member has told that it belongs to the cluster.
    is_known: OnceCell<()>,
}

/// An answer.
pub(crate) struct MemberReply<T> {
    pub(crate) answer: T,
    /// The member that answered.
    pub(crate) member: usize,
    /// Set if another member may have carried out the request as well, or may still do so.
    pub(crate) is_repeated: bool,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.address)).finish()
    }
}

/// The addresses of all members.
impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.members.iter().map(|member| &*member.address).collect();
        f.write_str(&error::listed(&addresses))
    }
}

impl Members {
    /// The members at `addresses`, at least one, each as a pair of the text to show and the URL.
    pub(crate) fn new(
        addresses: Vec<(String, String)>,
        prefix: String,
        options: &ConnectOptions,
        has_user: bool,
        response_timeout: Duration,
    ) -> Arc<Self> {
        let member = |(address, url)| Member {
            address,
            url,
            options: options.clone(),
            client: OnceCell::new(),
            is_known: OnceCell::new(),
        };
        let members = addresses.into_iter().map(member).collect();
        let (current, cluster) = (AtomicUsize::new(0), OnceLock::new());
        Arc::new(Self { members, current, cluster, prefix, response_timeout, has_user })
    }

    /// Members at ports 1 of these hosts, for tests that do not connect.
    #[cfg(test)]
    pub(crate) fn unconnected(hosts: &[&str]) -> Arc<Self> {
        let address = |host: &&str| (format!("{host}:1"), format!("http://{host}:1"));
        let addresses = hosts.iter().map(address).collect();
        let (prefix, options) = ("lockcore/".to_owned(), ConnectOptions::new());
        Self::new(addresses, prefix, &options, false, Duration::from_secs(3))
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// The longest wait for one member. With several members, it leaves time for others.
    pub(crate) fn share(&self) -> Duration {
        match u32::try_from(self.len().min(3)) {
            Ok(several) if several > 1 => (self.response_timeout / several).min(LONGEST_SHARE),
            _ => self.response_timeout,
        }
    }

    /// The member to ask, by its index.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// All members, each once, beginning with the current one. Other requests may meanwhile make a
    /// member current that was asked already.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.current();
        (first..self.len()).chain(0..first)
    }

    /// Asks another member from now on, unless that has happened already.
    pub(crate) fn pass_over(&self, index: usize) {
        let next = (index + 1) % self.len();
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns `true` if requests carry a user and a password.
    pub(crate) fn has_user(&self) -> bool {
        self.has_user
    }

    pub(crate) fn address(&self, index: usize) -> &str {
        &self.members[index].address
    }

    /// The client of a member that belongs to the cluster. With credentials, this first asks the
    /// member for a token.
    pub(crate) async fn client(&self, index: usize, doing: &str) -> Result<&Client, BackendError> {
        let Member { address, url, options, client, is_known } = &self.members[index];
        let failed = |error| error::of_request(error, doing, address).not_applied();
        let connecting = || Client::connect([url], Some(options.clone()));
        let client = client.get_or_try_init(connecting).await.map_err(failed)?;
        let asking = || async {
            let question = WhichCluster(&self.prefix);
            let answered = self.send_to(client, &question).await.map_err(failed)?;
            self.check(index, answered.cluster).map_err(BackendError::not_applied)
        };
        is_known.get_or_try_init(asking).await?;
        Ok(client)
    }

    /// Refuses the answer of a member of another cluster. The first answer tells which one is the
    /// right one.
    pub(crate) fn check(&self, index: usize, cluster: Option<u64>) -> Result<(), BackendError> {
        let Some(cluster) = cluster else { return Ok(()) };
        let (known, first) = *self.cluster.get_or_init(|| (cluster, index));
        match cluster == known {
            true => Ok(()),
            false => {
                Err(error::other_cluster(self.address(index), self.address(first)).maybe_applied())
            }
        }
    }

    /// A new client of one of the members, which answers even if it has no leader.
    pub(crate) async fn connect_aside(&self, index: usize) -> Result<Client, etcd_client::Error> {
        self.connect_to(&self.members[index].url).await
    }

    /// The same, of a member other than the given ones.
    pub(crate) async fn connect_to(&self, url: &str) -> Result<Client, etcd_client::Error> {
        let options = self.members.first().map(|member| member.options.clone());
        Client::connect([url], options.map(|options| options.with_require_leader(false))).await
    }

    /// Sends a request to one member after another until one answers, at most once to each. Only a
    /// request that was refused because of its token is sent to the same member again.
    pub(crate) async fn call<R: Request>(
        &self,
        doing: &str,
        request: &R,
    ) -> Result<R::Answer, BackendError> {
        self.call_noting(doing, request).await.map(|reply| reply.answer)
    }

    /// Like [`call`](Self::call), for callers that need to know whether the request was sent twice.
    pub(crate) async fn call_noting<R: Request>(
        &self,
        doing: &str,
        request: &R,
    ) -> Result<MemberReply<R::Answer>, BackendError> {
        let (mut is_unknown, mut failure) = (false, None::<BackendError>);
        let (mut asked, mut shown) = (Vec::new(), 0);
        for index in self.order() {
            let error = match self.ask(index, doing, request).await {
                Ok(answer) => {
                    return Ok(MemberReply { answer, member: index, is_repeated: is_unknown });
                }
                Err(error) => error,
            };
            is_unknown |= error.is_outcome_unknown();
            let is_final = !is_of_member(&error);
            // An endpoint that is of no use is a better reason than one that does not answer. One
            // of another cluster is the reason only if all are: the others may come back.
            let is_better = |shown: &BackendError| {
                !error::is_other_cluster(&error)
                    && (shown.is_retryable() || error::is_other_cluster(shown))
            };
            if is_final || failure.as_ref().is_none_or(is_better) {
                (failure, shown) = (Some(error), asked.len());
            }
            asked.push(self.address(index));
            if is_final {
                // The others are of the same cluster.
                asked.clear();
                break;
            }
            self.pass_over(index);
        }
        let failure = failure.unwrap_or_else(|| error::configuration("there are no members"));
        if shown < asked.len() {
            asked.remove(shown);
        }
        let failure = error::of_several(failure, &asked);
        // One member has refused the request, but another may have carried it out.
        Err(if is_unknown { failure.maybe_applied() } else { failure.not_applied() })
    }

    /// Sends a request to one member only.
    pub(crate) async fn ask<R: Request>(
        &self,
        index: usize,
        doing: &str,
        request: &R,
    ) -> Result<R::Answer, BackendError> {
        let mut unanswered = self.unanswered(index);
        let answer = self.ask_patiently(index, doing, request).await;
        unanswered.is_answered();
        answer
    }

    /// Like [`ask`](Self::ask), but the member is not to blame if the caller gives up.
    pub(crate) async fn ask_patiently<R: Request>(
        &self,
        index: usize,
        doing: &str,
        request: &R,
    ) -> Result<R::Answer, BackendError> {
        match timeout(self.share(), self.send(index, doing, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(error::no_answer(doing, self.address(index), self.share())),
        }
    }

    /// Notes that a member is being waited for.
    pub(crate) fn unanswered(&self, index: usize) -> Unanswered<'_> {
        Unanswered { members: self, index, since: Some(Instant::now()) }
    }

    /// Gets another token from a member, if there are credentials. Streams keep the token that they
    /// were opened with.
    pub(crate) async fn log_in_again(&self, index: usize) -> Result<(), BackendError> {
        const DOING: &str = "asking for another token";
        let address = self.address(index);
        let refreshing = async {
            let failed = |error| error::of_request(error, DOING, address);
            match self.has_user {
                true => self.client(index, DOING).await?.refresh_token().await.map_err(failed),
                false => Ok(()),
            }
        };
        let refreshed = timeout(self.share(), refreshing).await;
        refreshed.unwrap_or_else(|_| Err(error::no_answer(DOING, address, self.share())))
    }

    /// Sends a request to a member of the cluster.
    async fn send<R: Request>(
        &self,
        index: usize,
        doing: &str,
        request: &R,
    ) -> Result<R::Answer, BackendError> {
        let client = self.client(index, doing).await?;
        let failed = |error| error::of_request(error, doing, self.address(index));
        let Answered { answer, cluster } = self.send_to(client, request).await.map_err(failed)?;
        // The server behind the address may have been replaced.
        self.check(index, cluster).map(|()| answer)
    }

    /// Sends a request. A token that is out of date is replaced; nothing was carried out with the
    /// old one.
    async fn send_to<R: Request>(
        &self,
        client: &Client,
        request: &R,
    ) -> Result<Answered<R::Answer>, etcd_client::Error> {
        match request.send(client).await {
            Err(error) if self.has_user && error::is_token_stale(&error) => {
                client.refresh_token().await?;
                request.send(client).await
            }
            answered => answered,
        }
    }
}

/// Returns `true` if another member may have a better answer. It has none if the cluster itself has
/// refused the request.
pub(crate) fn is_of_member(error: &BackendError) -> bool {
    !matches!(
        error.kind(),
        BackendErrorKind::Permission | BackendErrorKind::OutOfMemory | BackendErrorKind::WrongType
    )
}

/// A request that is under way.
///
/// The core gives up on the renewal of a short lease before a member's time is over. If the next
/// renewal went to the same member, it would end in the same way, until the lease is over.
pub(crate) struct Unanswered<'a> {
    members: &'a Members,
    index: usize,
    /// `None` if it was answered, or waited for long enough.
    since: Option<Instant>,
}

impl Unanswered<'_> {
    pub(crate) fn is_answered(&mut self) {
        self.since = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= SLOW) {
            self.members.pass_over(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_to_each_member_once_whatever_others_turn_to() {
        let members = Members::unconnected(&["a", "b", "c"]);
        members.pass_over(0);
        let mut asked = Vec::new();
        for index in members.order() {
            asked.push(index);
            // The failure of its own request, and that of another one to the next member.
            members.pass_over(index);
            members.pass_over((index + 1) % 3);
        }
        assert_eq!(asked, [1, 2, 0]);
    }
}
