//! [`Server`]: a private redis-server, and counts of its commands.

use std::{collections::HashMap, time::Duration};

use lockcore_testkit::RedisServer;
use redis::{Cmd, aio::MultiplexedConnection};

use crate::{error::Result, measure::process::exact_processor_time};

/// A redis-server for one scenario, with a connection for the benchmark's own queries.
#[derive(Debug)]
pub(crate) struct Server {
    process: RedisServer,
    control: MultiplexedConnection,
}

impl Server {
    /// Starts a server without persistence.
    pub(crate) async fn start() -> Result<Self> {
        let process = RedisServer::try_start(&[])?;
        let client = redis::Client::open(process.url())?;
        Ok(Self { process, control: client.get_multiplexed_async_connection().await? })
    }

    pub(crate) fn url(&self) -> String {
        self.process.url()
    }

    /// The processor time of all threads of the server so far.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        exact_processor_time(self.process.pid())
    }

    /// The number of calls of each command so far, by clients or inside scripts, without the
    /// benchmark's own queries.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        let mut info = redis::cmd("INFO");
        let statistics: String =
            info.arg("commandstats").query_async(&mut self.control.clone()).await?;
        Ok(Calls::parse(&statistics))
    }

    /// The remaining milliseconds of each key; negative for one that is gone.
    pub(crate) async fn left(&self, keys: &[String]) -> Result<Vec<i64>> {
        self.ask_of_each("PTTL", keys).await
    }

    /// The end of each key, in milliseconds since 1970; negative for one that is gone.
    pub(crate) async fn ends(&self, keys: &[String]) -> Result<Vec<i64>> {
        self.ask_of_each("PEXPIRETIME", keys).await
    }

    async fn ask_of_each(&self, command: &str, keys: &[String]) -> Result<Vec<i64>> {
        let mut questions = redis::pipe();
        for key in keys {
            let mut question = Cmd::new();
            question.arg(command).arg(key);
            questions.add_command(question);
        }
        Ok(questions.query_async(&mut self.control.clone()).await?)
    }
}

/// The number of calls of each command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls(HashMap<String, u64>);

impl Calls {
    fn parse(statistics: &str) -> Self {
        let lines = statistics.lines().filter_map(|line| line.strip_prefix("cmdstat_"));
        let calls = lines.filter_map(|line| {
            let (command, rest) = line.split_once(":calls=")?;
            Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Self(calls.collect())
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        let more = |(command, calls): (&String, &u64)| {
            (command.clone(), calls - before.0.get(command).copied().unwrap_or(0))
        };
        Self(self.0.iter().map(more).collect())
    }

    /// The sum for some commands.
    pub(crate) fn of(&self, commands: &[&str]) -> u64 {
        commands.iter().filter_map(|command| self.0.get(*command)).sum()
    }

    /// The sum for all commands, including those inside scripts, without the query for the counts.
    pub(crate) fn all(&self) -> u64 {
        let others = self.0.iter().filter(|(command, _)| *command != "info");
        others.map(|(_, calls)| calls).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_command_and_without_our_own() {
        let before = Calls::parse(
            "# Commandstats\r\ncmdstat_info:calls=2,usec=1\r\ncmdstat_evalsha:calls=5,usec=1\r\n",
        );
        let after = Calls::parse(
            "cmdstat_info:calls=3,usec=1\r\ncmdstat_evalsha:calls=9,usec=1\r\ncmdstat_client|id:calls=1,usec=1\r\n",
        );
        let calls = after.since(&before);
        assert_eq!((calls.of(&["evalsha", "set"]), calls.all()), (4, 5));
    }
}
