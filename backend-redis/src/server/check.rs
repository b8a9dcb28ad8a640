//! The check that a server can be trusted with locks.

use std::sync::Arc;

use lockcore::{BackendError, BackendErrorKind};
use redis::aio::MultiplexedConnection;

use super::opener::Progress;

/// The identity of a server. Unknown if the user has no right to `INFO`, or if the server does not
/// report it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    /// Changes when the server restarts.
    run_id: Option<Arc<str>>,
    /// The name and the version of the server software.
    software: Option<Arc<(String, String)>>,
}

impl Identity {
    fn of(info: &str) -> Self {
        let told = |field: &str| Some(value(info, field)).filter(|text| !text.is_empty());
        // Others also report the version of Redis that they are compatible with.
        let mut names = ["valkey", "dragonfly", "redis"].into_iter();
        let software = names.find_map(|name| {
            let version = told(&format!("{name}_version"))?;
            Some(Arc::new((name.to_owned(), version.to_owned())))
        });
        Self { run_id: told("run_id").map(Arc::from), software }
    }

    /// Returns `true` if it can be distinguished from others.
    pub(crate) fn is_known(&self) -> bool {
        self.run_id.is_some()
    }

    /// The process of the server, as it calls itself.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// Returns `true` if the two are certainly the same server.
    pub(crate) fn is_surely(&self, other: &Self) -> bool {
        self.run_id.is_some() && self.run_id == other.run_id
    }

    /// Returns `true` if the two are certainly different servers.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        self.run_id.is_some() && other.run_id.is_some() && self.run_id != other.run_id
    }

    pub(crate) fn software(&self) -> Option<(String, String)> {
        self.software.as_deref().cloned()
    }

    /// Returns `true` if the server certainly passes a key that `RESTORE` creates on with the time
    /// at which it ends: see [`restore`](crate::restore).
    pub(super) fn passes_on_when_keys_end(&self) -> bool {
        let Some((name, version)) = self.software.as_deref() else { return false };
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        matches!(name.as_str(), "redis" | "valkey") && major >= Some(7)
    }
}

/// A server's report about itself.
#[derive(Debug)]
pub(super) struct Facts {
    /// `None` if the user has no right to `INFO`.
    info: Option<String>,
    pub(super) is_cluster_node: bool,
}

impl Facts {
    /// Asks the server behind a new connection.
    pub(super) async fn of(
        connection: &mut MultiplexedConnection,
        progress: &Progress,
    ) -> Result<Self, BackendError> {
        let info = ask(redis::cmd("INFO"), connection).await?;
        progress.note();
        let is_cluster_node = match &info {
            Some(info) => is_cluster_node(info),
            None => serves_slots(connection).await?,
        };
        Ok(Self { info, is_cluster_node })
    }
}

/// Checks a server by its report.
///
/// Refuses a replica, a Sentinel, a server that is loading its data and,
/// unless `eviction_allowed`, a server that evicts keys. Logs settings that may lose locks. If the
/// user has no right to `INFO`, logs a warning that the server was not checked.
pub(super) fn check(
    facts: &Facts,
    address: &str,
    eviction_allowed: bool,
) -> Result<Identity, BackendError> {
    let Some(info) = &facts.info else {
        tracing::warn!(
            address,
            "the user has no right to run INFO, so this server was not checked: \
             it must be a primary, and must not evict keys"
        );
        return Ok(Identity::default());
    };
    check_info(info, address, eviction_allowed)?;
    Ok(Identity::of(info))
}

/// Finds out without `INFO` whether the server is a node of a cluster: others refuse the command.
async fn serves_slots(connection: &mut MultiplexedConnection) -> Result<bool, BackendError> {
    let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async::<redis::Value>(connection).await;
    match reply.map_err(|error| crate::error::of_request(error, "CLUSTER SLOTS").not_applied()) {
        Ok(_) => Ok(true),
        Err(error) if error.is_retryable() => Err(error),
        Err(_) => Ok(false),
    }
}

/// Asks which server a new connection leads to.
pub(super) async fn identify(
    connection: &mut MultiplexedConnection,
) -> Result<Identity, BackendError> {
    let info = ask(redis::cmd("INFO").arg("server").take(), connection).await?;
    Ok(info.map_or(Identity::default(), |info| Identity::of(&info)))
}

/// Runs `INFO`. Returns `None` if the user has no right to it.
async fn ask(
    info: redis::Cmd,
    connection: &mut MultiplexedConnection,
) -> Result<Option<String>, BackendError> {
    let reply = info.query_async(connection).await;
    match reply.map_err(|error| crate::error::of_first_request(error, "INFO")) {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.kind() == BackendErrorKind::Permission => Ok(None),
        Err(error) => Err(error),
    }
}

/// The value of a field of `INFO`, or an empty text if it is not there.
fn value<'a>(info: &'a str, field: &str) -> &'a str {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map_or("", str::trim)
}

/// The mode of the server. Valkey 8 has `server_mode` in place of `redis_mode`.
fn has_mode(info: &str, mode: &str) -> bool {
    ["redis_mode", "server_mode"].iter().any(|field| value(info, field) == mode)
}

