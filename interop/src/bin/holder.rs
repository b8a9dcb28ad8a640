//! A process that acquires a lock and keeps it until it is killed: `holder <url> <kind> <name>
//! <lease in ms> [queue timeout in ms]`. A semaphore has one permit.
//!
//! It prints `held <owner>` on stdout when it has the lock. The suite kills it, which leaves its
//! hold, or its place in the queue, as after a crash.

use std::{env, error::Error, future, num::ParseIntError, time::Duration};

use lockcore::Locks;
use lockcore_interop::Kind;
use lockcore_redis::RedisBackend;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, kind, name, lease, queue_timeout @ ..] = arguments.as_slice() else {
        return Err("usage: holder url kind name lease [queue-timeout]".into());
    };
    let kind = Kind::from_wire(kind).ok_or("no such kind")?;
    let mut builder = Locks::builder(RedisBackend::connect(url).await?).lease(ms(lease)?);
    if let [queue_timeout, ..] = queue_timeout {
        builder = builder.queue_timeout(ms(queue_timeout)?);
    }
    let guard = kind.ours(&builder.build()?, name).acquire().await?;
    println!("held {}", guard.wire_owner());
    future::pending().await
}

fn ms(argument: &str) -> Result<Duration, ParseIntError> {
    argument.parse().map(Duration::from_millis)
}
