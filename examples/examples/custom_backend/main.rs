//! A backend of one's own: `store.rs` keeps locks in a file for all processes of a host, in about 250 lines. Nesting,
//! waiting, renewal and the rest come from lockcore.
//!
//! ```text
//! cargo run --example custom_backend
//! cargo test -p lockcore-examples --example custom_backend    # the conformance kit
//! ```

use std::process::ExitCode;

use lockcore_examples::without_arguments;

#[cfg(all(test, unix))]
mod conformance;
#[cfg(unix)]
mod demo;
#[cfg(unix)]
mod store;

#[tokio::main]
async fn main() -> ExitCode {
    without_arguments("custom_backend", demo).await
}

#[cfg(unix)]
use demo::demo;

#[cfg(not(unix))]
async fn demo() -> Result<(), lockcore_examples::Failure> {
    Err("the backend of this example locks files as Unix does".into())
}
