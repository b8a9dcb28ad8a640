//! The diagnosis of the cluster of a backend.

use std::{
    collections::BTreeSet,
    future::Future,
    time::{Duration, Instant},
};

use etcd_client::{Client, GetOptions, StatusResponse};
use lockcore::{BackendError, BackendErrorKind, Diagnosis, Finding, Severity};
use tokio::time::timeout;

use crate::{EtcdBackend, error, members::Members, requests::cluster_of};

/// Since these versions, a leader that was stopped does not end leases of others.
const FIXED: [(u32, u32, u32); 2] = [(3, 4, 31), (3, 5, 13)];
/// Percent of the quota.
const NEARLY_FULL: i64 = 80;
/// The number of leases that are granted and given back to measure writes.
const WRITES: usize = 10;
/// The time after which no more are granted.
const LONGEST_WRITES: Duration = Duration::from_secs(5);
/// The time to live of these leases in seconds, in case they cannot be given back.
const LEASE: i64 = 10;
/// Thresholds of the time of a write, for the median and for the slowest: for a problem, and for
/// advice.
const SLOW: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(2)];
const SLUGGISH: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

impl EtcdBackend {
    /// Checks whether the cluster is fit for locks: members, leader, alarms, versions, the size of
    /// the database, rights, and how long a write takes.
    ///
    /// For the last, ten leases are granted and given back. Each request has the limit of
    /// [`response_timeout`](crate::EtcdBackendBuilder::response_timeout). Clocks are not checked,
    /// because they need not agree.
    ///
    /// [`EtcdBackendBuilder::diagnose`](crate::EtcdBackendBuilder::diagnose) does the same with a
    /// cluster that `connect` would refuse.
    ///
    /// # Errors
    /// If no member answers, the error of the first one.
    ///
    /// # Cancel safety
    /// If the future is dropped, a lease of 10 s without keys may be left.
    ///
    /// # Examples
    /// ```no_run
    /// use lockcore_etcd::EtcdBackend;
    ///
    /// # async fn check() -> Result<(), lockcore::BackendError> {
    /// let backend = EtcdBackend::connect(["etcd-0:2379", "etcd-1:2379", "etcd-2:2379"]).await?;
    /// for finding in backend.diagnose().await?.findings() {
    ///     eprintln!("{finding}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(&self) -> Result<Diagnosis, BackendError> {
        diagnose(self.members(), self.prefix()).await
    }
}

/// Examines the members.
pub(crate) async fn diagnose(members: &Members, prefix: &str) -> Result<Diagnosis, BackendError> {
    let limit = members.response_timeout();
    let (mut diagnosis, mut failures, mut known) = (Diagnosis::new(), Vec::new(), BTreeSet::new());
    let (mut one_that_answers, mut clusters) = (None, Vec::new());
    for index in 0..members.len() {
        let address = members.address(index);
        match status(members.connect_aside(index), address, limit).await {
            Ok((client, status)) => {
                known.extend(status.header().map(|header| header.member_id()));
                judge(&status, address, &mut diagnosis);
                clusters.extend(cluster_of(status.header()).map(|cluster| (cluster, address)));
                one_that_answers = one_that_answers.or(Some((client, address.to_owned())));
            }
            Err(error) => {
                // Logging in takes a leader.
                diagnosis.add(match error.to_string().contains("no leader") {
                    true => no_leader(address),
                    false => down(address, &error, Severity::Problem),
                });
                failures.push(error);
            }
        }
    }
    let Some((mut client, address)) = one_that_answers else {
        let none = || error::configuration("there are no members");
        return Err(failures.into_iter().next().unwrap_or_else(none).not_applied());
    };
    compare_clusters(&clusters, &mut diagnosis);
    others(members, &mut client, &address, &known, &mut diagnosis).await;
    rights(&mut client, &address, prefix, limit, &mut diagnosis).await;
    writes(&mut client, &address, limit, &mut diagnosis).await;
    Ok(diagnosis)
}

/// Waits for an answer, up to a limit.
async fn within<T>(
    limit: Duration,
    doing: &str,
    address: &str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, BackendError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| error::of_request(error, doing, address)),
        Err(_) => Err(error::no_answer(doing, address, limit)),
    }
}

async fn status(
    connecting: impl Future<Output = Result<Client, etcd_client::Error>>,
    address: &str,
    limit: Duration,
) -> Result<(Client, StatusResponse), BackendError> {
    let asking = async {
        let mut client = connecting.await?;
        let status = client.status().await?;
        Ok((client, status))
    };
    within(limit, "asking for the status", address, asking).await
}

