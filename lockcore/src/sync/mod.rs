//! The API for users: [`Locks`], its builder, and the handles and guards that they make.

mod builder;
pub(crate) mod condition;
mod guard;
mod latch;
mod lock;
mod locks;
mod multi;
mod rw_lock;
mod semaphore;
mod wait;

pub use self::{
    builder::LocksBuilder,
    condition::Condition,
    guard::LockGuard,
    latch::CountDownLatch,
    lock::Lock,
    locks::Locks,
    multi::{MultiGuard, MultiLock},
    rw_lock::RwLock,
    semaphore::Semaphore,
    wait::{WaitError, WaitOutcome},
};
