#![doc = include_str!("../../README.md")]

mod acquiring;
pub mod backend;
mod client;
mod error;
mod leases;
mod loss;
mod mode;
mod name;
mod owner;
mod state;
mod store;
mod sync;
mod token;
mod unless;

pub use crate::{
    error::{BackendError, BackendErrorKind, LockError},
    leases::clock::Clock,
    loss::{Loss, LossReason},
    mode::Mode,
    name::LockName,
    owner::Owner,
    state::{Holder, LockState},
    sync::{
        Condition, CountDownLatch, Lock, LockGuard, Locks, LocksBuilder, MultiGuard, MultiLock,
        RwLock, Semaphore, WaitError, WaitOutcome,
    },
    token::FencingToken,
};
