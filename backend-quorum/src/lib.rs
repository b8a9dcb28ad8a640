#![doc = include_str!("../README.md")]

mod acquire;
mod builder;
mod directory;
mod doubts;
mod failure;
mod inspect;
mod member;
mod nested;
mod proposals;
mod quorum;
mod release;
mod renew;
mod round;
mod split;
mod subscription;

pub use self::{builder::QuorumBuilder, quorum::Quorum};
