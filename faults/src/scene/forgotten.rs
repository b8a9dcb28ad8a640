//! Holds that a failover has lost: the new primary grants them to others.

use std::time::Duration;

use lockcore_testkit::{Operations, Share, checks::Operation, span};

use super::Scene;

impl Scene {
    /// Counts the holders that kept believing when another client got their lock, and finds those
    /// that did so for longer than `told`.
    pub(super) fn look_for_forgotten(&mut self, operations: &Operations, told: Duration) {
        let mut longest = Vec::new();
        for (name, operations) in operations.by_name() {
            for holder in &operations {
                if let Some(overlap) = overlap(holder, &operations) {
                    longest.push((overlap, name.to_owned(), holder.owner.clone()));
                }
            }
        }
        for (overlap, name, owner) in longest.iter().filter(|(overlap, ..)| *overlap > span(told)) {
            let overlap = Duration::from_nanos(*overlap);
            self.finding(format!(
                "I4: `{name}`: {owner} believed to hold it {overlap:?} after it was somebody \
                 else's, {told:?} was allowed"
            ));
        }
        let most = longest.iter().map(|(overlap, ..)| *overlap).max().unwrap_or(0);
        let most = Duration::from_nanos(most).as_millis();
        self.note(format!("{} holds forgotten, for {most} ms at most", longest.len()));
    }
}

/// How long a holder believed in a lock that another client had been granted meanwhile.
fn overlap(holder: &Operation, others: &[&Operation]) -> Option<u64> {
    let (granted, _) = holder.granted?;
    let end = holder.beliefs().iter().map(|belief| belief.to).max()?;
    let next = others
        .iter()
        .filter(|other| other.owner != holder.owner && excludes(holder.share, other.share))
        .filter_map(|other| other.granted.map(|(at, _)| at))
        .filter(|at| *at > granted && *at < end)
        .min()?;
    Some(end - next)
}

fn excludes(one: Share, other: Share) -> bool {
    match (one, other) {
        (Share::Read, Share::Read) => false,
        (Share::Permits { count, of }, Share::Permits { count: others, .. }) => count + others > of,
        _ => true,
    }
}
