#![doc = include_str!("../README.md")]
//!
//! ## Stored keys
//! The examples are for a lock named `order:42`. Keys that begin with `lockcore_` are our own; the
//! others are Redisson's. If the name of the lock has a hash tag, our own keys have no braces and a
//! longer prefix, such as `lockcore_hold_tagged:`.
//!
//! **All kinds of holds**
//!
//! - `redisson_lock_token:{order:42}`, a string: the last fencing token. Lives for a day, or twice
//!   the lease if that is longer. Has no expiry if Redisson's `RFencedLock` created it.
//!
//! **Exclusive and fair locks**
//!
//! - `order:42`, a hash: owner to hold count. Lives as long as the lease.
//! - `lockcore_hold:{order:42}`, a string: the id of the hold, for named owners only. Lives as long
//!   as the lease.
//! - `redisson_lock_queue:{order:42}`, a list, for fair locks: the waiting owners in order of
//!   arrival. Lives for an hour after the last place expires.
//! - `lockcore_queue_lock:{order:42}`, a string, for fair locks: the name of the lock that the
//!   queue belongs to. Lives until the last place expires.
//! - `redisson_lock_timeout:{order:42}`, a sorted set, for fair locks: when each place expires.
//!   Lives as long as the queue.
//! - `lockcore_direct_grant:{order:42}`, a hash, for fair locks: waiting owner to
//!   `NUMBER:UNTIL:TIME` of its last request, if a release may grant it: its number, the time at
//!   which its place expires, and for how long the place is kept, in ms. Lives as long as the
//!   queue.
//!
//! **Read-write locks**
//!
//! - `order:42`, a hash: `mode` to `read` or `write`, and field to hold count. The field of a
//!   reader is `OWNER`, the field of a writer is `OWNER:lockcore:write`. Lives as long as the
//!   longest lease.
//! - `{order:42}:FIELD:rwlock_timeout:1`, a string: `TOKEN:ID` of the hold. Lives as long as the
//!   lease of that hold.
//! - `lockcore_writer:{order:42}`, a sorted set: `ID OWNER` of each waiting writer that blocks new
//!   readers, and until when. Lives until the last of these times.
//!
//! **Semaphores**
//!
//! - `order:42`, a string: the number of available permits. Lives for a day after the last grant or
//!   renewal, or for twice the lease if that is longer. Has no expiry if the number was set with
//!   `resize`, or if Redisson created the key.
//! - `{order:42}:timeout`, a sorted set: the ids of leased permits, and when each ends. Lives as
//!   long as the number.
//! - `lockcore_permits_timeout:{order:42}`, a sorted set: the same for plain permits that this
//!   backend took. Lives as long as the number.
//! - `lockcore_permits:{order:42}`, a hash: `kind` to `leased` or `plain`, and hold id to
//!   `COUNT:TOKEN:OWNER`. Lives as long as the number.
//!
//! **Latches**
//!
//! - `order:42`, a string: the count. Has no expiry.
//! - `lockcore_latch:{order:42}`, a sorted set: the requests of the last minute, and `latch` while
//!   the latch is closed. Lives for a minute after the last request, or for 30 days while the latch
//!   is closed.
//!
//! **Conditions**
//!
//! - `lockcore_condition:{order:42}:NAME`, a list: the waiters in order of arrival. Lives until the
//!   last place expires.
//! - `lockcore_condition_timeout:{order:42}:NAME`, a sorted set: when each place expires. Lives as
//!   long as the list.
//!
//! **Records of clients**
//!
//! All are in one slot. They have the key prefix of the backend instead of the name of a lock, here
//! none.
//!
//! - `lockcore_client:{clients}:ID`, a string: the record of the client `ID`. Lives as long as the
//!   client says.
//! - `lockcore_clients:{clients}`, a sorted set: the ids, all with the score 0. Lives for two hours
//!   after the last record was written. Ids whose records have ended are removed by other clients.
//!
//! ## Channels
//! | kind | channel | message |
//! |---|---|---|
//! | exclusive lock | `redisson_lock__channel:{order:42}` | `0` |
//! | fair lock | that one | `00` from a fair hold |
//! | fair lock | `redisson_lock__channel:{order:42}:OWNER` | `0`, or `TOKEN:NUMBER` |
//! | demand for an exclusive lock | `redisson_lock__channel:{order:42}:wanted` | `2` |
//! | read-write lock | `redisson_rwlock:{order:42}` | `0` from a reader, `1` from a writer |
//! | semaphore | `redisson_sc:{order:42}` | the number of available permits |
//! | latch | `redisson_countdownlatch__channel__{order:42}` | `0` opened, `1` set |
//! | condition | `lockcore_condition__channel:{order:42}:WAITER` | `1` |
//!
//! `OWNER` is the first owner in the queue of a fair lock. The messages of locks are published by
//! releases, and by grants that end earlier than the waiters were told.
//!
//! A waiter for a fair lock listens to both channels of the lock: holds that did not queue, those of
//! Redisson's `RLock` among them, end with a message on the first one only. There, it ignores `00`,
//! which is for those who do not queue: the first in the queue has a message of its own. To
//! Redisson, `00` is the number 0, as in the release of any lock.
//!
//! `TOKEN:NUMBER` says that the release has granted the lock to `OWNER`, with this token, on the
//! strength of its request of this number. The number is random, so that nobody can make up such a
//! message without the right to read `lockcore_direct_grant:{order:42}`. Any other message proves
//! nothing: it is a reason to ask.
//!
//! The demand is published by each refused request for an exclusive or fair lock. Redisson neither
//! publishes it nor listens to that channel. A client that begins to listen there also asks the
//! server with `PUBSUB NUMSUB`, or `SHARDNUMSUB`, whether anybody listens to the channel of the
//! lock: waiters, including those of Redisson, were refused before. The answer does not include
//! listeners at other servers: at replicas, or on a cluster with plain messages at other nodes.
//!
//! On a cluster, the channels are sharded ones if the servers have them; see [`ClusterMessages`].
//!
//! ## Names to avoid
//! By Redisson's rules, different names can have the same derived keys:
//!
//! - `x` and `{x}` have the same token, the same queue, the same permit leases, and the same read
//!   and write leases. Do not use both as semaphores, or as read-write locks with the same named
//!   owner. While a fair lock has waiters, the fair lock with the other name is refused with
//!   `WrongType`.
//! - If names have hash tags, the names of owners of read-write locks should have no colon: `{s}:p`
//!   with the owner `eu:job` and `{s}:p:eu` with the owner `job` have the same lease.
//! - On a cluster with sharded messages, a latch must not have a hash tag: Redisson puts braces
//!   around its whole name, so that its channel is in another slot. It is refused.
//! - A lock must not have the name of the key of a semaphore's leases, `{x}:timeout`. The second of
//!   the two to be used is refused with `WrongType`.
//!
//! ## The names in use
//! [`Backend::directory`](lockcore::backend::Backend::directory) finds them with `SCAN`, about a
//! hundred keys at a time. A script judges the keys in the same step, by their names, types and
//! fields, so that keys of other applications are not reported. It writes nothing. No server has to
//! be asked for `KEYS`.
//!
//! - Locks of Redisson are reported as well, and so are its semaphores with leases while a permit is
//!   taken. Its `RSemaphore` and `RCountDownLatch` are a string with a number, like a counter of any
//!   other application, and are not reported. Neither is a latch of lockcore that nobody has
//!   counted down for 30 days.
//! - A hash with one field is a lock if the field is an owner, which begins with a UUID, or if the
//!   name has a `lockcore_hold` key.
//! - A fair lock that only Redisson uses has no key that exists all the time. If it passes from a
//!   holder to a waiter in the middle of a walk, the walk may miss it.
//! - Keys that the user may not read are passed over. The server may note them in its `ACL LOG`.
//! - A walk fails with [`Unavailable`](lockcore::BackendErrorKind::Unavailable) if it would miss
//!   names: another server answers than at its beginning, or the server was restarted. On a cluster,
//!   it visits one primary after the other, and fails if slots move, if a replica takes over, or if
//!   some slots are not served. Begin it again then.
//!
//! ## Access rights
//! With ACLs, the user needs these rights (`&`, the right to channels, exists since Redis 6.2):
//! ```text
//! ~NAMES ~{NAMES}:* ~redisson_lock_token:* ~redisson_lock_queue:* ~redisson_lock_timeout:*
//! ~lockcore_* &redisson_* &lockcore_*
//! +hello +client +info +eval +evalsha +time +publish +subscribe +unsubscribe +ping
//! +del +exists +get +hdel +hget +hgetall +hmget +hset +pexpire +pttl +set +type +zrangebyscore
//! +lindex +lpop +lpos +lrange +lrem +rpush +zadd +zincrby +zrange +zrem +zscore
//! +hexists +hlen +zremrangebyscore
//! +hkeys +incrby +persist +zcard +zcount
//! +decr
//! ```
//! The first line of commands is for the connection. The next lines are for exclusive locks, fair
//! locks, read-write locks, semaphores with conditions, and latches. Each of these needs its own
//! line and all lines before it.
//!
//! On a cluster, the user also needs these rights, the second line for sharded messages (Redis
//! 7.0), and `&redisson_* &lockcore_*` for their channels as well:
//! ```text
//! +asking +cluster|slots +cluster|info
//! +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe
//! ```
//!
//! The directory needs these rights, the second one on a cluster:
//! ```text
//! +scan +zrangebylex
//! +cluster|nodes
//! ```
//! It also needs the rights for the kinds of locks that it is to find.
//!
//! Holds that [replicas](RedisBackendBuilder::replicas) have to acknowledge need `+wait` as well.
//!
//! - `client` is used for `SETINFO` only and can be left out.
//! - `cluster|info` can be left out.
//! - `info` can be left out. Then the backend cannot check whether the server evicts keys, and
//!   acquires by scripts only.
//! - `pubsub|numsub` is not needed. With it, a client that listens to the demand for a lock hears
//!   at once of those who wait already. On a cluster with sharded messages, `pubsub|shardnumsub`
//!   has the same effect.
//! - `restore`, `multi` and `exec` are not needed. With these and `incrby`, a lock that this client
//!   released a moment ago is acquired without a script, or on a cluster with many others by a
//!   short one, which costs the server less. That is so from Redis 7.0 on, and on every Valkey.
//! - `pexpireat` is not needed. With it, the release of a fair lock grants it to the next waiter.
//! - `config|get`, `scan`, `hscan` and, on a cluster, `cluster|nodes` are for
//!   [`RedisBackend::diagnose`] only, which reports the checks that it could not make.
//! - `mget` and `zmscore` are not needed. With `mget`, many acquisitions at the same time cost the
//!   server less; with `zmscore` (Redis 6.2), so do holds of many permits.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod builder;
mod cluster;
mod conditions;
mod credentials;
mod demand;
mod diagnosis;
mod directory;
mod dispatch;
mod error;
mod exclusive;
#[cfg(test)]
mod fuzz;
mod in_turn;
mod info;
mod keys;
mod latches;
mod permits;
mod probe;
mod read_write;
mod renewal;
mod reply;
mod restore;
mod script;
mod sentinel;
mod server;
mod storage;
#[cfg(test)]
mod token_expiry;
mod turn;
mod url;
mod wire;

pub use backend::RedisBackend;
pub use builder::RedisBackendBuilder;
pub use cluster::ClusterMessages;
pub use credentials::{Credentials, CredentialsProvider};
pub use info::{DeploymentKind, RedisInfo, Support};
