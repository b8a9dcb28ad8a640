//! Stores other than one Redis server: the cost of a lock, compared with the usual alternative
//! there.

use std::time::Duration;

use lockcore_testkit::{EtcdCluster, PostgresServer};

use crate::{
    error::Result,
    measure::{
        load::Load,
        samples::Samples,
        server::Server,
        stats::{Times, median, ratio},
    },
    run::{LEASE, Scenario, Stage, rotate},
    scenarios::pingpong,
    subjects::{Names, Subject},
    worker::Worker,
};

pub(crate) const QUORUM: Scenario = Scenario {
    name: "quorum",
    about: "A majority of three Redis servers, beside rslock's Redlock on the same three.",
    run: |stage| Box::pin(quorum(stage)),
};

pub(crate) const POSTGRES: Scenario = Scenario {
    name: "postgres",
    about: "PostgreSQL, beside pg_advisory_lock with a session for each task.",
    run: |stage| Box::pin(postgres(stage)),
};

pub(crate) const ETCD: Scenario = Scenario {
    name: "etcd",
    about: "Three members of etcd, beside etcd's own lock service through etcd-client.",
    run: |stage| Box::pin(etcd(stage)),
};

/// The numbers of contending tasks.
const TASKS: [usize; 3] = [1, 16, 64];

async fn quorum(stage: &mut Stage<'_>) -> Result<()> {
    let servers = [Server::start().await?, Server::start().await?, Server::start().await?];
    let url = servers.each_ref().map(Server::url).join(",");
    let subjects = [Subject::Lockcore, Subject::Rslock, Subject::RslockFast];
    let mut alone = Vec::new();
    let mut ours = stage.workers_at(&[Subject::Lockcore], &url, LEASE).await?;
    let mut one = stage.workers(&[Subject::Lockcore], &servers[0], LEASE).await?;
    for round in 0..stage.plan.rounds() {
        let mut pairs = [0.0; 2];
        for (pairs, worker) in pairs.iter_mut().zip([&mut ours[0], &mut one[0]]) {
            let names = Names::Each("alone".into());
            *pairs = stage.load(worker, round, names, 1).await?.pairs_per_second();
        }
        alone.push(ratio(pairs[1], pairs[0]));
    }
    stage.against("time of an uncontended pair", median(&alone), "one server")?;
    drop((ours, one));
    compared(stage, &subjects, &url).await
}

async fn postgres(stage: &mut Stage<'_>) -> Result<()> {
    // The default, which the test kit turns off.
    let server = PostgresServer::try_start(&["fsync=on"])?;
    compared(stage, &[Subject::Lockcore, Subject::AdvisoryLock], &server.url()).await
}

async fn etcd(stage: &mut Stage<'_>) -> Result<()> {
    // On the disk. In tests, its files may be in memory.
    let cluster = EtcdCluster::try_start_in(&std::env::temp_dir(), 3, &[])?;
    let url = format!("etcd://{}", cluster.addresses().join(","));
    compared(stage, &[Subject::Lockcore, Subject::EtcdLock], &url).await
}

/// Pairs of tasks that contend for one name, and hand-overs between two processes.
async fn compared(stage: &mut Stage<'_>, subjects: &[Subject], url: &str) -> Result<()> {
    let mut workers = stage.workers_at(subjects, url, LEASE).await?;
    for tasks in TASKS {
        let mut samples = Samples::new();
        for round in 0..stage.plan.rounds() {
            for worker in &mut workers {
                let names = Names::One(format!("of-{tasks}"));
                samples.add(worker.0, stage.load(worker, round, names, tasks).await?);
            }
            rotate(&mut workers);
        }
        let metric = format!("pairs {}", crate::scenarios::of_tasks(tasks));
        stage.compare(&samples, &metric, "1/s", Load::pairs_per_second)?;
    }
    drop(workers);
    hand_overs(stage, subjects, url).await
}

async fn hand_overs(stage: &mut Stage<'_>, subjects: &[Subject], url: &str) -> Result<()> {
    let time = stage.plan.either(Duration::from_millis(700), Duration::from_secs(3));
    let mut pairs = Vec::new();
    for subject in subjects {
        pairs.push((*subject, stage.workers_at(&[*subject, *subject], url, LEASE).await?));
    }
    let mut samples = Samples::new();
    for round in 0..stage.plan.rounds() {
        for (subject, workers) in &mut pairs {
            stage.turn(*subject, round);
            if let [(_, one), (_, other)] = workers.as_mut_slice() {
                samples.add(*subject, hand_over(one, other, time).await?);
            }
        }
        rotate(&mut pairs);
    }
    stage.values(&samples, "p50 of a hand-over", "us", |p50| p50 / 1e3)?;
    let ours = samples.median(Subject::Lockcore, |p50| *p50);
    for subject in subjects.iter().filter(|subject| subject.is_peer()) {
        let theirs = samples.median(*subject, |p50| *p50);
        stage.less_than(*subject, "p50 of a hand-over", ours, Some(theirs))?;
    }
    Ok(())
}

async fn hand_over(one: &mut Worker, other: &mut Worker, time: Duration) -> Result<f64> {
    let times = pingpong::hand_overs(one, other, time, async |_| Ok(())).await?;
    Ok(Times::of(times)?.quantile(0.5))
}
