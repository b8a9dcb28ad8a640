#![doc = include_str!("../README.md")]
//!
//! ## What is stored
//! For a lock called `order:42`. Keys that begin with `lockcore_` are our own, and are called `lockcore_hold_tagged:` and so on
//! if the name has a hash tag of its own; the others are Redisson's.
//!
//! | key | type | content | time to live |
//! |---|---|---|---|
//! | **every kind of hold** | | | |
//! | `redisson_lock_token:{order:42}` | string | the last fencing token | a day, or twice the lease if that is longer; none if Redisson's `RFencedLock` has made it |
//! | **exclusive and fair locks** | | | |
//! | `order:42` | hash | owner to hold count | the lease |
//! | `lockcore_hold:{order:42}` | string | the id of the hold, for named owners only | the lease |
//! | `redisson_lock_queue:{order:42}` | list | for fair locks: owners that wait, in their order | an hour longer than the last place |
//! | `redisson_lock_timeout:{order:42}` | sorted set | for fair locks: when each place lapses | the same |
//! | **read-write locks** | | | |
//! | `order:42` | hash | `mode` to `read` or `write`, owner of a reader and `OWNER:lockcore:write` of a writer to hold count | the longest lease |
//! | `{order:42}:FIELD:rwlock_timeout:1` | string | `TOKEN:ID` of the hold | its lease |
//! | `lockcore_writer:{order:42}` | sorted set | `ID OWNER` of the writers that keep new readers out, and until when | the longest of these |
//! | **semaphores** | | | |
//! | `order:42` | string | how many permits can be taken | a day after the last grant or renewal, or twice the lease if that is longer; none once it was set, or if Redisson has made it |
//! | `{order:42}:timeout` | sorted set | the ids of leased permits, and when each ends | the same |
//! | `lockcore_permits_timeout:{order:42}` | sorted set | the same of plain permits that we have taken | the same |
//! | `lockcore_permits:{order:42}` | hash | `kind` to `leased` or `plain`, hold id to `COUNT:TOKEN:OWNER` | the same |
//! | **latches** | | | |
//! | `order:42` | string | what is left to be counted down | none |
//! | `lockcore_latch:{order:42}` | sorted set | the requests of the last minute; `latch` while there is one | a minute; 30 days after the last request while there is a latch |
//! | **conditions** | | | |
//! | `lockcore_condition:{order:42}:NAME` | list | those who wait, in their order | until the last place lapses |
//! | `lockcore_condition_timeout:{order:42}:NAME` | sorted set | when each place lapses | the same |
//!
//! | kind | channel | message |
//! |---|---|---|
//! | exclusive lock | `redisson_lock__channel:{order:42}` | `0` |
//! | fair lock | the same, and `redisson_lock__channel:{order:42}:OWNER` of whoever is first in the queue | `0` |
//! | read-write lock | `redisson_rwlock:{order:42}` | `0` of a reader, `1` of a writer |
//! | semaphore | `redisson_sc:{order:42}` | how many permits can be taken |
//! | latch | `redisson_countdownlatch__channel__{order:42}` | `0` open, `1` set |
//! | condition | `lockcore_condition__channel:{order:42}:WAITER` | `1` |
//!
//! By Redisson's rules `x` and `{x}` have the same tokens, leases of permits, and leases of read and write holds: a semaphore
//! must not be called like one, nor a read-write lock of the same named owner. Where names have hash tags of their own, named owners of
//! read-write locks should have no colon: `{s}:p` of the owner `eu:job` and `{s}:p:eu` of `job` have the same lease. A lock must not
//! be called like the key of a semaphore's leases, `{x}:timeout`: whoever comes second is refused with `WrongType`.
//!
//! ## Rights
//! With ACLs, the user needs (`&`, the right to channels, exists since Redis 6.2):
//! ```text
//! ~NAMES ~{NAMES}:* ~redisson_lock_token:* ~redisson_lock_queue:* ~redisson_lock_timeout:* ~lockcore_* &redisson_* &lockcore_*
//! +hello +client +info +eval +evalsha +time +publish +subscribe +unsubscribe +ping
//! +del +exists +get +hget +hgetall +hmget +hset +pexpire +pttl +set +type +zrangebyscore
//! +lindex +lpop +lpos +lrange +lrem +rpush +zadd +zincrby +zrange +zrem +zscore
//! +hdel +hexists +hlen +zremrangebyscore
//! +hkeys +incrby +persist +zcard +zcount
//! +decr
//! ```
//! The first line of commands is for the connection. The others are for exclusive locks, fair locks, read-write locks,
//! semaphores and conditions, and latches: each kind needs its line and those before it. `client` is used for its harmless
//! `SETINFO` alone and may be left out, and so may `info`, but then the check for a server that evicts keys cannot be made.
//! `mget` is not needed; a user who has it spares the server some work when many locks are taken at the same time.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod batch;
mod commands;
mod conditions;
mod connect;
mod error;
mod exclusive;
#[cfg(test)]
mod fuzz;
mod health;
mod keys;
mod latches;
mod permits;
mod read_write;
mod reply;
mod script;
mod wakeups;
mod wire;

pub use backend::RedisBackend;
pub use connect::RedisBackendBuilder;
