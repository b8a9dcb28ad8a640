#![doc = include_str!("../../README.md")]

mod acquisition;
mod backend;
mod background;
mod client;
mod clock;
mod error;
mod guard;
mod hold;
mod lease;
mod lock;
mod locks;
mod multi;
mod name;
mod owner;
mod release;
mod renewal;
mod retry;
mod store;
mod task;
mod token;
mod waiters;
mod waiting;

pub use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Backend, Capabilities, ConditionId, Conditions, HoldId, Holder,
        Latches, LockState, Mode, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        SubscribeRequest, Wakeups,
    },
    clock::Clock,
    error::{BackendError, BackendErrorKind, LockError, LossReason},
    guard::LockGuard,
    lock::ReentrantLock,
    locks::{Locks, LocksBuilder},
    multi::{MultiGuard, MultiLock},
    name::LockName,
    owner::Owner,
    token::FencingToken,
};