fn is_cluster_node(info: &str) -> bool {
    has_mode(info, "cluster") || value(info, "cluster_enabled") == "1"
}

fn check_info(info: &str, address: &str, eviction_allowed: bool) -> Result<(), BackendError> {
    let value = |field| value(info, field);
    if has_mode(info, "sentinel") {
        let message = format!(
            "the server at {address} is a Sentinel; connect to the primary that it monitors with \
             `RedisBackend::sentinel`, or with a redis+sentinel:// URL"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    if value("role") == "slave" {
        let message = format!("the server at {address} is a replica; connect to its primary");
        return Err(BackendError::new(BackendErrorKind::ReadOnly, message));
    }
    if value("loading") == "1" {
        let message = format!("the server at {address} is loading its data");
        return Err(BackendError::new(BackendErrorKind::Unavailable, message));
    }
    let policy = value("maxmemory_policy");
    let evicts = !policy.is_empty() && policy != "noeviction";
    let limited = !matches!(value("maxmemory"), "" | "0");
    if evicts && limited && !eviction_allowed {
        let message = format!(
            "the server at {address} evicts keys when its memory is full \
             (maxmemory-policy {policy}), including locks that are held; set maxmemory-policy to \
             noeviction, or accept the risk with `allow_eviction()`"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    if evicts {
        tracing::warn!(
            address,
            maxmemory_policy = policy,
            "this server evicts keys when its memory is full, including locks that are held; \
             set maxmemory-policy to noeviction"
        );
    }
    if value("aof_enabled") == "0" {
        tracing::info!(
            address,
            "the append-only file is off, so locks that are held are lost if this server restarts"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "role:master\r\nredis_mode:standalone\r\nmaxmemory:1000\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn check_with(from: &str, to: &str, allowed: bool) -> Result<(), BackendErrorKind> {
        check_info(&SOUND.replace(from, to), "host:1", allowed).map_err(|error| {
            assert!(error.to_string().contains("host:1"), "the error names the server: {error}");
            error.kind()
        })
    }

    #[test]
    fn servers_that_lose_locks_are_refused() {
        assert_eq!(check_with("", "", false), Ok(()));
        assert_eq!(check_with("role:master", "role:slave", false), Err(BackendErrorKind::ReadOnly));
        assert_eq!(
            check_with("role:master", "role:master\r\nloading:1", false),
            Err(BackendErrorKind::Unavailable)
        );
        assert_eq!(
            check_with("noeviction", "volatile-ttl", false),
            Err(BackendErrorKind::Configuration)
        );
        assert_eq!(check_with("noeviction", "volatile-ttl", true), Ok(()));
        assert_eq!(
            check_with(
                "1000\r\nmaxmemory_policy:noeviction",
                "0\r\nmaxmemory_policy:allkeys-lru",
                false
            ),
            Ok(())
        );
    }

    #[test]
    fn a_cluster_and_a_sentinel_are_recognized_by_each_of_their_signs() {
        // The fields of Redis 7, of Valkey 8, and of Valkey 8 with `extended-redis-compatibility`.
        for mode in ["redis_mode", "server_mode"] {
            let with = |it| SOUND.replace("redis_mode:standalone", &format!("{mode}:{it}"));
            assert!(is_cluster_node(&with("cluster")), "{mode}");
            assert!(!is_cluster_node(&with("standalone")), "{mode}");
            let refused = check_with("redis_mode:standalone", &format!("{mode}:sentinel"), false);
            assert_eq!(refused, Err(BackendErrorKind::Configuration), "{mode}");
        }
        assert!(is_cluster_node("cluster_enabled:1\r\n"));
        assert!(!is_cluster_node("cluster_enabled:0\r\n"));
    }

    #[test]
    fn only_known_servers_from_seven_on_pass_on_when_restored_keys_end() {
        let does = |info: &str| Identity::of(info).passes_on_when_keys_end();
        for version in ["7.0.0", "7.0.15", "7.4.0", "8.0.2", "10.1.0", "255.255.255"] {
            assert!(does(&format!("redis_version:{version}\r\n")), "{version}");
        }
        for version in ["5.0.14", "6.0.16", "6.2.19", "6.3.4", "unstable", ""] {
            assert!(!does(&format!("redis_version:{version}\r\n")), "{version}");
        }
        assert!(does("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n"));
        assert!(!does("redis_version:7.4.0\r\ndragonfly_version:df-v1.30.0\r\n"));
        assert!(!does("role:master\r\n") && !Identity::default().passes_on_when_keys_end());
    }

    #[test]
    fn two_servers_are_told_apart_only_if_both_say_who_they_are() {
        let [one, other, silent] =
            ["run_id:1\r\n", "run_id:2\r\n", "tcp_port:6379\r\n"].map(Identity::of);
        assert!(one.contradicts(&other) && !one.contradicts(&one.clone()));
        assert!(!one.contradicts(&silent) && !silent.contradicts(&other));
    }
}
