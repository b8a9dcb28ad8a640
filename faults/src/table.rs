//! The table of measurements: one section per deployment.

use std::{fmt::Write, fs, io, path::Path};

use crate::{deployment::Deployment, protocol::Result, report::Report};

/// Replaces the section of a deployment in the file, and leaves the others as they are.
pub(crate) fn write_section(path: &Path, on: Deployment, reports: &[Report]) -> Result<()> {
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let mut text = String::from(HEAD);
    for deployment in Deployment::ALL {
        let old = before.split("\n## ").skip(1).find(|old| old.starts_with(title(deployment)));
        if deployment == on {
            write!(text, "\n## {}\n\n{}", title(deployment), section(reports))?;
        } else if let Some(old) = old {
            write!(text, "\n## {}\n", old.trim_end())?;
        }
    }
    Ok(fs::write(path, text)?)
}

fn title(on: Deployment) -> &'static str {
    match on {
        Deployment::Single => "One server",
        Deployment::Sentinel => "A primary with two replicas and three Sentinels",
        Deployment::Cluster => "A cluster of three primaries with a replica each",
        Deployment::Quorum => "A quorum of five servers",
        Deployment::Postgres => "PostgreSQL",
        Deployment::Etcd => "A cluster of three members of etcd",
    }
}

fn section(reports: &[Report]) -> String {
    let mut text = String::new();
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    let _ = writeln!(
        text,
        "Last run: {}. {} faults, {} of them cannot be made here, {} grants, {} holds lost (as their faults have it), {} writes \
         turned away by their token, **{} violations**.\n",
        time::OffsetDateTime::now_utc().date(),
        reports.len(),
        sum(|report| usize::from(report.impossible.is_some())),
        sum(|report| report.grants),
        sum(|report| report.losses),
        sum(|report| report.stale_writes),
        sum(|report| report.findings.len())
    );
    text.push_str("| # | fault | kinds | seed | grants | lost | checks | violations | measured (bound) |\n|---|---|---|---|---|---|---|---|---|\n");
    for report in reports {
        text.push_str(&report.row());
        text.push('\n');
    }
    text
}

const HEAD: &str = "# The fault battery\n
Written by `./scripts/faults`; do not edit. A fault has the same number in every run and on every deployment. Several client processes use
locks of every kind while a fault is injected. What all of them saw is checked afterwards: exclusion by belief, fencing tokens, lost
updates at the resource, beliefs against what the server had (`MONITOR`), lost wake-ups, unknown outcomes, and what is left behind.
*lost* counts holds that were lost and whose holders were told, which is right where the fault makes it so. The battery measures by how
much the machine itself was late during the fault: a time may exceed its bound by that much, and a loss is blamed on the machine if it
stalled for so long that a renewal could not be in time.

Where it is not what the name says: a power loss (12) is an append-only file whose end is cut off; a server that cannot save (20) finds
a directory in place of its file; lost messages (34) are left out by the proxy, since TCP loses none; half-open connections (36, 37) are frozen in the proxy;
a suspended host (45) is the clock of the client, which jumps; the clocks of the server (43) and of clients (44) are moved by a preloaded
library; slow disks (52) and failing calls (53) are made by `strace`. Redis and etcd have their files in memory where there is room, so that the
disk delays no other fault. A client's bad network to several servers is a preloaded library, which leads each connection through a proxy
whatever address a server announces; so is the network between servers (23, 24, 65).

Each deployment that was run has a section. Faults of one server act on the primary of the locks that they watch; the other servers are set
not to replace it meanwhile. A node of a cluster refuses all requests for two seconds after a restart (10 to 12), which is as long as a lease:
no renewal gets through, and holds end though the node still has them. In 24 to 29 and 63 to 65 they replace it after a second. A failover loses what the new primary had not
been sent; *forgotten* holds are those that another client got while their holders believed in them, which must end with their next
renewal, and *stranded* locks were released at the old primary only and stay held until their lease ends.

A quorum has five servers and exclusive locks only. No server's truth is that of everybody there, so beliefs are checked against each other
(`C1` to `C3`), and not against a server (`C4`). Where a fault is about one server, one of the five has it. In 55, 57, 67 and 68 two of
them fail, and then others; in 56, eight clients split them. No hold may be lost, no acquisition may fail, and nobody may get a lock for at
most two seconds, or three at the end of 68. The holds that
are watched are acquired anew before each of these failures, and are on all members then: a hold is not put again on a member that has
lost it. Members do not have to stay away after a lost connection (`rejoin_after` is zero), except for a lease where they come back without their data
(12, 57, 69 and 72). In 39, all of them lose a reply of a client at about the same time.

PostgreSQL is killed, stopped and cut off as Redis is. It does not wait for the disk (`fsync`), which makes no difference to a process that
is killed. Its releases are not written at once, so a kill may strand locks there too (10). The battery promotes the replica (24, 25 and
71) as soon as the primary is dead, and the primary stays down. The replica is asynchronous in 24 and 25, and may lack the last holds; it is synchronous in 71, where
no hold may be lost. Between clients and PostgreSQL the proxy cannot see single requests.

etcd has three members and no semaphores. Where a fault is about one server, it is the leader (6, 10) or, in 62, a follower. Clients wait three
times as long for an answer, because one of three members is asked after the other. Leases are whole seconds, and the hold of a client that
has died ends up to a second late. In 73 to 77 and 79 one of three members fails: no hold may be lost, and nobody may get a lock for at most two
seconds, also while the others elect a leader. If the members of a busy machine take longer to elect one than they are set to, the bound is by
so much higher. All connections are silent in 36 until the clients replace them, which takes up to 9 s. What the members had is not compared
with what clients believed (`C4`); they have neither keys nor leases nor watches of clients in the end.

Run one again with its number, deployment and seed: `./scripts/faults run 39 --on sentinel --seed 7`.\n";
