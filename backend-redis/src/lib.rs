//! The Redis and Valkey backend of [`lockcore`], wire-compatible with Redisson's `RLock` and `RFairLock`.
//!
//! A Rust process with [`RedisBackend`] and a Java process with Redisson contend for the same lock: the same hash, the same
//! channel, the same message.
//!
//! # Requirements
//! Redis 6.0.6 or newer, or Valkey, as a single server. `maxmemory-policy` must be `noeviction`: a server that evicts keys
//! evicts locks. What a server loses, the lock loses: see the non-guarantees in the README.
//!
//! # What is stored
//! For a lock called `order:42`:
//!
//! | key | type | content | time to live |
//! |---|---|---|---|
//! | `order:42` | hash | owner to hold count | the lease |
//! | `redisson_lock_token:{order:42}` | string | the last fencing token | a day, or twice the lease if that is longer; none if Redisson's `RFencedLock` has made it |
//! | `lockcore_hold:{order:42}` | string | the id of the hold, for named owners only (`lockcore_hold_tagged:` if the name has a hash tag of its own) | the lease |
//!
//! | `redisson_lock_queue:{order:42}` | list | for fair locks: owners that wait, in their order | an hour longer than the last place |
//! | `redisson_lock_timeout:{order:42}` | sorted set | for fair locks: when each place lapses | the same |
//!
//! The release message `0` goes to the channel `redisson_lock__channel:{order:42}`; for a fair lock, to the channel of the owner who is
//! first in the queue, `redisson_lock__channel:{order:42}:OWNER`.
//!
//! # Rights
//! With ACLs, the user needs (`&`, the right to channels, exists since Redis 6.2):
//! ```text
//! ~NAMES ~redisson_lock_token:* ~lockcore_hold* ~redisson_lock_queue:* ~redisson_lock_timeout:* &redisson_lock__channel:*
//! +hello +client +info +eval +evalsha +time +exists +hget +hset +hexists +hlen +hgetall +pttl +pexpire +get +set +del
//! +publish +subscribe +unsubscribe +ping
//! +lindex +lpop +lpos +lrem +rpush +zadd +zincrby +zrange +zrangebyscore +zrem +zscore
//! ```
//! The last line is for fair locks and for `force_release`. `client` is used for its harmless `SETINFO` alone and may be left out, and so may `info`, but then the check for a server
//! that evicts keys cannot be made.

mod backend;
mod commands;
mod connect;
mod error;
mod health;
mod keys;
mod reply;
mod script;
mod wakeups;

pub use backend::RedisBackend;
pub use connect::RedisBackendBuilder;
