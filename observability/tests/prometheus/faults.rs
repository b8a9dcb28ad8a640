//! Faults that make alerts fire on a real Prometheus, where seconds stand for minutes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use lockcore::{BackendErrorKind, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_observability::{Prometheus, free_port};
use lockcore_testkit::{Fault, Faulty, Op, RedisServer};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use crate::{
    example::Example,
    folder::{fired, rules_in_seconds, wait_for, wait_for_alert},
};

const SECONDS: [f64; 5] = [0.01, 0.5, 1.0, 30.0, 300.0];
const RATIOS: [f64; 3] = [0.3, 0.5, 0.7];

/// Serves the metrics of this process.
fn serve() -> SocketAddr {
    loop {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        let exporter = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
            .unwrap()
            .set_buckets_for_metric(Matcher::Suffix("_ratio".into()), &RATIOS)
            .unwrap()
            .with_http_listener(address);
        match exporter.install() {
            Ok(()) => return address,
            // Another process took the port first.
            Err(BuildError::FailedToCreateHTTPListener(reason)) if reason.contains("in use") => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Acquires and releases `name` repeatedly, whatever the result.
async fn repeat(locks: Locks, name: &'static str) {
    loop {
        if let Ok(Some(guard)) = locks.lock(name).try_acquire().await {
            sleep(Duration::from_millis(10)).await;
            let _ = guard.release().await;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps a lock, and acquires it again when it is lost.
async fn keep(locks: Locks, name: &'static str) {
    loop {
        if let Ok(guard) = locks.lock(name).acquire().await {
            guard.lost().await;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for a held lock, for too short a time.
async fn hope(locks: Locks, name: &'static str) {
    loop {
        let _ = locks.lock(name).acquire_timeout(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_fires_in_its_fault_and_not_before() {
    let address = serve();
    let backend = Faulty::new(MemoryBackend::new());
    let faults = backend.faults();
    // Like a store beyond a network: requests without an answer are not measured.
    for op in [Op::Acquire, Op::Renew, Op::Release] {
        faults.every(op, Fault::Delay(Duration::from_millis(1)));
    }
    let client = |lease| {
        let builder = Locks::builder(backend.clone()).lease(Duration::from_millis(lease));
        builder.build().unwrap()
    };
    let (long, short) = (client(6000), client(3000));
    let mut work = JoinSet::new();
    work.spawn(repeat(long.clone(), "repeated"));
    // One renewed rarely, and one often.
    work.spawn(keep(long.clone(), "kept"));
    work.spawn(keep(short.clone(), "renewed"));
    let server = spawn_blocking(move || {
        let server = Prometheus::start(address, &rules_in_seconds()).unwrap();
        wait_for(&server, "lockcore:margin_below_30_percent:ratio5m");
        wait_for(&server, "lockcore:backend_errors:ratio5m");
        server
    });
    let server = server.await.unwrap();
    // Longer than the waiting time of any alert but one.
    sleep(Duration::from_secs(7)).await;
    assert_eq!(fired(&server), Vec::<String>::new(), "all is well");

    let fault = Instant::now();
    faults.every(Op::Renew, Fault::Refuse(BackendErrorKind::Unavailable));
    faults.every(Op::Release, Fault::DelayReply(Duration::from_millis(700)));
    let stuck = client(600_000);
    let reader = stuck.rw_lock("stuck").read().acquire().await.unwrap();
    // Held by somebody who does not lose it, or else many would get in.
    let held = stuck.lock("hoped for").acquire().await.unwrap();
    work.spawn(async move {
        let _never = stuck.rw_lock("stuck").write().acquire().await;
    });
    for _ in 0..8 {
        work.spawn(hope(short.clone(), "hoped for"));
    }
    let server = spawn_blocking(move || {
        for alert in [
            "LockcoreRenewalsFailing",
            "LockcoreLocksLost",
            "LockcoreMarginLow",
            "LockcoreBackendErrors",
            "LockcoreBackendSlow",
            "LockcoreTimeouts",
            "LockcoreStuck",
        ] {
            wait_for_alert(&server, alert, fault);
        }
        server
    });
    drop((server.await.unwrap(), reader, held));
}

#[test]
fn a_server_that_is_killed_makes_alerts_fire() {
    let mut redis = RedisServer::start();
    let example = Example::start(&redis.url());
    let server = Prometheus::start(example.address(), &rules_in_seconds()).unwrap();
    wait_for(&server, "lockcore:backend_errors:ratio5m");
    redis.kill();
    let killed = Instant::now();
    for alert in ["LockcoreBackendErrors", "LockcoreRenewalsFailing", "LockcoreTimeouts"] {
        wait_for_alert(&server, alert, killed);
    }
    let failed = r#"lockcore_backend_seconds_count{operation="renew",outcome="error"} > 0"#;
    wait_for(&server, failed);
}
