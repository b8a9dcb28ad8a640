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

/// The client and three servers share the machine, so a ratio depends on its speed in that moment.
const PARTS: u32 = 4;

async fn run(stage: &mut Stage<'_>) -> Result<()> {
    stage.plan = stage.plan.in_parts(PARTS);
    stage.step("the cluster starts");
    let cluster = RedisCluster::builder().replicas_each(0).try_start().await;
    let cluster = cluster.map_err(|error| failure(error.to_string()))?;
    let url = format!("redis+cluster://{}", cluster.addresses().join(","));
    let subjects = stage.subjects(&[Ability::Pairs, Ability::Cluster]);
    stage.note(
        "rslock knows no cluster: it has a manager for each primary, and the benchmark finds the \
         primary of each name. The floor has a connection to each primary, and the same map.",
    );
    let mut workers = stage.workers_at(&subjects, &url, LEASE).await?;
    for tasks in [1, 16, 64, 256, 1024] {
        let mut samples = Samples::new();
        for round in 0..stage.plan.rounds() {
            for worker in &mut workers {
                let names = Names::Each("cluster".into());
                samples.add(worker.0, stage.load(worker, round, names, tasks).await?);
            }
            rotate(&mut workers);
        }
        let metric = format!("pairs {}", of_tasks(tasks));
        stage.compare(&samples, &metric, "1/s", Load::pairs_per_second)?;
    }
    Ok(())
}
