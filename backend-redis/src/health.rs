//! Whether a server can be trusted with locks.

use lockcore::{BackendError, BackendErrorKind};
use redis::aio::MultiplexedConnection;

/// Looks at the server behind a new connection.
///
/// Refuses a replica, a Sentinel, a cluster node and a server that evicts keys, unless `eviction_allowed`; warns about what only may
/// become a danger. A user who may not ask is warned that nobody has looked.
pub(crate) async fn check(
    connection: &mut MultiplexedConnection,
    address: &str,
    eviction_allowed: bool,
) -> Result<(), BackendError> {
    match redis::cmd("INFO").query_async::<String>(connection).await {
        Ok(info) => judge(&info, address, eviction_allowed),
        Err(error) => {
            let error = crate::error::of_request(error, "INFO");
            if error.kind() != BackendErrorKind::Permission {
                return Err(error.not_applied());
            }
            tracing::warn!(
                address,
                "the user may not run INFO: it was not checked whether this server is a primary that evicts no keys"
            );
            Ok(())
        }
    }
}

fn judge(info: &str, address: &str, eviction_allowed: bool) -> Result<(), BackendError> {
    let value = |key: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .map_or("", str::trim)
    };
    if value("role") == "slave" {
        let message = format!("the server at {address} is a replica, which takes no locks");
        return Err(BackendError::new(BackendErrorKind::ReadOnly, message));
    }
    if value("redis_mode") == "cluster" {
        let message = format!(
            "the server at {address} is a node of a Redis Cluster, which this backend does not support yet"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    if value("redis_mode") == "sentinel" {
        let message = format!(
            "the server at {address} is a Sentinel, which keeps no locks: connect to the primary it watches"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    let policy = value("maxmemory_policy");
    let evicts = !policy.is_empty() && policy != "noeviction";
    let limited = !matches!(value("maxmemory"), "" | "0");
    if evicts && limited && !eviction_allowed {
        let message = format!(
            "the server at {address} evicts keys when its memory is full (maxmemory-policy {policy}), and with them locks that \
             are held: set it to noeviction, or accept the risk with `allow_eviction()`"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    }
    if evicts {
        tracing::warn!(
            address,
            maxmemory_policy = policy,
            "locks that are held may be evicted when this server's memory is full: set maxmemory-policy to noeviction"
        );
    }
    if value("aof_enabled") == "0" {
        tracing::info!(
            address,
            "append-only file is off: locks that are held are lost when this server restarts"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "role:master\r\nredis_mode:standalone\r\nmaxmemory:1000\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn verdict(from: &str, to: &str, allowed: bool) -> Result<(), BackendErrorKind> {
        judge(&SOUND.replace(from, to), "host:1", allowed).map_err(|error| {
            assert!(error.to_string().contains("host:1"), "names the server: {error}");
            error.kind()
        })
    }

    #[test]
    fn refuses_servers_that_lose_locks() {
        assert_eq!(verdict("", "", false), Ok(()));
        assert_eq!(verdict("role:master", "role:slave", false), Err(BackendErrorKind::ReadOnly));
        assert_eq!(verdict("standalone", "cluster", false), Err(BackendErrorKind::Configuration));
        assert_eq!(verdict("standalone", "sentinel", false), Err(BackendErrorKind::Configuration));
        assert_eq!(
            verdict("noeviction", "volatile-ttl", false),
            Err(BackendErrorKind::Configuration)
        );
        assert_eq!(verdict("noeviction", "volatile-ttl", true), Ok(()));
        assert_eq!(
            verdict(
                "1000\r\nmaxmemory_policy:noeviction",
                "0\r\nmaxmemory_policy:allkeys-lru",
                false
            ),
            Ok(())
        );
    }
}
