#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod builder;
mod decide;
mod error;
mod keep;
mod keys;
mod listener;
mod members;
mod record;
mod release;
mod requests;
mod seen;

pub use crate::{backend::EtcdBackend, builder::EtcdBackendBuilder};
