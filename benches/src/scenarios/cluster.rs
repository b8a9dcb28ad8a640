//! Many tasks on a Redis Cluster, each with its own name.

use lockcore_testkit::RedisCluster;

use crate::{
    error::{Result, failure},
    measure::{load::Load, samples::Samples},
    run::{LEASE, Scenario, Stage, rotate},
    scenarios::of_tasks,
    subjects::{Ability, Names},
};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "cluster",
    about: "1 to 1,024 tasks of one process, each of which acquires and releases a name of its own on a cluster of three primaries.",
    run: |stage| Box::pin(run(stage)),
};

/// A ratio depends on the speed of the machine in that moment, which the client and three servers
/// share, and on the memory layout of each process. So the rounds are short, and divided into parts
/// with processes of their own.
const PARTS: u32 = 4;

const TASKS: [usize; 5] = [1, 16, 64, 256, 1024];

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    stage.plan = stage.plan.in_parts(PARTS);
    let subjects = stage.subjects(&[Ability::Pairs, Ability::Cluster]);
    stage.note(
        "rslock knows no cluster: it has a manager for each primary, and the benchmark finds the \
         primary of each name. The floor has a connection to each primary, and the same map.",
    );
    let mut samples = TASKS.map(|_| Samples::new());
    let parts = usize::try_from(PARTS).unwrap_or(1);
    for _ in 0..parts {
        stage.step("the cluster starts");
        let cluster = RedisCluster::builder().replicas_each(0).try_start().await;
        let cluster = cluster.map_err(|error| failure(error.to_string()))?;
        let url = format!("redis+cluster://{}", cluster.addresses().join(","));
        let mut workers = stage.workers_at(&subjects, &url, LEASE).await?;
        for (tasks, samples) in TASKS.into_iter().zip(&mut samples) {
            for round in 0..stage.plan.rounds() / parts {
                for worker in &mut workers {
                    let names = Names::Each("cluster".into());
                    samples.add(worker.0, stage.load(worker, round, names, tasks).await?);
                }
                rotate(&mut workers);
            }
        }
    }
    for (tasks, samples) in TASKS.into_iter().zip(&samples) {
        let metric = format!("pairs {}", of_tasks(tasks));
        stage.compare(samples, &metric, "1/s", Load::pairs_per_second)?;
    }
    Ok(())
}
