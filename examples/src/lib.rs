//! Shared code of the examples, unrelated to locks: their arguments, the choice of the backend, and
//! the lines that they print.

mod run;
mod store;
mod story;

pub use crate::{
    run::{Failure, claim, run_with, with_store, without_arguments},
    store::Store,
    story::Story,
};

/// The guides, so that their code is compiled and run by `cargo test --doc`.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../docs/CONFIGURATION.md")]
    mod configuration {}

    #[doc = include_str!("../../docs/GUIDE.md")]
    mod guide {}

    #[doc = include_str!("../../docs/METRICS.md")]
    mod metrics {}

    #[doc = include_str!("../../docs/SHARING-WITH-REDISSON.md")]
    mod sharing_with_redisson {}

    #[doc = include_str!("../../docs/TESTING.md")]
    mod testing {}

    #[doc = include_str!("../../docs/WHICH-SYNCHRONIZER.md")]
    mod which_synchronizer {}
}
