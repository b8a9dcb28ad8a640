//! [`Etcd`]: a cluster of etcd.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

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

/// How long a member may take to tell its numbers.
const ANSWER: Duration = Duration::from_secs(2);

/// What clusters side by side take at most, in bytes: members reserve the space for their logs.
const ENOUGH: u64 = 4 << 30;

/// What the keys of all locks begin with.
const PREFIX: &str = "lockcore/";

/// What the keys of records of clients begin with.
const RECORDS: &str = "lockcore//client/";

/// A cluster of etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    cluster: EtcdCluster,
}

/// What clients have left at the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    /// The keys of holds and places, and the leases.
    pub(crate) keys: Vec<String>,
    /// Keys that would stay for ever.
    pub(crate) endless: Vec<String>,
    /// How many names are watched.
    pub(crate) watches: u64,
}

impl Etcd {
    pub(super) fn start() -> Result<Self> {
        // The default of newer versions: one that comes back forces no election on the others.
        let options = ["--pre-vote"];
        Ok(Self { cluster: EtcdCluster::try_start_in(&place(), ETCD_MEMBERS, &options)? })
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

    /// The member that a majority has for its leader. There has to be one soon.
    pub(crate) async fn leader(&self) -> usize {
        self.cluster.leader().await
    }

    /// The two others.
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

    /// Returns `true` if a member answers what needs a majority.
    pub(super) async fn serves(&self, index: usize) -> bool {
        let mut client = self.cluster.client_of(index).await;
        client.get("battery", None).await.is_ok()
    }

    /// Keys of locks, and what they belong to: `lockcore/<name>/lock/hold/<id>`.
    pub(super) async fn owners(&self) -> Result<Vec<(String, String)>> {
        let pair = |key: &String| {
            let (rest, id) = key.strip_prefix(PREFIX)?.rsplit_once('/')?;
            Some((rest.split('/').next()?.to_owned(), id.to_owned()))
        };
        Ok(self.left().await?.keys.iter().filter_map(pair).collect())
    }

    /// What clients have left.
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
            // Records of clients go by themselves.
            if !key.starts_with(RECORDS) {
                left.keys.push(key);
            }
        }
        let leases = client.leases().await?;
        let unused = leases.leases().iter().map(|lease| lease.id());
        let unused = unused.filter(|lease| !used.contains(lease));
        left.keys.extend(unused.map(|lease| format!("lease {lease:x}, which has no key")));
        // Each stream has a watch of a key that nobody writes.
        let watches = self.sum("etcd_debugging_mvcc_watcher_total").await?;
        left.watches = watches.saturating_sub(self.streams().await?);
        Ok(left)
    }

    /// How many streams of watches clients have: each client one.
    pub(super) async fn streams(&self) -> Result<u64> {
        self.sum("etcd_debugging_mvcc_watch_stream_total").await
    }

    /// How many messages of clients the members have had since they were started.
    pub(super) async fn requests(&self) -> Result<u64> {
        self.sum("grpc_server_msg_received_total").await
    }

    /// The sum of a number that each running member has, of all its labels.
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

/// Where the members have their files: in memory if there is enough of it. Each write waits for
/// them, and a disk that others use as well takes any time; 52 is the fault for that. What a member
/// has written outlives its death in both places.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map(|of| of.f_bavail.saturating_mul(of.f_frsize));
    match free {
        Ok(ENOUGH..) => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// The numbers of a member.
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
