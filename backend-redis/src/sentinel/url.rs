//! URLs and addresses of Sentinels.

use lockcore::BackendError;
use redis::ConnectionInfo;

use crate::{
    builder::misconfigured,
    url::{self, endpoint, relocated, split_credentials},
};

const DEFAULT_PORT: u16 = 26379;

/// The contents of a URL with the scheme `redis+sentinel` or `rediss+sentinel`.
pub(crate) struct SentinelUrl {
    /// How the servers are reached, except for the address.
    pub(crate) servers: ConnectionInfo,
    pub(crate) sentinels: Vec<ConnectionInfo>,
    pub(crate) name: String,
}

impl SentinelUrl {
    /// Reaches the Sentinels like the server at `like`, except for the address.
    pub(crate) fn with_sentinels_like(mut self, like: &ConnectionInfo) -> Self {
        for sentinel in &mut self.sentinels {
            if let Some(endpoint) = endpoint(sentinel.addr()) {
                *sentinel = relocated(like, endpoint);
            }
        }
        self
    }
}

/// Returns the part of a URL before `+sentinel`, and the part after `://`.
fn split(url: &str) -> Option<(&'static str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let schemes = ["redis", "rediss", "valkey", "valkeys"];
    let plain = scheme.to_ascii_lowercase();
    let plain = plain.strip_suffix("+sentinel")?;
    Some((schemes.into_iter().find(|known| *known == plain)?, rest))
}

/// Parses `redis+sentinel://[user:password@]host[:port],host[:port]/name[/database]`. Returns
/// `None` for other schemes.
pub(crate) fn parse(url: &str, has_tls: bool) -> Option<Result<SentinelUrl, BackendError>> {
    let (scheme, rest) = split(url)?;
    Some(parse_rest(scheme, rest, has_tls))
}

fn parse_rest(scheme: &str, rest: &str, has_tls: bool) -> Result<SentinelUrl, BackendError> {
    let malformed = || {
        misconfigured(
            "the URL is not one of Sentinels; use redis+sentinel://host:26379,host:26379/name, \
             with the name of the primary, and percent-encode special characters",
        )
    };
    let (authority, path) = rest.split_once('/').ok_or_else(malformed)?;
    let (credentials, hosts) = split_credentials(authority);
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let is_odd = |part: &str| part.is_empty() || part.contains(['@', '?', '#', '%', ' ']);
    if is_odd(name) || database.contains('/') || authority.contains(['?', '#']) {
        return Err(malformed());
    }
    let mut sentinels = Vec::new();
    for host in hosts.split(',') {
        let address = format!("{scheme}://{host}");
        sentinels.push(url::parse(&address, has_tls, DEFAULT_PORT).map_err(|_| malformed())?);
    }
    let first = hosts.split(',').next().unwrap_or_default();
    let servers = format!("{scheme}://{credentials}{first}/{database}");
    let servers = url::parse(&servers, has_tls, DEFAULT_PORT)?;
    Ok(SentinelUrl { servers, sentinels, name: name.to_owned() })
}

/// Parses the address of a Sentinel: `host`, `host:port`, or a URL.
pub(crate) fn parse_address(address: &str, has_tls: bool) -> Result<ConnectionInfo, BackendError> {
    let parsed = match address.contains("://") {
        true => url::parse(address, has_tls, DEFAULT_PORT),
        false => url::parse(&format!("redis://{address}"), has_tls, DEFAULT_PORT),
    };
    parsed.map_err(|error| {
        misconfigured("the address of a Sentinel must be host, host:port, or a redis:// URL")
            .with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        match parse(url, true) {
            Some(Ok(SentinelUrl { servers, sentinels, name })) => {
                let sentinels: Vec<String> =
                    sentinels.iter().map(|info| info.addr().to_string()).collect();
                let settings = servers.redis_settings();
                let login =
                    [settings.username(), settings.password()].map(Option::unwrap_or_default);
                format!("{} {name} {} {}", sentinels.join(" "), login.join(":"), settings.db())
            }
            Some(Err(error)) => error.to_string(),
            None => "another scheme".to_owned(),
        }
    }

    #[test]
    fn a_url_names_sentinels_primary_credentials_and_database() {
        for (url, expected) in [
            ("redis+sentinel://one/primary", "one:26379 primary : 0"),
            ("valkey+sentinel://one:1,[::1]:2,three/p/4", "one:1 ::1:2 three:26379 p : 4"),
            ("REDIS+Sentinel://me:a%2Cb@one,two/p/", "one:26379 two:26379 p me:a,b 0"),
            ("redis+sentinel://:a,b@one,two/p", "one:26379 two:26379 p :a,b 0"),
            ("redis://one/primary", "another scheme"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn a_url_without_a_part_is_refused_and_its_password_not_shown() {
        for url in [
            "redis+sentinel://:c4n4ry@one,two",
            "redis+sentinel://:c4n4ry@one,two/",
            "redis+sentinel://:c4n4ry@,two/primary",
            "redis+sentinel://:c4n4ry@one:port/primary",
            "redis+sentinel://:c4n4ry@one/primary/x",
            "redis+sentinel://:/c4n4ry@one/primary",
            "redis+sentinel://:c4n4ry/x@one/primary",
        ] {
            let shown = shown(url);
            assert!(shown.starts_with("the URL is not"), "{url}: {shown}");
            assert!(!shown.contains("c4n4ry"), "{url}: {shown}");
        }
    }
}
