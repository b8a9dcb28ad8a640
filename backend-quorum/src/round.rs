//! [`Round`]: one request to several members at once.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use lockcore::BackendError;
use tokio::time::timeout;

use crate::member::{Member, MemberSet};

type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// Requests that are on their way to several members.
pub(crate) struct Round<'a, T> {
    members: &'a [Arc<Member>],
    requests: Vec<Request<'a, T>>,
}

enum Request<'a, T> {
    NotMade,
    Pending(Call<'a, T>),
    Answered(Result<T, BackendError>),
}

impl<'a, T> Round<'a, T> {
    /// Prepares requests to the members in `to`.
    pub(crate) fn new<F>(
        members: &'a [Arc<Member>],
        to: MemberSet,
        request: impl Fn(&'a Member) -> F,
    ) -> Self
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'a,
        T: Send + 'a,
    {
        let make = |(index, member): (usize, &'a Arc<Member>)| {
            if !to.contains(index) {
                return Request::NotMade;
            }
            let call = request(member);
            Request::Pending(Box::pin(async move { member.answer(call).await }))
        };
        Self { members, requests: members.iter().enumerate().map(make).collect() }
    }

    /// Waits until `is_decided`, or until all have answered. All requests are polled at least once,
    /// so that each is on its way.
    pub(crate) async fn until(&mut self, is_decided: impl Fn(&Self) -> bool) {
        poll_fn(|context| {
            for request in &mut self.requests {
                if let Request::Pending(call) = request
                    && let Poll::Ready(answer) = call.as_mut().poll(context)
                {
                    *request = Request::Answered(answer);
                }
            }
            match self.pending().is_empty() || is_decided(self) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Waits for those who have not answered yet, unless they were late lately.
    pub(crate) async fn wait_for_prompt(&mut self, time: Duration) {
        let prompt: MemberSet = self.pending().iter().filter(|at| self.is_prompt(*at)).collect();
        if prompt.is_empty() {
            return;
        }
        let all = |round: &Self| round.pending().without(prompt) == round.pending();
        if timeout(time, self.until(all)).await.is_err() {
            for slow in prompt.iter().filter(|member| self.pending().contains(*member)) {
                self.members[slow].note_slow();
            }
        }
    }

    /// Waits for everybody who has not answered yet.
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

    /// The answers so far, with the members that gave them.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (usize, &Result<T, BackendError>)> {
        self.requests.iter().enumerate().filter_map(|(at, request)| match request {
            Request::Answered(answer) => Some((at, answer)),
            Request::NotMade | Request::Pending(_) => None,
        })
    }

    /// The answers that are no errors.
    pub(crate) fn replies(&self) -> impl Iterator<Item = (usize, &T)> {
        self.answers().filter_map(|(at, answer)| Some((at, answer.as_ref().ok()?)))
    }

    /// The members whose request may have had an effect that nobody was told of.
    pub(crate) fn unsure(&self) -> MemberSet {
        let failed = self.answers().filter_map(|(at, answer)| {
            answer.as_ref().err().filter(|error| error.is_outcome_unknown()).map(|_| at)
        });
        self.pending().with(failed.collect())
    }
}
