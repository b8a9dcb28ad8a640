#![doc = include_str!("../README.md")]

mod cases;
pub mod checks;
pub mod conformance;
mod events;
mod faulty;
mod fixture;
mod history;
mod poll;
mod proxy;
mod redis_server;
mod run;

pub use crate::{
    cases::{Case, cases},
    checks::Operations,
    events::{Event, EventLog, Share, What, monotonic, span, wall_clock},
    faulty::{Fault, Faults, Faulty, Op},
    fixture::Fixture,
    history::{Belief, History, Inside, Violation},
    poll::poll_times,
    proxy::{Conditions, On, Proxy, Way},
    redis_server::{RedisServer, StartError},
    run::{run_case, run_case_paused},
};
