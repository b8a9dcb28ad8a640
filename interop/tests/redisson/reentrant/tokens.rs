//! Fencing tokens of holds of both sides.

use std::sync::Arc;

use crate::{
    deployment::Deployment,
    report::{Promise, record_on},
    section::Section,
    support::Both,
};

/// The number of holds of each side, for each name.
const HOLDS: u64 = 50;

#[tokio::test]
async fn tokens_rise_from_hold_to_hold() {
    of_both(&Deployment::server()).await;
}

pub(crate) async fn of_both(servers: &Arc<Deployment>) {
    let both = Both::on(servers).await;
    let thread = both.redisson.thread();
    let names = servers.names("fenced").await;
    for name in &names {
        let lock = both.locks.lock(name);
        let mut last = 0;
        for _ in 0..HOLDS {
            let guard = lock.acquire().await.unwrap();
            let ours = u64::from(guard.token());
            assert!(ours > last, "{ours} after {last}");
            guard.release().await.unwrap();

            let theirs = thread.acquire_fenced(name).await.unwrap();
            assert!(theirs > ours, "{theirs} after {ours}");
            thread.release(name).await.unwrap();
            last = theirs;
        }
    }
    both.close().await;
    let measured = format!("{} holds, Rust and Java in turn", 2 * HOLDS * names.len() as u64);
    record_on(servers.topology(), Section::Reentrant, Promise::Tokens, measured).await;
}
