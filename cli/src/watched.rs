//! [`Watched`]: a backend that reports each request, for `--verbose`.

use std::{fmt::Debug, future::Future, time::Duration};

use lockcore::{
    BackendError, FencingToken, LockName, LockState,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, Departure,
        Directory, Latches, Limits, Page, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest, ResizeOutcome, ResizeRequest, Start, StoredEntry, SubscribeRequest, Wakeups,
        async_trait,
    },
};
use tokio::time::Instant;

/// A backend whose requests are reported as events, each with its time and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Watched<B>(pub(crate) B);

/// A request that is under way. A request that is given up is reported as well.
struct Asked<'a> {
    request: &'static str,
    name: &'a str,
    began: Instant,
    is_answered: bool,
}

impl Asked<'_> {
    fn answered<T>(
        &mut self,
        answer: &Result<T, BackendError>,
        in_words: impl FnOnce(&T) -> String,
    ) {
        self.is_answered = true;
        let (request, name, took) = (self.request, self.name, self.began.elapsed());
        match answer {
            Ok(answer) => {
                let outcome = in_words(answer);
                tracing::debug!(name, ?took, "{request}: {outcome}");
            }
            Err(error) => tracing::debug!(name, ?took, "{request} failed: {error}"),
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let (request, name, took) = (self.request, self.name, self.began.elapsed());
            tracing::debug!(name, ?took, "{request} was given up before an answer came");
        }
    }
}

/// Waits for `answer`, and reports it.
async fn told<T>(
    request: &'static str,
    name: &str,
    answer: impl Future<Output = Result<T, BackendError>>,
    in_words: impl FnOnce(&T) -> String,
) -> Result<T, BackendError> {
    let mut asked = Asked { request, name, began: Instant::now(), is_answered: false };
    let answer = answer.await;
    asked.answered(&answer, in_words);
    answer
}

fn debug(answer: &impl Debug) -> String {
    format!("{answer:?}")
}

fn done<T>(_: &T) -> String {
    "done".to_owned()
}

fn names_of<'a>(names: impl Iterator<Item = &'a LockName>) -> String {
    names.map(LockName::as_str).collect::<Vec<_>>().join(", ")
}

#[async_trait]
impl<B: Backend> Backend for Watched<B> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn intact_for(&self) -> Option<Duration> {
        self.0.intact_for()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        told("acquire", request.name.as_str(), self.0.acquire(request), debug).await
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        let names = names_of(holds.iter().map(|hold| &hold.name));
        told("renew", &names, self.0.renew(holds), debug).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        told("release", request.name.as_str(), self.0.release(request), debug).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        let in_words = |was_held: &bool| match was_held {
            true => "released".to_owned(),
            false => "it was not held".to_owned(),
        };
        told("force_release", name.as_str(), self.0.force_release(name), in_words).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let in_words = |state: &LockState| {
            format!("{} holders, {} in the queue", state.holders().len(), state.waiters().len())
        };
        told("inspect", name.as_str(), self.0.inspect(name), in_words).await
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        told("subscribe", request.name.as_str(), self.0.subscribe(request), done).await
    }

    async fn resize(&self, request: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        told("resize", request.name.as_str(), self.0.resize(request), debug).await
    }

    async fn raise_token(&self, name: &LockName, token: FencingToken) -> Result<(), BackendError> {
        told("raise_token", name.as_str(), self.0.raise_token(name, token), done).await
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.0.latches().map(|_| self as &dyn Latches)
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        self.0.conditions().map(|_| self as &dyn Conditions)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.0.directory().map(|_| self as &dyn Directory)
    }
}

#[async_trait]
impl<B: Backend> Latches for Watched<B> {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let asked = self.latches_of()?.set_count(name, count, id);
        told("set_count", name.as_str(), asked, debug).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        told("count_down", name.as_str(), self.latches_of()?.count_down(name, id), debug).await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        told("count", name.as_str(), self.latches_of()?.count(name), debug).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        told("open", name.as_str(), self.latches_of()?.open(name), debug).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        told("subscribe", name.as_str(), self.latches_of()?.subscribe(name), done).await
    }
}

#[async_trait]
impl<B: Backend> Conditions for Watched<B> {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        let asked = self.conditions_of()?.join(condition, waiter, keep);
        told("join", condition.lock.as_str(), asked, done).await
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        let asked = self.conditions_of()?.stay(condition, waiter, keep);
        told("stay", condition.lock.as_str(), asked, debug).await
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let asked = self.conditions_of()?.leave(condition, waiter, departure);
        told("leave", condition.lock.as_str(), asked, debug).await
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let asked = self.conditions_of()?.notify(condition, count);
        told("notify", condition.lock.as_str(), asked, debug).await
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let asked = self.conditions_of()?.subscribe(condition, waiter);
        told("subscribe", condition.lock.as_str(), asked, done).await
    }
}

#[async_trait]
impl<B: Backend> Directory for Watched<B> {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        told("names", "", self.directory_of()?.names(start), entries).await
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let asked = self.directory_of()?.put_client(id, record, lifetime);
        told("put_client", id, asked, done).await
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        told("remove_client", id, self.directory_of()?.remove_client(id), done).await
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        told("clients", "", self.directory_of()?.clients(start), entries).await
    }

    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let in_words = |entries: &Vec<StoredEntry>| format!("{} entries", entries.len());
        let asked = self.directory_of()?.storage(name, conditions);
        told("storage", name.as_str(), asked, in_words).await
    }
}

fn entries<T>(page: &Page<T>) -> String {
    let more = if page.next.is_some() { ", and there are more" } else { "" };
    format!("{} entries{more}", page.entries.len())
}

impl<B: Backend> Watched<B> {
    fn latches_of(&self) -> Result<&dyn Latches, BackendError> {
        self.0.latches().ok_or_else(|| BackendError::unsupported("latches"))
    }

    fn conditions_of(&self) -> Result<&dyn Conditions, BackendError> {
        self.0.conditions().ok_or_else(|| BackendError::unsupported("conditions"))
    }

    fn directory_of(&self) -> Result<&dyn Directory, BackendError> {
        self.0.directory().ok_or_else(|| BackendError::unsupported("a directory"))
    }
}
