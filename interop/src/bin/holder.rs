//! A process that takes a lock and keeps it until it is killed: `holder <url> <name> <lease in ms>`, and for a fair lock
//! one more, the queue timeout in ms.
//!
//! It says `held <owner>` on stdout when it has the lock. The suite kills it, so that its hold, or its place in the
//! queue, is one of somebody who has crashed.

use std::{env, error::Error, future, num::ParseIntError, time::Duration};

use lockcore::Locks;
use lockcore_redis::RedisBackend;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, name, lease, queue_timeout @ ..] = arguments.as_slice() else {
        return Err("usage: holder url name lease [queue-timeout]".into());
    };
    let builder = Locks::builder(RedisBackend::connect(url).await?).lease(ms(lease)?);
    let lock = match queue_timeout {
        [] => builder.build()?.lock(name),
        [queue_timeout, ..] => builder.queue_timeout(ms(queue_timeout)?).build()?.fair_lock(name),
    };
    let guard = lock.acquire().await?;
    println!("held {}", guard.wire_owner());
    future::pending().await
}

fn ms(argument: &str) -> Result<Duration, ParseIntError> {
    argument.parse().map(Duration::from_millis)
}
