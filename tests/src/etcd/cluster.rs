//! [`EtcdCluster`].

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions, Error};

use super::launch::{EtcdStartError, Launch, data, failed, free_ports, new_directory, ready};

use crate::{scratch::scratch, shared::shared, stopping::until_stopped};

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// The time limit for the members to elect a leader.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time limit for one answer of a member.
const ANSWER: Duration = Duration::from_secs(2);

/// A private etcd cluster for one test: real processes on free ports, with their own directories,
/// stopped and removed on drop, even if the test panics.
///
/// The executable is the one that the variable `LOCKCORE_ETCD` names, or `etcd` from the `PATH`:
/// etcd 3.4 or newer. Its shortest lease is one second.
///
/// Members have indices, which do not change with their roles.
///
/// # Examples
/// ```
/// use lockcore_testkit::EtcdCluster;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut cluster = EtcdCluster::start(3);
/// let leader = cluster.leader().await;
/// cluster.kill(leader);
/// assert_ne!(cluster.leader().await, leader);
/// # }
/// ```
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    directory: PathBuf,
}

#[derive(Debug)]
struct Member {
    launch: Launch,
    /// `None` if the member was killed or stopped.
    process: Option<Child>,
    is_frozen: bool,
}

impl EtcdCluster {
    /// Starts a cluster of `members` members.
    ///
    /// # Panics
    /// If etcd is not installed, with a message that says how to install it: a test that cannot run
    /// has failed.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_with(members, &[])
    }

    /// Starts members with more options, as on their command line: `&["--quota-backend-bytes",
    /// "16777216"]`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(members: usize, options: &[&str]) -> Self {
        Self::try_start(members, options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The single server that the tests of this process share while any of them runs.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<EtcdCluster>> = Mutex::new(Weak::new());
        Self::shared_in(&SHARED, 1)
    }

    /// The cluster of three members that the tests of this process share while any of them runs.
    /// Tests must not disturb it.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared_three() -> Arc<Self> {
        static SHARED: Mutex<Weak<EtcdCluster>> = Mutex::new(Weak::new());
        Self::shared_in(&SHARED, 3)
    }

    fn shared_in(slot: &Mutex<Weak<Self>>, members: usize) -> Arc<Self> {
        shared(slot, || Self::try_start(members, &[])).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts members with more options, and with their data in memory if 4 GiB are free in
    /// `/dev/shm`. Otherwise, or if `TMPDIR` is set, it is in the system's temporary folder.
    ///
    /// # Errors
    /// [`EtcdStartError`], which says what to do about it.
    pub fn try_start(members: usize, options: &[&str]) -> Result<Self, EtcdStartError> {
        Self::try_start_in(&scratch(), members, options)
    }

    /// Starts members with more options, and with their data in a new folder in `parent`. Members
    /// sync every write to the disk, which is slow on a disk that is used by others as well.
    ///
    /// # Errors
    /// [`EtcdStartError`], which says what to do about it.
    pub fn try_start_in(
        parent: &Path,
        members: usize,
        options: &[&str],
    ) -> Result<Self, EtcdStartError> {
        let mut failure = failed("there is no free port");
        for _ in 0..ATTEMPTS {
            match Self::start_once(parent, members, options) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => failure = error,
            }
            if !failure.to_string().contains("address already in use") {
                break;
            }
        }
        Err(failure)
    }

    fn start_once(parent: &Path, members: usize, options: &[&str]) -> Result<Self, EtcdStartError> {
        let directory = new_directory(parent).map_err(failed)?;
        let mut started = Self { members: Vec::new(), directory };
        let mut names = Vec::new();
        let ports = free_ports(2 * members).map_err(failed)?;
        for (number, ports) in ports.chunks_exact(2).enumerate() {
            let name = format!("member-{number}");
            let [port, peer_port] = [ports[0], ports[1]];
            names.push(format!("{name}=http://127.0.0.1:{peer_port}"));
            let directory = data(&started.directory, &name);
            let options = options.iter().map(|&option| option.to_owned()).collect();
            let (cluster, is_new) = (String::new(), true);
            let launch = Launch { name, directory, port, peer_port, cluster, is_new, options };
            started.members.push(Member { launch, process: None, is_frozen: false });
        }
        for member in &mut started.members {
            member.launch.cluster = names.join(",");
            member.process = Some(member.launch.spawn()?);
        }
        for member in &mut started.members {
            ready(member.process.as_mut().and_then(|process| process.stderr.take()))?;
        }
        Ok(started)
    }

    /// The number of members, whether they run or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns `true` if there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The addresses of all members by index, such as `127.0.0.1:2379`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.launch.port)).collect()
    }

    /// Returns `true` if a member was neither killed nor frozen.
    #[must_use]
    pub fn is_running(&self, index: usize) -> bool {
        self.members[index].is_running()
    }

    /// The process id of a member; `None` if it was killed.
    #[must_use]
    pub fn process_id(&self, index: usize) -> Option<u32> {
        self.members[index].process.as_ref().map(Child::id)
    }

    /// The directory of the cluster, which is removed with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills a member with SIGKILL, like a crash.
    ///
    /// # Panics
    /// If there is no member with this index. The same holds for all methods that take one.
    pub fn kill(&mut self, index: usize) {
        self.members[index].kill();
    }

    /// Restarts a member with the data that it had written, killing it first if it runs. Returns
    /// when the member serves clients, for which a majority must be up.
    ///
    /// # Panics
    /// If the member does not come up.
    pub fn restart(&mut self, index: usize) {
        self.restart_all(&[index]);
    }

    /// Restarts several members at the same time.
    ///
    /// # Panics
    /// If one of them does not come up.
    pub fn restart_all(&mut self, indices: &[usize]) {
        for &index in indices {
            let member = &mut self.members[index];
            member.kill();
            let process = member.launch.spawn().unwrap_or_else(|error| panic!("restart: {error}"));
            member.process = Some(process);
        }
        for &index in indices {
            let process = self.members[index].process.as_mut();
            let output = process.and_then(|process| process.stderr.take());
            ready(output).unwrap_or_else(|error| panic!("restart: {error}"));
        }
    }

    /// Replaces a member by an empty one at the same address: removes it from the cluster and adds
    /// it again. Returns when the new member serves clients.
    ///
    /// # Panics
    /// If the others do not agree within half a minute, or the member does not come up.
    pub async fn replace(&mut self, index: usize) {
        self.members[index].kill();
        let mut client = self.client().await;
        let end = Instant::now() + PATIENCE;
        let name = self.members[index].launch.name.clone();
        let mut is_removed = false;
        loop {
            let changed = if is_removed {
                let url = self.members[index].launch.peer_url();
                client.member_add([url], None).await.map(|_| true)
            } else {
                remove(&mut client, &name).await.map(|()| false)
            };
            match changed {
                Ok(true) => break,
                Ok(false) => is_removed = true,
                // The members must have been connected for a while.
                Err(error) => assert!(Instant::now() < end, "member {index}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let launch = &mut self.members[index].launch;
        launch.is_new = false;
        let _ = fs::remove_dir_all(&launch.directory);
        self.restart(index);
    }

    /// Freezes a member with SIGSTOP: its connections stay open, but it does not answer.
    pub fn freeze(&mut self, index: usize) {
        let member = &mut self.members[index];
        member.signal("STOP");
        member.is_frozen = true;
        if let Some(process) = &member.process {
            until_stopped(&[process.id()]);
        }
    }

    /// Resumes a frozen member with SIGCONT.
    pub fn thaw(&mut self, index: usize) {
        self.members[index].signal("CONT");
        self.members[index].is_frozen = false;
    }

    /// A client of one member.
    ///
    /// # Panics
    /// If the address is not valid.
    pub async fn client_of(&self, index: usize) -> Client {
        let options = ConnectOptions::new().with_timeout(ANSWER).with_connect_timeout(ANSWER);
        let address = format!("http://127.0.0.1:{}", self.members[index].launch.port);
        let client = Client::connect([address], Some(options)).await;
        client.unwrap_or_else(|error| panic!("a client of member {index}: {error}"))
    }

    /// A client of the first member that runs.
    ///
    /// # Panics
    /// If none runs.
    pub async fn client(&self) -> Client {
        let running = self.members.iter().position(Member::is_running);
        let Some(index) = running else { panic!("no member is running") };
        self.client_of(index).await
    }

    /// The index of the leader that a majority has elected.
    ///
    /// # Panics
    /// If there is none within half a minute.
    pub async fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            for index in 0..self.members.len() {
                if self.members[index].is_running()
                    && let Ok(true) = self.is_leader(index).await
                {
                    return index;
                }
            }
            assert!(Instant::now() < end, "the members have no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns `true` for a leader with a majority: it answers a read that needs one.
    async fn is_leader(&self, index: usize) -> Result<bool, Error> {
        let mut client = self.client_of(index).await;
        let status = client.status().await?;
        let own = status.header().map(etcd_client::ResponseHeader::member_id);
        if own != Some(status.leader()) {
            return Ok(false);
        }
        client.get("lockcore-testkit", None).await?;
        Ok(true)
    }

    /// Makes a member the leader.
    ///
    /// # Panics
    /// If the member does not become the leader within half a minute.
    pub async fn move_leader(&self, to: usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            if leader == to {
                return;
            }
            let status = self.client_of(to).await.status().await;
            let id =
                status.ok().and_then(|status| status.header().map(|header| header.member_id()));
            if let Some(id) = id {
                // The next check shows whether this failed.
                let _ = self.client_of(leader).await.move_leader(id).await;
            }
            assert!(Instant::now() < end, "member {to} does not become the leader");
        }
    }
}

/// Removes a member from the cluster, unless it is gone already.
async fn remove(client: &mut Client, name: &str) -> Result<(), Error> {
    let members = client.member_list().await?;
    match members.members().iter().find(|member| member.name() == name) {
        Some(member) => client.member_remove(member.id()).await.map(|_| ()),
        None => Ok(()),
    }
}

impl Member {
    fn is_running(&self) -> bool {
        self.process.is_some() && !self.is_frozen
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An error means that the process is gone already.
            let _ = process.kill();
            let _ = process.wait();
        }
        self.is_frozen = false;
    }

    /// Sends a signal. A process that is gone already is not a failure.
    fn signal(&self, signal: &str) {
        if let Some(process) = &self.process {
            let mut command = Command::new("kill");
            command.arg(format!("-{signal}")).arg(process.id().to_string());
            let _ = command.stderr(Stdio::null()).status();
        }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
        let _ = fs::remove_dir_all(&self.directory);
    }
}
