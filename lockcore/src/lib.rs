#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

pub mod backend;
mod client;
mod diagnosis;
mod engine;
mod error;
mod loss;
mod mode;
mod name;
mod owner;
mod state;
mod sync;
mod task;
mod time;
mod token;
mod waits;

pub use crate::{
    diagnosis::{Diagnosis, Finding, Severity},
    error::{BackendError, BackendErrorKind, LockError},
    loss::{Loss, LossReason},
    mode::Mode,
    name::LockName,
    owner::Owner,
    state::{Holder, LockState},
    sync::{
        Condition, CountDownLatch, Lock, LockGuard, Locks, LocksBuilder, MultiGuard, MultiLock,
        RwLock, Semaphore, WaitError, WaitOutcome,
    },
    time::Clock,
    token::FencingToken,
    waits::{
        ClientDescription, ClientInfo, CycleKind, HeldBeside, WaitCycle, WaitLink, Waiting, Waits,
    },
};
