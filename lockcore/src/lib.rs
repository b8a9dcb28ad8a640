#![doc = include_str!("../../README.md")]

mod acquiring;
mod backend;
mod client;
mod error;
mod leases;
mod locks;
mod name;
mod owner;
mod store;
mod token;
mod unless;

pub use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, HoldId,
        Holder, Latches, LockState, Mode, ReleaseOutcome, ReleaseRequest, RenewOutcome,
        RenewRequest, SubscribeRequest, Wakeups,
    },
    error::{BackendError, BackendErrorKind, LockError, LossReason},
    leases::clock::Clock,
    locks::{
        Condition, CountDownLatch, LockGuard, Locks, LocksBuilder, MultiGuard, MultiLock,
        ReadWriteLock, ReentrantLock, Semaphore,
    },
    name::LockName,
    owner::Owner,
    token::FencingToken,
};
