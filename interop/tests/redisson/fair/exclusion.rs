//! Nobody else is inside.

use lockcore_interop::Kind;

use crate::{
    contention::contend,
    report::{Row, record},
};

/// Of each task and each thread; there are four on each side.
const ROUNDS: u32 = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_rust_and_java_exclude_each_other() {
    let seen = contend(Kind::Fair, ["busy", "busy"], ROUNDS, 8).await;
    assert_eq!((seen.overlaps, seen.lost), (0, 0), "overlaps, lost updates");
    assert!(seen.switches >= seen.holds / 8, "the sides take turns: {} changes", seen.switches);
    let measured = format!(
        "{} holds in {:.1} s, half of each side; {} changes of side, 0 overlaps, 0 lost updates",
        seen.holds,
        seen.took.as_secs_f64(),
        seen.switches
    );
    record(Row::FairExclusion, measured).await;
}
