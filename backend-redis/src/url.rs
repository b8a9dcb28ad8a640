//! URLs and addresses of servers.

use lockcore::BackendError;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::builder::misconfigured;

/// The port of a server whose URL has none.
pub(crate) const SERVER_PORT: u16 = 6379;

/// A host and a port.
pub(crate) type Endpoint = (String, u16);

/// Parses a URL. A URL for TLS is refused unless this build `has_tls`. The parser's own error is
/// dropped: it may quote the URL, and with it the password.
pub(crate) fn parse(
    url: &str,
    has_tls: bool,
    default_port: u16,
) -> Result<ConnectionInfo, BackendError> {
    // An `@` after the host means that the password has a `/`, `?` or `#` in it. Its first part was
    // then parsed as the host, which would be looked up and shown in messages.
    let url = redis::parse_redis_url(url).filter(|url| {
        let after_host = [Some(url.path()), url.query(), url.fragment()];
        let has_split_password =
            url.host().is_some() && after_host.into_iter().flatten().any(|part| part.contains('@'));
        !has_split_password
    });
    if !has_tls && url.as_ref().is_some_and(|url| matches!(url.scheme(), "rediss" | "valkeys")) {
        return Err(misconfigured(
            "a rediss:// or valkeys:// URL needs TLS, which this build lacks; \
             turn on the feature `tls` of lockcore-redis",
        ));
    }
    let info = url.and_then(|mut url| {
        if url.has_host() && url.port().is_none() {
            url.set_port(Some(default_port)).ok()?;
        }
        url.into_connection_info().ok()
    });
    info.ok_or_else(|| {
        misconfigured(
            "the URL is not that of a Redis server; it has the form redis://host:port/database, \
             with a number as the database (or rediss, valkey, unix, redis+sentinel, \
             redis+cluster in front), and special characters percent-encoded",
        )
    })
}

/// Splits the authority of a URL with several hosts into the credentials with their `@`, if there
/// are any, and the hosts.
pub(crate) fn split_credentials(authority: &str) -> (&str, &str) {
    authority.split_at(authority.rfind('@').map_or(0, |at| at + 1))
}

/// The host and the port of an address, unless it is the path of a socket.
pub(crate) fn endpoint(address: &ConnectionAddr) -> Option<Endpoint> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// A server at `endpoint` that is reached like the one at `like`, over TLS or not.
pub(crate) fn relocated(like: &ConnectionInfo, (host, port): Endpoint) -> ConnectionInfo {
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use lockcore::BackendErrorKind;

    use super::*;

    #[test]
    fn without_tls_a_url_that_needs_it_is_refused_and_the_error_names_the_feature() {
        for url in
            ["rediss://localhost", "REDISS://:c4n4ry@[::1]:6380/2", "valkeys://host#insecure"]
        {
            let error = parse(url, false, SERVER_PORT).unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{url}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("feature `tls` of lockcore-redis"), "{url}: {shown}");
            assert!(!shown.contains("c4n4ry"), "{url}: {shown}");
        }
        for url in ["redis://localhost", "valkey://[::1]", "unix:///tmp/rediss"] {
            assert!(parse(url, false, SERVER_PORT).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    #[cfg(not(feature = "tls"))]
    async fn a_build_without_tls_refuses_to_connect_over_it() {
        let error = crate::RedisBackend::connect("rediss://localhost").await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_build_with_tls_connects_over_it() {
        for url in ["rediss://localhost", "valkeys://localhost"] {
            let info = parse(url, cfg!(feature = "tls"), SERVER_PORT).unwrap();
            assert!(matches!(info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        }
    }
}