fn down(address: &str, error: &BackendError, severity: Severity) -> Finding {
    Finding::new("member-down", severity, format!("the member {address} does not answer ({error})"))
        .because("without a majority of the members, no lock can be acquired or renewed")
        .to_do("start it, or replace it with a new one (etcdctl member remove, member add)")
}

/// Finds endpoints that belong to another cluster than the first one.
fn compare_clusters(clusters: &[(u64, &str)], diagnosis: &mut Diagnosis) {
    let Some((first, of_first)) = clusters.first() else { return };
    for (_, address) in clusters.iter().filter(|(cluster, _)| cluster != first) {
        let seen = format!("{address} belongs to another cluster than {of_first}");
        diagnosis.add(
            Finding::new("cluster", Severity::Problem, seen)
                .because("clusters know nothing of each other's locks, so only one is used")
                .to_do("name the members of one cluster only"),
        );
    }
}

fn no_leader(address: &str) -> Finding {
    Finding::new("no-leader", Severity::Problem, format!("the member {address} has no leader"))
        .because("it refuses each request for a lock")
        .to_do("bring a majority of the members back, and see what separates them")
}

/// Judges the status that a member reports.
fn judge(status: &StatusResponse, address: &str, diagnosis: &mut Diagnosis) {
    if status.leader() == 0 {
        diagnosis.add(no_leader(address));
    }
    for said in status.errors().iter().filter(|said| said.contains("alarm:")) {
        diagnosis.add(alarm(address, said));
    }
    if is_old(status.version()) {
        let seen = format!("the member {address} has version {}", status.version());
        diagnosis.add(
            Finding::new("version", Severity::Advice, seen)
                .because(
                    "before 3.4.31 and 3.5.13, a leader that was stopped for longer than the \
                     election timeout can end leases when it goes on, although they were renewed \
                     (etcd issue 15247)",
                )
                .to_do("upgrade to 3.5.13 or newer"),
        );
    }
    // Reported since 3.6.
    let (size, quota) = (status.db_size(), status.db_size_quota());
    if quota > 0 && size.saturating_mul(100) / quota >= NEARLY_FULL {
        let seen = format!("the database of {address} has {size} of at most {quota} bytes");
        diagnosis.add(
            Finding::new("database-size", Severity::Problem, seen)
                .because("a full database takes no new locks")
                .to_do(MAKE_ROOM),
        );
    }
}

const MAKE_ROOM: &str = "compact the history (--auto-compaction-retention), defragment each member \
                         and disarm the alarm (etcdctl compact, defrag, alarm disarm)";

fn alarm(address: &str, said: &str) -> Finding {
    let found = Finding::new("alarm", Severity::Problem, format!("{address} says {said}"));
    match said.contains("NOSPACE") {
        true => found.because("the database is full: no new lock is granted").to_do(MAKE_ROOM),
        false => found
            .because(
                "the data of a member is not that of the others, so locks may be granted twice",
            )
            .to_do("replace that member with a new one"),
    }
}

/// Returns `true` if a version lacks the fix. A version that cannot be parsed counts as fixed.
fn is_old(version: &str) -> bool {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    let mut parts = release.split('.').map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor), Some(patch)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let [old_line, new_line] = FIXED;
    let fixed = if (major, minor) <= (old_line.0, old_line.1) { old_line } else { new_line };
    (major, minor, patch) < fixed
}

