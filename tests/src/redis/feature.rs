//! [`Feature`]: features that an older server lacks.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write},
    thread,
};

use super::Version;

/// The variable that names a file, to which a line is added for each skipped test.
const VARIABLE: &str = "LOCKCORE_NOT_RUN";

/// Servers from this version on have every [`Feature`], so no test is skipped on them.
const COMPLETE: Version = Version::new(7, 0, 0);

/// A feature that a test needs and that Redis 6.0 lacks.
///
/// Redis 7.0 and newer, and every version of Valkey, have all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Access rules for channels, such as `ACL SETUSER user &channel` and `resetchannels`.
    ChannelRights,
    /// `CLIENT PAUSE` with a mode, `WRITE` or `ALL`.
    PauseModes,
    /// Sharded channels in a cluster: `SSUBSCRIBE` and `SPUBLISH`.
    ShardedChannels,
    /// Acquisitions without a script. `RESTORE` creates a key that ends at the same time after a
    /// restart.
    LastingRestore,
    /// `SENTINEL DEBUG`, which sets how often Sentinels talk to each other. The kit makes that more
    /// often if it can, or else they learn of each other up to 2 s later.
    SentinelDebug,
}

impl Feature {
    fn since(self) -> Version {
        match self {
            Self::ChannelRights | Self::PauseModes => Version::new(6, 2, 0),
            Self::ShardedChannels | Self::LastingRestore | Self::SentinelDebug => COMPLETE,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::ChannelRights => "rights to channels (6.2)",
            Self::PauseModes => "CLIENT PAUSE with a mode (6.2)",
            Self::ShardedChannels => "sharded channels (7.0)",
            Self::LastingRestore => "RESTORE that lasts as long after a restart (7.0)",
            Self::SentinelDebug => "SENTINEL DEBUG (7.0)",
        }
    }

    fn is_in(self, version: Version) -> bool {
        version >= COMPLETE || version >= self.since()
    }
}

/// Returns `true` if the server is too old for a test, which must then return.
///
/// The skip is reported on standard error, bypassing the capture of the test harness, and the same
/// line is added to the file that the variable `LOCKCORE_NOT_RUN` names, if it is set. This never
/// happens from Redis 7.0 on: a test that finds the feature missing there fails.
///
/// # Panics
/// If there is no server, or its version is unknown; or if the report cannot be written.
///
/// # Examples
/// ```
/// use lockcore_testkit::{Feature, RedisServer, server_lacks};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// if server_lacks(Feature::PauseModes) {
///     return;
/// }
/// let server = RedisServer::start();
/// let _: String = server.query(&["CLIENT", "PAUSE", "1", "WRITE"]).await;
/// # }
/// ```
#[must_use = "the test is to return"]
pub fn server_lacks(feature: Feature) -> bool {
    if server_has(feature) {
        return false;
    }
    let version = version();
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}: not run on {version}: needs {}\n", feature.description());
    report(&line).unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
    true
}

/// Returns `true` if the server has a feature that a test does not need but takes into account.
///
/// # Panics
/// If there is no server, or its version is unknown.
///
/// # Examples
/// ```
/// use lockcore_testkit::{Feature, RedisServer, server_has};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let server = RedisServer::start();
/// let mut channels = server.channels().await;
/// if server_has(Feature::ShardedChannels) {
///     channels.extend(server.query::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await);
/// }
/// assert!(channels.is_empty());
/// # }
/// ```
#[must_use]
pub fn server_has(feature: Feature) -> bool {
    feature.is_in(version())
}

fn version() -> Version {
    Version::of_server().unwrap_or_else(|error| panic!("{error}"))
}

/// Writes the line in one piece, because other tests report at the same time.
fn report(line: &str) -> io::Result<()> {
    io::stderr().write_all(line.as_bytes())?;
    if let Some(path) = env::var_os(VARIABLE) {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{COMPLETE, Feature, Version};

    #[test]
    fn only_servers_before_seven_lack_something() {
        let later = [Feature::ShardedChannels, Feature::LastingRestore, Feature::SentinelDebug];
        for feature in [Feature::ChannelRights, Feature::PauseModes].into_iter().chain(later) {
            assert!(!feature.is_in(Version::new(6, 0, 16)), "{feature:?}");
            assert!(feature.is_in(COMPLETE), "{feature:?}");
            assert!(feature.is_in(Version::new(8, 1, 1)), "{feature:?}");
        }
        assert!(Feature::ChannelRights.is_in(Version::new(6, 2, 0)));
    }
}
