//! C1: a believed hold overlaps only with holds that it can be shared with.

use super::{Finding, at, history::Belief};
use crate::{Operations, Share};

/// Finds times at which owners whose holds exclude each other believed to be inside together.
#[must_use]
pub fn exclusion(operations: &Operations) -> Vec<Finding> {
    let by_name = operations.by_name();
    by_name
        .into_iter()
        .flat_map(|(name, operations)| {
            let mut beliefs: Vec<_> =
                operations.iter().flat_map(|operation| operation.beliefs()).collect();
            beliefs.sort_by_key(|belief| belief.from);
            together(name, &beliefs)
        })
        .collect()
}

/// Goes through the beliefs in one name by their start, keeping those that have not ended yet.
fn together(name: &str, beliefs: &[Belief<'_>]) -> Vec<Finding> {
    let mut inside: Vec<&Belief<'_>> = Vec::new();
    let mut findings = Vec::new();
    for belief in beliefs {
        inside.retain(|other| other.to > belief.from);
        inside.push(belief);
        if let Some(what) = excess(belief, &inside) {
            findings.push(Finding::new(
                "C1 exclusion",
                format!("`{name}` at {}: {what}", at(belief.from)),
            ));
        }
    }
    findings
}

/// Explains why the beliefs `inside`, of which `newest` came last, exclude each other.
fn excess(newest: &Belief<'_>, inside: &[&Belief<'_>]) -> Option<String> {
    let is_same = |other: &Belief<'_>| (other.owner, other.token) == (newest.owner, newest.token);
    let show = |belief: &Belief<'_>| {
        format!(
            "{} ({:?}, token {}, {} to {})",
            belief.owner,
            belief.share,
            belief.token,
            at(belief.from),
            at(belief.to)
        )
    };
    if let Share::Permits { of, .. } = newest.share {
        let taken: u32 = inside.iter().map(|belief| permits(belief.share)).sum();
        let all = || inside.iter().map(|belief| show(belief)).collect::<Vec<_>>().join(", ");
        return (taken > of).then(|| format!("{taken} of {of} permits are taken, by {}", all()));
    }
    let rival = inside.iter().find(|other| {
        !is_same(other) && (newest.share == Share::Alone || other.share == Share::Alone)
    })?;
    Some(format!("{} and {} are inside together", show(rival), show(newest)))
}

fn permits(share: Share) -> u32 {
    match share {
        Share::Permits { count, .. } => count,
        Share::Alone | Share::Read => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        What,
        checks::script::{MS, Script},
    };

    const ALL: Share = Share::Alone;

    fn found(script: Script) -> Vec<Finding> {
        exclusion(&Operations::of(&script.events()))
    }

    fn permits(count: u32) -> Share {
        Share::Permits { count, of: 3 }
    }

    #[test]
    fn one_after_the_other_is_good() {
        assert!(
            found(Script::default().hold("x", 1, ALL, 1, 0, 5).hold("y", 1, ALL, 2, 5, 9))
                .is_empty()
        );
    }

    #[test]
    fn two_who_are_inside_together_are_found() {
        let found = found(Script::default().hold("x", 1, ALL, 1, 0, 5).hold("y", 1, ALL, 2, 4, 9));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].message.contains("x:1") && found[0].message.contains("y:1"),
            "{}",
            found[0]
        );
    }

    #[test]
    fn a_belief_lasts_until_the_deadline_that_was_known_last() {
        // x is stopped: it neither leaves nor learns of the loss.
        let stopped = || Script::default().asked(0, "x", 1, ALL).granted(0, "x", 1, 1, 10);
        assert!(found(stopped().hold("y", 1, ALL, 2, 10, 20)).is_empty());
        assert_eq!(found(stopped().hold("y", 1, ALL, 2, 9, 20)).len(), 1);
        let renewed = || stopped().event(8, "x", 1, What::Held { until: 15 * MS });
        assert_eq!(found(renewed().hold("y", 1, ALL, 2, 12, 20)).len(), 1);
        assert!(
            found(
                renewed()
                    .event(11, "x", 1, What::Lost { reason: String::new() })
                    .hold("y", 1, ALL, 2, 12, 20)
            )
            .is_empty()
        );
        assert!(
            found(renewed().event(11, "x", 0, What::Killed).hold("y", 1, ALL, 2, 12, 20))
                .is_empty()
        );
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let readers = || {
            Script::default().hold("x", 1, Share::Read, 1, 0, 9).hold("y", 1, Share::Read, 2, 1, 5)
        };
        assert!(found(readers()).is_empty());
        assert_eq!(found(readers().hold("z", 1, ALL, 3, 8, 10)).len(), 1, "a writer among readers");
        assert_eq!(
            found(Script::default().hold("z", 1, ALL, 1, 0, 5).hold("x", 1, Share::Read, 2, 4, 6))
                .len(),
            1,
            "a reader beside a writer"
        );
    }

    #[test]
    fn more_permits_than_there_are_are_found() {
        let two = || {
            Script::default().hold("x", 1, permits(2), 1, 0, 9).hold("y", 1, permits(1), 2, 1, 9)
        };
        assert!(found(two()).is_empty());
        let found = found(two().hold("z", 1, permits(1), 3, 5, 6));
        assert!(found[0].message.contains("4 of 3"), "{}", found[0]);
    }

    #[test]
    fn nested_holds_of_one_owner_are_one() {
        let nested = Script::default()
            .hold("x", 1, ALL, 1, 0, 9)
            .asked(2, "x", 2, ALL)
            .event(3, "x", 2, What::Granted { token: 1, owner: "x:1".into(), until: 90 * MS })
            .event(4, "x", 2, What::Leaving)
            .event(4, "x", 2, What::Released);
        assert!(found(nested).is_empty());
    }
}
