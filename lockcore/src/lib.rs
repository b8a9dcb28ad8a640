#![doc = include_str!("../../README.md")]

mod acquisition;
mod backend;
mod background;
mod client;
mod clock;
mod condition;
mod error;
mod guard;
mod hold;
mod latch;
mod lease;
mod lock;
mod locks;
mod multi;
mod name;
mod owner;
mod read_write;
mod release;
mod renewal;
mod retry;
mod rw_lock;
mod semaphore;
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
    condition::Condition,
    error::{BackendError, BackendErrorKind, LockError, LossReason},
    guard::LockGuard,
    latch::CountDownLatch,
    lock::ReentrantLock,
    locks::{Locks, LocksBuilder},
    multi::{MultiGuard, MultiLock},
    name::LockName,
    owner::Owner,
    rw_lock::ReadWriteLock,
    semaphore::Semaphore,
    token::FencingToken,
};
