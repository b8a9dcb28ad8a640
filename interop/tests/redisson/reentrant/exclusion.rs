//! Nobody else is inside.

use lockcore_interop::Kind;

use crate::{
    contention::contend,
    report::{Row, record},
};

/// Of each task and each thread; there are four on each side.
const ROUNDS: u32 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_and_java_exclude_each_other() {
    let seen = contend(Kind::Reentrant, ["busy", "busy"], ROUNDS, 4).await;
    assert_eq!((seen.overlaps, seen.lost), (0, 0), "overlaps, lost updates");
    assert!(seen.switches >= 50, "the sides take turns: {} changes", seen.switches);
    let measured = format!(
        "{} holds in {:.1} s, half of each side; {} changes of side, 0 overlaps, 0 lost updates",
        seen.holds,
        seen.took.as_secs_f64(),
        seen.switches
    );
    record(Row::Exclusion, measured).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_without_a_common_lock_is_noticed() {
    let seen = contend(Kind::Reentrant, ["of_rust", "of_java"], ROUNDS, 2).await;
    assert!(seen.overlaps > 0 && seen.lost > 0, "{seen:?}");
    record(Row::Detection, format!("{} overlaps and {} lost updates", seen.overlaps, seen.lost)).await;
}
