//! A process that takes a lock and keeps it until it is killed: `holder <url> <name> <lease in ms>`.
//!
//! It says `held <owner>` on stdout when it has the lock. The suite kills it, so that its hold is one whose holder has crashed.

use std::{env, error::Error, future, time::Duration};

use lockcore::Locks;
use lockcore_redis::RedisBackend;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, name, lease] = arguments.as_slice() else { return Err("usage: holder url name lease".into()) };
    let backend = RedisBackend::connect(url).await?;
    let locks = Locks::builder(backend).lease(Duration::from_millis(lease.parse()?)).build()?;
    let guard = locks.lock(name).acquire().await?;
    println!("held {}", guard.wire_owner());
    future::pending().await
}
