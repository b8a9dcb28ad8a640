//! The check that a server can be trusted with locks.

use lockcore::{BackendError, BackendErrorKind};
use redis::aio::MultiplexedConnection;

/// Checks the server behind a new connection.
///
/// Refuses a replica, a Sentinel, a node of a cluster and, unless `eviction_allowed`, a server that
/// evicts keys. Logs settings that may lose locks. If the user has no right to `INFO`, logs a
/// warning that the server was not checked.
pub(crate) async fn check(
    connection: &mut MultiplexedConnection,
    address: &str,
    eviction_allowed: bool,
) -> Result<(), BackendError> {
    match redis::cmd("INFO").query_async::<String>(connection).await {
        Ok(info) => check_info(&info, address, eviction_allowed),
        Err(error) => {
            let error = crate::error::of_request(error, "INFO");
            if error.kind() != BackendErrorKind::Permission {
                return Err(error.not_applied());
            }
            tracing::warn!(
                address,
                "the user has no right to run INFO, so this server was not checked: \
                 it must be a primary, and must not evict keys"
            );
            Ok(())
        }
    }
}

fn check_info(info: &str, address: &str, eviction_allowed: bool) -> Result<(), BackendError> {
    let value = |key: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .map_or("", str::trim)
    };
    if value("role") == "slave" {
        let message = format!("the server at {address} is a replica; connect to its primary");
        return Err(BackendError::new(BackendErrorKind::ReadOnly, message));
    }
    if value("redis_mode") == "cluster" {
        let message =
            format!("the server at {address} is a node of a Redis Cluster, which is not supported");
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    if value("redis_mode") == "sentinel" {
        let message = format!(
            "the server at {address} is a Sentinel; connect to the primary that it monitors"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
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
            check_with("standalone", "cluster", false),
            Err(BackendErrorKind::Configuration)
        );
        assert_eq!(
            check_with("standalone", "sentinel", false),
            Err(BackendErrorKind::Configuration)
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
}
