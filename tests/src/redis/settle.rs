//! [`Patience`]: polls servers, which have no event for an agreement of a group.

use std::time::{Duration, Instant};

use redis::FromRedisValue;

use super::{RedisServer, StartError};

/// The time limit, longer than any group needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The time between two rounds of polling.
const PAUSE: Duration = Duration::from_millis(20);

/// The time limit of a single answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Waits for a group of servers, up to a limit.
#[derive(Debug)]
pub(super) struct Patience(Instant);

impl Patience {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns when it is time to poll again; fails after the limit with what is still missing.
    pub(super) async fn wait(&self, missing: String) -> Result<(), StartError> {
        if self.0.elapsed() >= LIMIT {
            return Err(StartError::Incomplete(format!("not within {LIMIT:?}: {missing}")));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Asks a server that may be down. The error names the server and the command, without arguments,
/// which may contain a password.
pub(super) async fn ask<T: FromRedisValue>(
    server: &RedisServer,
    command: &[&str],
) -> Result<T, String> {
    let failed = |why: &dyn std::fmt::Display| {
        let name = command.get(..2).unwrap_or(command).join(" ");
        format!("{} to {name}: {why}", server.address())
    };
    match tokio::time::timeout(ANSWER, server.try_query(command)).await {
        Ok(answer) => answer.map_err(|error| failed(&error)),
        Err(_) => Err(failed(&"no answer")),
    }
}

/// Fails unless both servers report that this one is a replica of `primary` and receives its
/// writes: a primary still holds writes back when the replica has just loaded its data.
pub(super) async fn assert_linked(
    server: &RedisServer,
    primary: &RedisServer,
) -> Result<(), String> {
    assert_says(server, &format!("master_port:{}", primary.port())).await?;
    assert_says(server, "master_link_status:up").await?;
    assert_says(primary, &format!(",port={},state=online,", server.port())).await
}

/// Fails unless the server reports `expected` about its replication.
pub(super) async fn assert_says(server: &RedisServer, expected: &str) -> Result<(), String> {
    let info: String = ask(server, &["INFO", "replication"]).await?;
    match info.contains(expected) {
        true => Ok(()),
        false => Err(format!("{} does not say {expected}", server.address())),
    }
}

pub(super) fn or_panic<T>(result: Result<T, StartError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
