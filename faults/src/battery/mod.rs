//! The faults, by their target, and how they are run.

mod absent;
mod access;
mod cancelling;
mod clients;
mod etcd;
mod failover;
mod hostile;
mod members;
mod network;
mod postgres;
mod restarts;
mod server;
mod slots;
pub(crate) mod soak;

use std::{future::Future, path::Path, pin::Pin, sync::Arc, time::Instant};

use tokio::{
    runtime::Builder,
    sync::{RwLock, Semaphore},
};

use crate::{
    deployment::Deployment,
    protocol::Result,
    report::{Report, Run},
    table::write_section,
};

type Running = Pin<Box<dyn Future<Output = Result<Report>> + Send>>;

/// One fault.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    /// The number in the table of faults.
    pub(crate) number: u32,
    pub(crate) title: &'static str,
    /// The deployments on which it is part of the smoke run.
    smoke: &'static [&'static str],
    /// `true` if it must run alone on the machine.
    pub(crate) alone: bool,
    pub(crate) run: fn(Run) -> Running,
}

impl Fault {
    /// Returns `true` if it is part of the smoke run.
    pub(crate) fn is_smoke(&self, on: Deployment) -> bool {
        let word = match on {
            Deployment::Single => "smoke",
            Deployment::Sentinel => "smoke_on_sentinel",
            Deployment::Cluster => "smoke_on_cluster",
            Deployment::Quorum => "smoke_on_quorum",
            Deployment::Postgres => "smoke_on_postgres",
            Deployment::Etcd => "smoke_on_etcd",
        };
        self.smoke.contains(&word)
    }
}

/// `1 "title" path::to::function [smoke] [smoke_on_sentinel, and so on] [alone];`
macro_rules! faults {
    ($($number:literal $title:literal $($function:ident)::+ $($flag:ident)*;)*) => {
        /// All faults that there are.
        pub(crate) fn all() -> Vec<Fault> {
            vec![$({
                const FLAGS: &[&str] = &[$(stringify!($flag)),*];
                Fault {
                    number: $number,
                    title: $title,
                    smoke: FLAGS,
                    alone: FLAGS.contains(&"alone"),
                    run: |run| Box::pin($($function)::+(run)),
                }
            }),*]
        }
    };
}

faults! {
    0 "control: no fencing, careless holders stopped; updates must be lost" clients::control smoke;
    1 "holder killed (SIGKILL)" clients::holder_killed smoke smoke_on_quorum smoke_on_postgres smoke_on_etcd;
    2 "holder stopped longer than its lease" clients::holder_stopped_long smoke;
    3 "holder stopped for less than its lease" clients::holder_stopped_short smoke;
    4 "client gets 5 % of a processor" clients::client_starved;
    5 "runtime blocked for two leases" clients::runtime_blocked smoke;
    6 "server stopped for 200 ms, again and again" server::stopped_short;
    7 "server stopped for two leases" server::stopped_long smoke;
    8 "slow command (DEBUG SLEEP 1)" server::slow_command;
    9 "endless script (BUSY)" server::busy_script smoke;
    10 "server killed, its data kept" restarts::killed_durable smoke smoke_on_postgres;
    11 "server killed, comes back empty" restarts::killed_empty smoke;
    12 "power lost: append-only file cut short" restarts::power_lost smoke;
    13 "server loading (DEBUG RELOAD)" restarts::loading;
    14 "scripts flushed every 10 ms" server::scripts_flushed smoke;
    15 "everything deleted (FLUSHALL)" server::flushed smoke;
    16 "keys of locks overwritten with another type" server::overwritten smoke;
    17 "time to live removed (PERSIST), holder dead" server::ttl_removed;
    18 "server's memory full, nothing evicted" server::out_of_memory smoke;
    19 "server that evicts keys" server::evicting;
    20 "server cannot save (MISCONF)" server::misconf smoke;
    21 "server becomes a replica (READONLY)" server::read_only;
    22 "too few replicas (NOREPLICAS)" server::no_replicas;
    23 "replicas behind by 3 s" failover::lagging;
    24 "primary killed whose replicas are behind" failover::unreplicated smoke_on_sentinel;
    25 "primary killed (Sentinel, PostgreSQL)" failover::primary_killed smoke_on_sentinel;
    26 "killed primary comes back as one" failover::stale_primary;
    27 "Sentinels killed, and connections" failover::sentinels_lost;
    28 "slots migrate to and fro" slots::migrating smoke_on_cluster;
    29 "primary killed (cluster)" failover::primary_killed smoke_on_cluster;
    30 "names with braces (CROSSSLOT)" slots::odd_names;
    31 "command connections killed again and again" network::connections_killed smoke smoke_on_postgres;
    32 "pub/sub connections killed every 100 ms" network::listeners_killed smoke;
    33 "pub/sub connections closed for their buffers" network::listeners_overrun;
    34 "every second message lost" network::messages_lost;
    35 "messages forged" network::messages_forged;
    36 "command connections half open" network::commands_half_open smoke;
    37 "pub/sub connections half open" network::listeners_half_open;
    38 "connections reset in the middle of a reply" network::reset_midway smoke smoke_on_etcd;
    39 "replies lost after the request was carried out" network::replies_lost smoke;
    40 "requests delayed past their client's patience" network::requests_delayed smoke;
    41 "latency, jitter, byte by byte" network::latency smoke;
    42 "partitions, one way and both, and flapping" network::partitioned smoke;
    43 "server's clock +60 s, to and fro, -1 h" server::clock_jumps;
    44 "clients' wall clock jumps" clients::client_wall_clock;
    45 "host suspended for two leases" clients::host_suspended;
    46 "CLIENT PAUSE, WRITE and ALL" server::paused;
    47 "ACL: PEXPIRE forbidden" access::command_forbidden smoke;
    48 "ACL: channels forbidden" access::channels_forbidden;
    49 "password changed, user turned off" access::logged_out;
    50 "TLS: wrong name, expired, unknown authority, plain text" access::tls;
    51 "maxclients and open files at their limit" access::limits_reached;
    52 "fsync takes 400 ms" access::slow_disk;
    53 "sends and receives fail (ECONNRESET)" access::failing_calls;
    54 "server that answers what nobody expects" hostile::answers smoke;
    55 "quorum: two of five stopped" members::stopped smoke_on_quorum;
    56 "quorum: split votes" members::split_votes;
    57 "quorum: two of five killed, come back empty" members::killed_empty smoke_on_quorum;
    58 "acquisitions dropped at every await" cancelling::cancelled smoke;
    59 "client forked or cloned" cancelling::cloned;
    60 "SIGTERM, and a runtime dropped, while holding and waiting" clients::terminated;
    61 "10,000 waiters, and 10,000 names" cancelling::crowd alone;
    62 "faults at random (soak)" soak::short smoke;
    63 "primary stopped, and goes on later" failover::primary_stopped;
    64 "failover by hand, twice" failover::by_hand smoke_on_sentinel;
    65 "old primary cut off, clients on both sides" failover::partitioned;
    66 "node comes and goes" slots::node_comes_and_goes;
    67 "quorum: two of five killed, come back with their data" members::killed_durable;
    68 "quorum: two of five cut off, slow" members::cut_off;
    69 "quorum: three of five gone" members::majority_gone smoke_on_quorum;
    70 "PostgreSQL: a transaction stands in the way" postgres::blocked smoke_on_postgres;
    71 "PostgreSQL: primary killed, its replica is synchronous" failover::synchronous smoke_on_postgres;
    72 "quorum: two of the three members with a hold come back empty" members::forgotten smoke_on_quorum;
    73 "etcd: leader killed every few seconds" etcd::leaders_killed smoke_on_etcd;
    74 "etcd: one of three stopped, then another" etcd::followers_stopped;
    75 "etcd: leader stopped, and goes on later" etcd::leader_stopped;
    76 "etcd: one of three killed, then another" etcd::followers_killed;
    77 "etcd: one of three without its data, replaced" etcd::replaced;
    78 "etcd: two of three gone" etcd::majority_gone smoke_on_etcd;
    79 "etcd: one of three cut off, slow" etcd::cut_off;
    80 "client killed that keeps locks for a moment (linger)" clients::keeper_killed smoke;
}

