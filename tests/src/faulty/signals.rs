//! The faults of latches and conditions.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{Backend, ConditionId, Conditions, Departure, Latches, Wakeups, async_trait},
};

use super::{Faulty, Op};

/// The error of a backend that declares a part and then lacks it when it is called.
pub(super) fn missing(what: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, format!("the backend inside has no {what}"))
}

fn latches(backend: &impl Backend) -> Result<&dyn Latches, BackendError> {
    backend.latches().ok_or_else(|| missing("latches"))
}

fn conditions(backend: &impl Backend) -> Result<&dyn Conditions, BackendError> {
    backend.conditions().ok_or_else(|| missing("conditions"))
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a call that is not passed on would have no faults")]
impl<B: Backend> Latches for Faulty<B> {
    async fn set_count(&self, name: &LockName, count: u32, id: &str) -> Result<bool, BackendError> {
        let (name, id) = (name.clone(), id.to_owned());
        let set =
            |backend: Arc<B>| async move { latches(&*backend)?.set_count(&name, count, &id).await };
        self.call(Op::SetCount, set).await
    }

    async fn count_down(&self, name: &LockName, id: &str) -> Result<u32, BackendError> {
        let (name, id) = (name.clone(), id.to_owned());
        self.call(Op::CountDown, |backend| async move {
            latches(&*backend)?.count_down(&name, &id).await
        })
        .await
    }

    async fn count(&self, name: &LockName) -> Result<u32, BackendError> {
        let name = name.clone();
        self.call(Op::Count, |backend| async move { latches(&*backend)?.count(&name).await }).await
    }

    async fn open(&self, name: &LockName) -> Result<u32, BackendError> {
        let name = name.clone();
        self.call(Op::Open, |backend| async move { latches(&*backend)?.open(&name).await }).await
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Wakeups>, BackendError> {
        let name = name.clone();
        let subscribe = |backend: Arc<B>| async move { latches(&*backend)?.subscribe(&name).await };
        Ok(self.over_the_line(self.call(Op::Subscribe, subscribe).await?))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a call that is not passed on would have no faults")]
impl<B: Backend> Conditions for Faulty<B> {
    async fn join(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<(), BackendError> {
        let (condition, waiter) = (condition.clone(), waiter.to_owned());
        let join = |backend: Arc<B>| async move {
            conditions(&*backend)?.join(&condition, &waiter, keep).await
        };
        self.call(Op::Join, join).await
    }

    async fn stay(
        &self,
        condition: &ConditionId,
        waiter: &str,
        keep: Duration,
    ) -> Result<bool, BackendError> {
        let (condition, waiter) = (condition.clone(), waiter.to_owned());
        let stay = |backend: Arc<B>| async move {
            conditions(&*backend)?.stay(&condition, &waiter, keep).await
        };
        self.call(Op::Stay, stay).await
    }

    async fn leave(
        &self,
        condition: &ConditionId,
        waiter: &str,
        departure: Departure,
    ) -> Result<bool, BackendError> {
        let (condition, waiter) = (condition.clone(), waiter.to_owned());
        let leave = |backend: Arc<B>| async move {
            conditions(&*backend)?.leave(&condition, &waiter, departure).await
        };
        self.call(Op::Leave, leave).await
    }

    async fn notify(&self, condition: &ConditionId, count: u32) -> Result<u32, BackendError> {
        let condition = condition.clone();
        let notify =
            |backend: Arc<B>| async move { conditions(&*backend)?.notify(&condition, count).await };
        self.call(Op::Notify, notify).await
    }

    async fn subscribe(
        &self,
        condition: &ConditionId,
        waiter: &str,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        let (condition, waiter) = (condition.clone(), waiter.to_owned());
        let subscribe = |backend: Arc<B>| async move {
            conditions(&*backend)?.subscribe(&condition, &waiter).await
        };
        Ok(self.over_the_line(self.call(Op::Subscribe, subscribe).await?))
    }
}
