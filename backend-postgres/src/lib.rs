#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod backend;
mod builder;
mod calls;
mod channel;
mod clock;
mod conditions;
mod connection;
mod diagnosis;
mod directory;
mod error;
mod fencing;
mod inspection;
mod latches;
mod listener;
mod past;
mod places;
mod renewal;
mod schema;
mod session;
mod sweep;
mod target;
#[cfg(feature = "tls")]
mod tls;

pub use crate::{
    backend::PostgresBackend,
    builder::PostgresBackendBuilder,
    fencing::{Fence, STALE_TOKEN, is_stale_token},
};
