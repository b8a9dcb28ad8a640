//! [`Etcd`]: a cluster of etcd.

use std::{collections::BTreeSet, time::Duration};

use lockcore_testkit::EtcdCluster;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::process::Process;
use crate::protocol::{Result, failure};

/// The members: one of them may fail.
pub(crate) const ETCD_MEMBERS: usize = 3;

/// The time limit for a member's metrics.
const ANSWER: Duration = Duration::from_secs(2);

/// The prefix of the keys of all locks.
const PREFIX: &str = "lockcore/";

/// The prefix of the keys of client records.
const RECORDS: &str = "lockcore//client/";

/// The shortest lifetime of a client record, in seconds. Leases of holds are shorter here.
const RECORD_SECONDS: i64 = 30;

/// A cluster of etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    cluster: EtcdCluster,
}

/// The data that clients have left at the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    /// The keys of holds and places, and the leases.
    pub(crate) keys: Vec<String>,
    /// Keys that would stay forever.
    pub(crate) endless: Vec<String>,
    /// How many names are watched.
    pub(crate) watches: u64,
}

impl Etcd {
    pub(super) fn start() -> Result<Self> {
        // The default of newer versions: a member that comes back forces no election on the others.
        let options = ["--pre-vote"];
        Ok(Self { cluster: EtcdCluster::try_start(ETCD_MEMBERS, &options)? })
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.cluster.addresses()
    }

    /// The ports of all members.
    pub(super) fn ports(&self) -> Vec<u16> {
        let port = |address: String| address.rsplit_once(':')?.1.parse().ok();
        self.addresses().into_iter().filter_map(port).collect()
    }

    pub(super) fn member(&mut self, index: usize) -> EtcdMember<'_> {
        EtcdMember { cluster: &mut self.cluster, index }
    }

    /// The member that a majority has elected as its leader. There must be one soon.
    pub(crate) async fn leader(&self) -> usize {
        self.cluster.leader().await
    }

    /// The two other members.
    pub(crate) async fn followers(&self) -> Vec<usize> {
        let leader = self.leader().await;
        (0..self.cluster.len()).filter(|member| *member != leader).collect()
    }

    /// Starts several members again, at the same time.
    pub(crate) fn restart_all(&mut self, members: &[usize]) {
        self.cluster.restart_all(members);
    }

    /// Replaces a member by one without data.
    pub(crate) async fn replace(&mut self, index: usize) {
        self.cluster.replace(index).await;
    }

    /// The process of a member.
    pub(crate) fn process_id(&self, index: usize) -> Option<u32> {
        self.cluster.process_id(index)
    }

    /// Returns `true` if a member answers a request that needs a majority.
    pub(super) async fn serves(&self, index: usize) -> bool {
        let mut client = self.cluster.client_of(index).await;
        client.get("battery", None).await.is_ok()
    }

    /// Keys of locks, with the names and owners that they belong to:
    /// `lockcore/<name>/lock/hold/<id>`.
    pub(super) async fn owners(&self) -> Result<Vec<(String, String)>> {
        let pair = |key: &String| {
            let (rest, id) = key.strip_prefix(PREFIX)?.rsplit_once('/')?;
            Some((rest.split('/').next()?.to_owned(), id.to_owned()))
        };
        Ok(self.left().await?.keys.iter().filter_map(pair).collect())
    }

    /// The data that clients have left.
    pub(crate) async fn left(&self) -> Result<Left> {
        let mut client = self.cluster.client_of(self.leader().await).await;
        let all = etcd_client::GetOptions::new().with_prefix();
        let found = client.get(PREFIX, Some(all)).await?;
        let mut left = Left::default();
        let mut used = BTreeSet::new();
        for pair in found.kvs() {
            let key = String::from_utf8_lossy(pair.key()).into_owned();
            if pair.lease() == 0 {
                left.endless.push(key.clone());
            }
            used.insert(pair.lease());
            // Records of clients expire by themselves.
            if !key.starts_with(RECORDS) {
                left.keys.push(key);
            }
        }
        let leases = client.leases().await?;
        let unused = leases.leases().iter().map(|lease| lease.id());
        for lease in unused.filter(|lease| !used.contains(lease)) {
            // A record is written under a new lease each time. A write that is cut off leaves one.
            if client.lease_time_to_live(lease, None).await?.granted_ttl() < RECORD_SECONDS {
                left.keys.push(format!("lease {lease:x}, which has no key"));
            }
        }
        // Each stream watches a key that nobody writes.
        let watches = self.sum("etcd_debugging_mvcc_watcher_total").await?;
        left.watches = watches.saturating_sub(self.streams().await?);
        Ok(left)
    }

    /// The number of watch streams of clients: one per client.
    pub(super) async fn streams(&self) -> Result<u64> {
        self.sum("etcd_debugging_mvcc_watch_stream_total").await
    }

    /// The number of messages from clients since the members were started.
    pub(super) async fn requests(&self) -> Result<u64> {
        self.sum("grpc_server_msg_received_total").await
    }

    /// The sum of a metric over all running members and all its labels.
    async fn sum(&self, name: &str) -> Result<u64> {
        let mut sum = 0.0;
        for (index, address) in self.addresses().into_iter().enumerate() {
            if !self.cluster.is_running(index) {
                continue;
            }
            let told = timeout(ANSWER, metrics(&address)).await;
            let told =
                told.map_err(|_| failure(format!("{address} does not tell its numbers")))??;
            let values = told.lines().filter_map(|line| {
                let (what, value) = line.rsplit_once(' ')?;
                let is_meant = what.split('{').next() == Some(name);
                if is_meant { value.parse::<f64>().ok() } else { None }
            });
            sum += values.sum::<f64>();
        }
        Ok(sum as u64)
    }
}

/// The metrics of a member.
async fn metrics(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // Its answer ends with the connection.
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut told = Vec::new();
    stream.read_to_end(&mut told).await?;
    Ok(String::from_utf8_lossy(&told).into_owned())
}

/// One of the members.
pub(super) struct EtcdMember<'a> {
    cluster: &'a mut EtcdCluster,
    index: usize,
}

impl Process for EtcdMember<'_> {
    fn kill(&mut self) {
        self.cluster.kill(self.index);
    }

    fn restart(&mut self) {
        self.cluster.restart(self.index);
    }

    fn freeze(&mut self) {
        self.cluster.freeze(self.index);
    }

    fn thaw(&mut self) {
        self.cluster.thaw(self.index);
    }
}
