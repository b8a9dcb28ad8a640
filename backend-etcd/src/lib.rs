#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod board;
mod builder;
mod decide;
mod diagnosis;
mod directory;
mod error;
mod inspect;
mod keep;
mod keys;
mod listener;
mod members;
mod record;
mod release;
mod renew;
mod requests;
mod seen;
mod storage;
mod together;

pub use crate::{backend::EtcdBackend, builder::EtcdBackendBuilder};