/// Runs faults in parallel, `jobs` at a time, and those that need the machine for themselves alone.
/// Returns `true` if all pass.
pub(crate) async fn run(
    faults: Vec<Fault>,
    run: Run,
    jobs: usize,
    to: Option<&Path>,
) -> Result<bool> {
    println!("{} faults on {} with seed {}", faults.len(), run.on, run.seed);
    let places = Arc::new(Semaphore::new(jobs.max(1)));
    let machine = Arc::new(RwLock::new(()));
    let running = faults.into_iter().map(|fault| {
        let (places, machine) = (places.clone(), machine.clone());
        tokio::spawn(async move {
            let _place = places.acquire_owned().await;
            let report = if fault.alone {
                let _machine = machine.write().await;
                attempt(fault, run).await
            } else {
                let _machine = machine.read().await;
                attempt(fault, run).await
            };
            println!("{}", report.summary());
            report
        })
    });
    let running: Vec<_> = running.collect();
    let mut reports = Vec::new();
    for report in running {
        reports.push(report.await?);
    }
    reports.sort_by_key(|report| report.number);
    if let Some(path) = to {
        write_section(path, run.on, &reports)?;
    }
    let failed: Vec<_> = reports.iter().filter(|report| !report.findings.is_empty()).collect();
    for report in &failed {
        println!(
            "failed: #{} {}; again: ./scripts/faults run {} --on {} --seed {}",
            report.number, report.title, report.number, run.on, run.seed
        );
    }
    println!("{} faults, {} failed", reports.len(), failed.len());
    Ok(failed.is_empty())
}

/// Runs one fault. An error of the battery itself is a failure like any other.
///
/// It runs on a separate runtime, but not on one of its workers. Judging the logs takes seconds,
/// and a worker that is busy for so long may be the one that all timers and connections depend on:
/// the proxies of this fault and of the parallel ones would stand still.
async fn attempt(fault: Fault, run: Run) -> Report {
    let start = Instant::now();
    let ended = tokio::task::spawn_blocking(move || {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        match absent::why(fault.number, run.on) {
            Some(why) => Ok(Report::impossible(run, why)),
            None => runtime.block_on((fault.run)(run)),
        }
    })
    .await;
    let mut report = match ended {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            Report { run, findings: vec![format!("the rig: {error}")], ..Report::default() }
        }
        Err(error) => {
            Report { run, findings: vec![format!("the rig: {error}")], ..Report::default() }
        }
    };
    report.number = fault.number;
    report.title = fault.title;
    report.took = start.elapsed();
    report
}