/// Checks the members that the cluster knows and that are not among the endpoints.
async fn others(
    members: &Members,
    client: &mut Client,
    address: &str,
    known: &BTreeSet<u64>,
    diagnosis: &mut Diagnosis,
) {
    let limit = members.response_timeout();
    let listed = within(limit, "listing the members", address, client.member_list()).await;
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => {
            diagnosis.add(
                Finding::new("members", Severity::Unknown, error.to_string())
                    .because("it is unknown how many members there are, and whether all are up")
                    .to_do("bring the missing members back, or look with etcdctl member list"),
            );
            return;
        }
    };
    let voting = listed.members().iter().filter(|member| !member.is_learner()).count();
    if voting == 1 || voting.is_multiple_of(2) {
        diagnosis.add(
            Finding::new("members", Severity::Advice, format!("the cluster has {voting} members"))
                .because(
                    "one member alone survives nothing, and an even number survives no more than \
                     one member less",
                )
                .to_do("run three or five members, on different hosts"),
        );
    }
    let endpoints: Vec<&str> = (0..members.len()).map(|index| members.address(index)).collect();
    for member in listed.members().iter().filter(|member| !known.contains(&member.id())) {
        let urls = member.client_urls();
        let authority = |url: &str| url.rsplit_once("//").map_or(url, |(_, rest)| rest).to_owned();
        let is_endpoint =
            |url: &String| endpoints.iter().any(|known| authority(url) == authority(known));
        if urls.iter().any(is_endpoint) {
            // It was asked, and is down.
            continue;
        }
        let name = format!("{} ({})", member.name(), urls.join(", "));
        let Some(url) = urls.first() else {
            diagnosis.add(
                Finding::new("member-down", Severity::Problem, format!("{name} never started"))
                    .because("it counts as a member, and the others have to be a majority")
                    .to_do("start it, or remove it (etcdctl member remove)"),
            );
            continue;
        };
        if members.has_user() {
            // A password goes to the endpoints only. Other addresses are merely reported by the
            // cluster.
            diagnosis.add(
                Finding::new("members", Severity::Unknown, format!("{name} was not looked at"))
                    .because("it is no endpoint, and the password goes to endpoints only")
                    .to_do("name all members as endpoints"),
            );
            continue;
        }
        match status(members.connect_to(url), &name, limit).await {
            Ok((_, status)) => judge(&status, &name, diagnosis),
            // Only the given endpoints have to be reachable from here.
            Err(error) => diagnosis.add(down(&name, &error, Severity::Unknown)),
        }
    }
}

/// Tries to read and to delete a key that does not exist.
async fn rights(
    client: &mut Client,
    address: &str,
    prefix: &str,
    limit: Duration,
    diagnosis: &mut Diagnosis,
) {
    let key = format!("{prefix}lockcore_probe");
    let one = Some(GetOptions::new().with_prefix().with_keys_only().with_limit(1));
    let read = within(limit, "reading", address, client.get(prefix, one)).await.err();
    // Nothing is deleted, so that the revision stays.
    let written = within(limit, "writing", address, client.delete(key, None)).await.err();
    let refused = |error: &BackendError| error.kind() == BackendErrorKind::Permission;
    if let Some(error) = [read, written].into_iter().flatten().find(refused) {
        diagnosis.add(
            Finding::new("rights", Severity::Problem, error.to_string())
                .because("no lock can be acquired")
                .to_do(format!(
                    "give the user a role that may read and write all keys that begin with \
                     `{prefix}`"
                )),
        );
    }
}

/// Grants leases and gives them back: each is a write to the disks of a majority.
async fn writes(client: &mut Client, address: &str, limit: Duration, diagnosis: &mut Diagnosis) {
    let (mut times, began) = (Vec::with_capacity(WRITES), Instant::now());
    while times.len() < WRITES && began.elapsed() < LONGEST_WRITES {
        let asked = Instant::now();
        let granting = client.lease_grant(LEASE, None);
        match within(limit, "granting a lease", address, granting).await {
            Ok(granted) => {
                times.push(asked.elapsed());
                let revoking = client.lease_revoke(granted.id());
                // It ends by itself as well.
                let _ = within(limit, "giving a lease back", address, revoking).await;
            }
            // Alarms and missing rights are found elsewhere.
            Err(error) if !error.is_retryable() => return,
            Err(error) => {
                diagnosis.add(
                    Finding::new("latency", Severity::Problem, error.to_string())
                        .because("a lock needs a write, and none was carried out")
                        .to_do("look at the members and at their disks"),
                );
                return;
            }
        }
    }
    times.sort_unstable();
    let (Some(middle), Some(slowest)) = (times.get(times.len() / 2), times.last()) else { return };
    let is_at_least = |[usual, most]: [Duration; 2]| *middle >= usual || *slowest >= most;
    let severity = match () {
        () if is_at_least(SLOW) => Severity::Problem,
        () if is_at_least(SLUGGISH) => Severity::Advice,
        () => return,
    };
    let seen = format!(
        "a write takes a median of {:.0} ms, and at most {:.0} ms",
        middle.as_secs_f64() * 1e3,
        slowest.as_secs_f64() * 1e3
    );
    diagnosis.add(
        Finding::new("latency", severity, seen)
            .because("each grant and each release waits for the disks of a majority")
            .to_do(
                "give etcd disks of its own (etcd_disk_wal_fsync_duration_seconds should stay \
                 below 10 ms), and look at the network between the members",
            ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_the_repair_are_old() {
        for old in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.12-rc.1"] {
            assert!(is_old(old), "{old}");
        }
        for new in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-alpha.0", "4.0.0", "dev", ""] {
            assert!(!is_old(new), "{new}");
        }
    }
}
