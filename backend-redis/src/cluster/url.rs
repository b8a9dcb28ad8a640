//! URLs and addresses of nodes of a cluster.

use std::fmt;

use lockcore::BackendError;
use redis::ConnectionInfo;

use super::NodeAddress;
use crate::{
    builder::misconfigured,
    url::{self, endpoint, split_credentials},
};

/// Some nodes of a cluster.
pub(crate) struct ClusterSeeds {
    /// The credentials and TLS settings for all nodes, with the address of one.
    pub(crate) info: ConnectionInfo,
    pub(crate) nodes: Vec<NodeAddress>,
}

/// Omits the credentials.
impl fmt::Debug for ClusterSeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSeeds").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl ClusterSeeds {
    /// The cluster of one node.
    pub(crate) fn of_node(info: ConnectionInfo) -> Result<Self, BackendError> {
        if info.redis_settings().db() != 0 {
            return Err(misconfigured(
                "a Redis Cluster has the database 0 only; leave the number out of the URL",
            ));
        }
        let Some((host, port)) = endpoint(info.addr()) else {
            return Err(misconfigured(
                "the nodes of a Redis Cluster are reached over TCP; use redis+cluster://",
            ));
        };
        let nodes = vec![NodeAddress::new(&host, port)];
        Ok(Self { info, nodes })
    }
}

/// Returns `true` if the URL has the scheme of a cluster.
pub(crate) fn is_of_cluster(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| server_scheme(scheme).is_some())
}

/// The scheme for one node of a cluster.
fn server_scheme(scheme: &str) -> Option<&str> {
    let (server, cluster) = scheme.split_once('+')?;
    cluster.eq_ignore_ascii_case("cluster").then_some(server)
}

/// Parses `redis+cluster://[user][:password@]host[:port][,host[:port]...]`, as [`url::parse`]
/// does for each of the hosts.
pub(crate) fn parse(url: &str, has_tls: bool) -> Result<ClusterSeeds, BackendError> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = server_scheme(scheme).unwrap_or_default();
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (credentials, hosts) = split_credentials(authority);
    let urls = hosts.split(',').map(|host| format!("{scheme}://{credentials}{host}{tail}"));
    seeds(urls, has_tls)
}

/// Parses the nodes of a cluster, each `host[:port]`.
pub(crate) fn parse_nodes(nodes: &[String], has_tls: bool) -> Result<ClusterSeeds, BackendError> {
    if nodes.iter().any(|node| node.contains(['/', '@', '?', '#', ','])) {
        return Err(misconfigured(
            "a node of a cluster is given as `host:port`; use a URL redis+cluster:// for \
             credentials and TLS",
        ));
    }
    seeds(nodes.iter().map(|node| format!("redis://{node}")), has_tls)
}

fn seeds(urls: impl Iterator<Item = String>, has_tls: bool) -> Result<ClusterSeeds, BackendError> {
    let mut seeds: Option<ClusterSeeds> = None;
    for url in urls {
        let one = ClusterSeeds::of_node(url::parse(&url, has_tls, url::SERVER_PORT)?)?;
        match &mut seeds {
            Some(seeds) => seeds.nodes.extend(one.nodes),
            None => seeds = Some(one),
        }
    }
    seeds.ok_or_else(|| misconfigured("no node of the cluster is given; name at least one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str) -> Result<Vec<String>, String> {
        assert!(is_of_cluster(url), "{url}");
        let seeds = parse(url, true).map_err(|error| error.to_string())?;
        Ok(seeds.nodes.iter().map(NodeAddress::to_string).collect())
    }

    #[test]
    fn the_url_of_a_cluster_names_several_nodes_with_the_same_credentials() {
        assert_eq!(nodes("redis+cluster://a,b:7001").unwrap(), ["a:6379", "b:7001"]);
        assert_eq!(nodes("redis+cluster://u:p%2C@a:1,b:2/0").unwrap(), ["a:1", "b:2"]);
        assert_eq!(nodes("valkey+cluster://[::1]:7000").unwrap().len(), 1);
        let seeds = parse("redis+cluster://u:p%40w@a,b", false).unwrap();
        assert_eq!(seeds.info.redis_settings().password(), Some("p@w"));
        assert!(!is_of_cluster("redis://a,b") && !is_of_cluster("unix:///a+cluster://b"));
    }

    #[test]
    fn wrong_nodes_of_a_cluster_are_refused_without_the_password() {
        for (url, reason) in [
            ("redis+cluster://", "not that of a Redis server"),
            ("redis+cluster://a,", "not that of a Redis server"),
            ("redis+cluster://:c4n4ry@a/1", "database 0"),
            ("redis+cluster://:c4n4ry@a,b:x", "not that of a Redis server"),
            ("redis+cluster://:c4n4ry/@a,b", "not that of a Redis server"),
            ("unix+cluster:///socket", "over TCP"),
        ] {
            let error = nodes(url).unwrap_err();
            assert!(error.contains(reason) && !error.contains("c4n4ry"), "{url}: {error}");
        }
        let error = parse("rediss+cluster://a", false).unwrap_err();
        assert!(error.to_string().contains("feature `tls`"), "{error}");
        for nodes in [vec!["redis://a:1".to_owned()], vec!["u:c4n4ry@a".to_owned()], vec![]] {
            let error = parse_nodes(&nodes, true).unwrap_err().to_string();
            assert!(!error.contains("c4n4ry"), "{error}");
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_build_with_tls_reaches_all_nodes_over_it() {
        let seeds = parse("rediss+cluster://a,b", true).unwrap();
        assert!(matches!(seeds.info.addr(), redis::ConnectionAddr::TcpTls { insecure: false, .. }));
        assert_eq!(seeds.nodes.len(), 2);
    }
}
