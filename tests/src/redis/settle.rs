//! [`Patience`]: polling servers, which have no event for what a group of them has agreed on.

use std::time::{Duration, Instant};

use redis::FromRedisValue;

use super::{RedisServer, StartError};

/// Longer than any group needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The time between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a single answer may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Waits for a group of servers, up to a limit.
#[derive(Debug)]
pub(super) struct Patience(Instant);

impl Patience {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns when it is time to look again; fails with what is still missing at the limit.
    pub(super) async fn wait(&self, missing: String) -> Result<(), StartError> {
        if self.0.elapsed() >= LIMIT {
            return Err(StartError::Incomplete(format!("not within {LIMIT:?}: {missing}")));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Asks a server that may be gone. The error says which one and what it was asked, without
/// arguments, which may contain a password.
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

/// Fails unless the server is a replica of `primary` and receives its writes, by the account of
/// both: a primary still holds writes back when the replica has just loaded its data.
pub(super) async fn assert_linked(
    server: &RedisServer,
    primary: &RedisServer,
) -> Result<(), String> {
    assert_says(server, &format!("master_port:{}", primary.port())).await?;
    assert_says(server, "master_link_status:up").await?;
    assert_says(primary, &format!(",port={},state=online,", server.port())).await
}

/// Fails unless the server says so about its replication.
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
