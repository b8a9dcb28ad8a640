//! [`Facts`]: a server's report about itself.

use std::collections::HashMap;

use lockcore::BackendError;

use super::session::Session;

/// The answer to `INFO`.
#[derive(Clone, Debug)]
pub(super) struct Facts(HashMap<String, String>);

/// A replica, as its primary knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) address: String,
    pub(super) is_online: bool,
    /// Seconds since the primary last heard from it.
    pub(super) lag: u64,
}

impl Facts {
    /// Asks the server. `None` if it refuses `INFO`.
    pub(super) async fn of(session: &mut Session) -> Result<Option<Self>, BackendError> {
        let answer = session.words::<String>(&["INFO"]).await?;
        Ok(answer.ok().map(|text| Self::parse(&text)))
    }

    pub(super) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        Self(fields.map(|(field, value)| (field.to_owned(), value.to_owned())).collect())
    }

    /// The value of a field, or an empty text if it is not there.
    pub(super) fn text(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.text(field).parse().ok()
    }

    /// The server's version of Redis, or the version that it is compatible with.
    pub(super) fn version(&self) -> Option<(u32, u32, u32)> {
        let told = ["redis_version", "valkey_version"].map(|field| self.text(field));
        let told = told.into_iter().find(|version| !version.is_empty())?;
        let mut parts = told.split('.').map(|part| part.parse().ok());
        let major = parts.next()??;
        let [minor, patch] = [(); 2].map(|()| parts.next().flatten().unwrap_or(0));
        Some((major, minor, patch))
    }

    pub(super) fn is_replica(&self) -> bool {
        self.text("role") == "slave"
    }

    pub(super) fn is_loading(&self) -> bool {
        self.text("loading") == "1"
    }

    pub(super) fn is_cluster_node(&self) -> bool {
        self.text("cluster_enabled") == "1" || self.has_mode("cluster")
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.has_mode("sentinel")
    }

    /// Valkey 8 has `server_mode` in place of `redis_mode`.
    fn has_mode(&self, mode: &str) -> bool {
        ["redis_mode", "server_mode"].iter().any(|field| self.text(field) == mode)
    }

    pub(super) fn replicas(&self) -> Vec<Replica> {
        let count = self.number("connected_slaves").unwrap_or(0);
        (0..count).filter_map(|index| replica(self.text(&format!("slave{index}")))).collect()
    }
}

/// `ip=10.0.0.2,port=6379,state=online,offset=42,lag=0`
fn replica(text: &str) -> Option<Replica> {
    let value = |field: &str| {
        let mut parts = text.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == field).map(|(_, value)| value)
    };
    Some(Replica {
        address: format!("{}:{}", value("ip")?, value("port")?),
        is_online: value("state")? == "online",
        lag: value("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_taken_apart() {
        let facts = Facts::parse(
            "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\n\
             connected_slaves:2\r\nslave0:ip=::1,port=6380,state=online,offset=9,lag=3\r\n\
             slave1:ip=10.0.0.2,port=1,state=send_bulk,offset=0,lag=0\r\n",
        );
        assert_eq!(facts.version(), Some((7, 0, 15)));
        assert!(!facts.is_replica() && !facts.is_cluster_node() && !facts.is_sentinel());
        let replica =
            |address: &str, is_online, lag| Replica { address: address.to_owned(), is_online, lag };
        assert_eq!(
            facts.replicas(),
            [replica("::1:6380", true, 3), replica("10.0.0.2:1", false, 0)]
        );
        let valkey = Facts::parse("valkey_version:8.1.1\r\nserver_mode:cluster\r\n");
        assert_eq!((valkey.version(), valkey.is_cluster_node()), (Some((8, 1, 1)), true));
        assert_eq!(Facts::parse("").version(), None);
    }
}
