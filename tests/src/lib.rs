#![doc = include_str!("../README.md")]

mod cases;
pub mod checks;
pub mod conformance;
pub mod crashes;
#[cfg(feature = "etcd")]
mod etcd;
mod events;
mod faulty;
mod fixture;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod folder;
mod history;
pub mod interruptions;
mod poll;
#[cfg(feature = "postgres")]
mod postgres;
mod proxy;
#[cfg(feature = "redis")]
mod redis;
mod retrying;
mod run;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod scratch;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod shared;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
mod stopping;

#[cfg(feature = "etcd")]
pub use crate::etcd::{EtcdCluster, EtcdStartError};
#[cfg(feature = "postgres")]
pub use crate::postgres::{PgBouncer, PostgresServer, PostgresStartError};
#[cfg(feature = "redis")]
pub use crate::redis::{
    Feature, RedisCluster, RedisClusterBuilder, RedisSentinel, RedisSentinelBuilder, RedisServer,
    SlotMigration, StartError, Version, server_has, server_lacks,
};
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub use crate::scratch::scratch;
pub use crate::{
    cases::{Case, Part, cases, crash_cases, interruption_cases, late_cases},
    checks::Operations,
    crashes::Crashes,
    events::{Event, EventLog, Share, What, monotonic, span, wall_clock},
    faulty::{Fault, Faults, Faulty, Op},
    fixture::Fixture,
    history::{Belief, History, Inside, Violation},
    interruptions::{Interrupts, Withholds},
    poll::poll_times,
    proxy::{Conditions, On, Proxy, Way},
    run::{run_case, run_case_paused},
};
