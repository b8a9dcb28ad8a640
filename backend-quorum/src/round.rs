//! [`Round`]: one request to several members at once.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockcore::{BackendError, backend::Backend};
use tokio::time::timeout;

use crate::member::{Member, MemberSet};

/// A request to one member, and its answer.
pub(crate) type Call<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// Requests that are on their way to several members.
///
/// Dropping it drops the requests that were not answered, as if the caller had given up. Once
/// enough members have answered, call [`finish`](Self::finish) instead: a member that is a little
/// slower than the others is healthy.
pub(crate) struct Round<T> {
    members: Arc<[Arc<Member>]>,
    requests: Vec<Request<T>>,
    about: About,
}

/// The subject of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Holds: the answers show the health of the members.
    Holds,
    /// Something else. A member may well have the holds and, say, keep no records of clients.
    Other,
}

enum Request<T> {
    NotMade,
    Pending(Call<T>),
    Answered(Result<T, BackendError>),
}

impl<T: Send + 'static> Round<T> {
    /// Prepares requests to the members in `to`.
    pub(crate) fn new<F>(
        members: &Arc<[Arc<Member>]>,
        to: MemberSet,
        about: About,
        request: impl Fn(usize, Arc<dyn Backend>) -> F,
    ) -> Self
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let make = |(index, member): (usize, &Arc<Member>)| {
            if !to.contains(index) {
                return Request::NotMade;
            }
            let call = member.backend().map(|backend| request(index, backend));
            let member = member.clone();
            let call = async move {
                let call = async { call?.await };
                match about {
                    About::Holds => member.answer(call).await,
                    About::Other => member.other_answer(call).await,
                }
            };
            Request::Pending(Box::pin(call))
        };
        let requests = members.iter().enumerate().map(make).collect();
        Self { members: members.clone(), requests, about }
    }

    /// Makes each request wait for what `before` returns, and fail if that fails. The members have
    /// the usual time to answer after that.
    pub(crate) fn after<F>(mut self, before: impl Fn(usize) -> F) -> Self
    where
        F: Future<Output = Result<(), BackendError>> + Send + 'static,
    {
        for (at, request) in self.requests.iter_mut().enumerate() {
            *request = match std::mem::replace(request, Request::NotMade) {
                Request::Pending(call) => {
                    let before = before(at);
                    Request::Pending(Box::pin(async move {
                        before.await?;
                        call.await
                    }))
                }
                request => request,
            };
        }
        self
    }

    /// Waits until `is_decided`, or until all have answered. All requests are polled at least once,
    /// so that each is on its way.
    pub(crate) async fn until(&mut self, is_decided: impl Fn(&Self) -> bool) {
        poll_fn(|context| {
            self.poll(context);
            match self.pending().is_empty() || is_decided(self) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Takes the answers that have come.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        for request in &mut self.requests {
            if let Request::Pending(call) = request
                && let Poll::Ready(answer) = call.as_mut().poll(context)
            {
                *request = Request::Answered(answer);
            }
        }
    }

    /// Makes the requests in the background. Each is on its way when this returns.
    pub(crate) fn send(mut self) {
        self.poll(&mut Context::from_waker(Waker::noop()));
        self.finish();
    }

    /// Lets the members that have not answered yet do so in the background, for as long as an
    /// answer may take.
    pub(crate) fn finish(mut self) {
        if !self.pending().is_empty() {
            tokio::spawn(async move { self.until(|_| false).await });
        }
    }

    /// Makes each request that was not answered go on with `then`, and forgets the others, as well
    /// as those to `unsent` members.
    pub(crate) fn go_on<F>(
        mut self,
        unsent: MemberSet,
        then: impl Fn(usize, Arc<Member>, Call<T>) -> F,
    ) -> Self
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        for (at, request) in self.requests.iter_mut().enumerate() {
            *request = match std::mem::replace(request, Request::NotMade) {
                Request::Pending(call) if !unsent.contains(at) => {
                    Request::Pending(Box::pin(then(at, self.members[at].clone(), call)))
                }
                _ => Request::NotMade,
            };
        }
        self
    }

    /// Waits for the members that have not answered yet, unless they were late recently.
    pub(crate) async fn wait_for_prompt(&mut self, time: Duration) {
        let prompt = self.pending_prompt();
        if prompt.is_empty() {
            return;
        }
        let all = |round: &Self| round.pending().without(prompt) == round.pending();
        if timeout(time, self.until(all)).await.is_err() && self.about == About::Holds {
            for late in prompt.iter().filter(|member| self.pending().contains(*member)) {
                self.members[late].note_late();
            }
        }
    }

    /// Waits for all members that have not answered yet.
    pub(crate) async fn wait_for_all(&mut self, time: Duration) {
        if !self.pending().is_empty() {
            let _ = timeout(time, self.until(|_| false)).await;
        }
    }

    fn is_prompt(&self, member: usize) -> bool {
        self.members[member].is_prompt()
    }

    /// The members that have not answered yet.
    pub(crate) fn pending(&self) -> MemberSet {
        let requests = self.requests.iter().enumerate();
        requests
            .filter(|(_, request)| matches!(request, Request::Pending(_)))
            .map(|(at, _)| at)
            .collect()
    }

    /// The pending members that were not late recently.
    pub(crate) fn pending_prompt(&self) -> MemberSet {
        self.pending().iter().filter(|at| self.is_prompt(*at)).collect()
    }

    /// The pending members that have answered their last request.
    pub(crate) fn pending_healthy(&self) -> MemberSet {
        self.pending().iter().filter(|at| !self.members[*at].is_failing()).collect()
    }

    /// Those of [`pending_healthy`](Self::pending_healthy) whose last answer did not take long,
    /// compared with the time that this round has `taken`.
    pub(crate) fn pending_quick(&self, taken: Duration) -> MemberSet {
        self.pending_healthy().iter().filter(|at| !self.members[*at].is_slow(taken)).collect()
    }

    /// The answers so far, with the members that gave them.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (usize, &Result<T, BackendError>)> {
        self.requests.iter().enumerate().filter_map(|(at, request)| match request {
            Request::Answered(answer) => Some((at, answer)),
            Request::NotMade | Request::Pending(_) => None,
        })
    }

    /// The answers that are not errors.
    pub(crate) fn replies(&self) -> impl Iterator<Item = (usize, &T)> {
        self.answers().filter_map(|(at, answer)| Some((at, answer.as_ref().ok()?)))
    }

    /// The members whose request may have had an effect without an answer.
    pub(crate) fn unsure(&self) -> MemberSet {
        let failed = self.answers().filter_map(|(at, answer)| {
            answer.as_ref().err().filter(|error| error.is_outcome_unknown()).map(|_| at)
        });
        self.pending().with(failed.collect())
    }
}
