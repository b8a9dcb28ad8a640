//! [`EtcdCluster`].

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions, Error};

use super::launch::{EtcdStartError, Launch, data, failed, free_port, new_directory, ready};

/// How often other ports are tried when somebody else was faster.
const ATTEMPTS: u32 = 20;

/// How long the members may take to agree on a leader.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long one question to a member may take.
const ANSWER: Duration = Duration::from_secs(2);

/// An etcd cluster of one test's own: real processes on free ports, with directories of their own,
/// stopped and removed when dropped, also when the test panics.
///
/// The executable is the one that the variable `LOCKCORE_ETCD` names, or `etcd` from the `PATH`:
/// etcd 3.4 or newer. Its shortest lease is a second.
///
/// Members have indices, which stay when roles change.
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
    /// `None` if it was killed or stopped.
    process: Option<Child>,
    is_frozen: bool,
}

impl EtcdCluster {
    /// Starts so many members.
    ///
    /// # Panics
    /// If etcd is not installed, with a sentence that says how to install it: a test that cannot
    /// run has failed.
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
    /// They must not disturb it.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared_three() -> Arc<Self> {
        static SHARED: Mutex<Weak<EtcdCluster>> = Mutex::new(Weak::new());
        Self::shared_in(&SHARED, 3)
    }

    fn shared_in(shared: &Mutex<Weak<Self>>, members: usize) -> Arc<Self> {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::start(members));
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// Starts members with more options.
    ///
    /// # Errors
    /// [`EtcdStartError`], with what to do about it.
    pub fn try_start(members: usize, options: &[&str]) -> Result<Self, EtcdStartError> {
        Self::try_start_in(&std::env::temp_dir(), members, options)
    }

    /// Starts members with more options, and with their data in a new folder in `parent`. They
    /// write everything to the disk at once, which takes long on one that others use as well.
    ///
    /// # Errors
    /// [`EtcdStartError`], with what to do about it.
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
        for number in 0..members {
            let name = format!("member-{number}");
            let [port, peer_port] = [free_port().map_err(failed)?, free_port().map_err(failed)?];
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

    /// The addresses of all members, `127.0.0.1:2379`, by their indices.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.launch.port)).collect()
    }

    /// Returns `true` if a member was neither killed nor frozen.
    #[must_use]
    pub fn is_running(&self, index: usize) -> bool {
        self.members[index].is_running()
    }

    /// The id of the process of a member; `None` if it was killed.
    #[must_use]
    pub fn process_id(&self, index: usize) -> Option<u32> {
        self.members[index].process.as_ref().map(Child::id)
    }

    /// The directory of the cluster, removed with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills a member as a crash would: SIGKILL.
    ///
    /// # Panics
    /// If there is none with this index. So do all methods that take one.
    pub fn kill(&mut self, index: usize) {
        self.members[index].kill();
    }

    /// Starts a member again with the data that it had written; kills it before if it runs. Returns
    /// when it serves clients, for which a majority has to be up.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self, index: usize) {
        self.restart_all(&[index]);
    }

    /// Starts several members again, at the same time.
    ///
    /// # Panics
    /// If one does not come up.
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

    /// Replaces a member by one without data at the same address: it is removed from the cluster,
    /// and added to it again. Returns when it serves clients.
    ///
    /// # Panics
    /// If the others do not agree to that within half a minute, or it does not come up.
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
                // They have to have known each other for a while.
                Err(error) => assert!(Instant::now() < end, "member {index}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let launch = &mut self.members[index].launch;
        launch.is_new = false;
        let _ = fs::remove_dir_all(&launch.directory);
        self.restart(index);
    }

    /// Freezes a member, SIGSTOP: its connections stay open, and nothing is answered.
    pub fn freeze(&mut self, index: usize) {
        self.members[index].signal("STOP");
        self.members[index].is_frozen = true;
    }

    /// Lets a frozen member go on, SIGCONT.
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

    /// The member that a majority has for its leader.
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

    /// A leader knows its majority: it answers a read that needs one.
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
    /// If it does not become one within half a minute.
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
                // That it fails shows at the next look.
                let _ = self.client_of(leader).await.move_leader(id).await;
            }
            assert!(Instant::now() < end, "member {to} does not become the leader");
        }
    }
}

/// Removes a member from the cluster, unless that was done before.
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
            // An error means that it is gone already.
            let _ = process.kill();
            let _ = process.wait();
        }
        self.is_frozen = false;
    }

    /// Sends a signal. That there is no such process any more is no failure.
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
