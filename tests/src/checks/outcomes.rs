//! C6: every acquisition comes to an end, losses are reported in time, and an unknown hold ends
//! with its lease.

use std::time::Duration;

use super::{Finding, ServerTruth, at, history::Operation, wakeups::stops};
use crate::{Event, Operations, span};

/// Finds acquisitions that never came to an end, losses that were reported later than `slack` after
/// the deadline, and holds at the server that were granted to no client and outlive the `lease` of
/// their lock's name.
#[must_use]
pub fn outcomes(
    operations: &Operations,
    events: &[Event],
    truth: Option<&ServerTruth>,
    lease: impl Fn(&str) -> Duration,
    slack: Duration,
) -> Vec<Finding> {
    let mut findings: Vec<_> = operations.all().iter().filter_map(endless).collect();
    let stops = stops(events);
    for operation in operations.granted() {
        let of_client = stops.get(operation.client.as_str()).map_or(&[][..], Vec::as_slice);
        findings.extend(told_late(operation, of_client, span(slack)));
    }
    if let Some(truth) = truth {
        findings.extend(orphans(operations, truth, |name| span(lease(name)) + span(slack)));
    }
    findings
}

fn finding(message: String) -> Finding {
    Finding::new("C6 outcomes", message)
}

fn endless(operation: &Operation) -> Option<Finding> {
    let Operation { name, client, op, asked, .. } = operation;
    operation.end.is_none().then(|| {
        finding(format!(
            "`{name}`: {client} op {op}, asked for at {}, never came to an end",
            at(*asked)
        ))
    })
}

/// Finds an owner that acted as if inside, or was not told of the loss, after its last known
/// deadline.
fn told_late(operation: &Operation, stops: &[(u64, u64)], slack: u64) -> Option<Finding> {
    let deadline = operation.looked.iter().map(|(_, until)| *until).max()?;
    let told = operation.lost.unwrap_or(u64::MAX).min(operation.left.unwrap_or(u64::MAX));
    let was_stopped =
        stops.iter().any(|(from, to)| *from < told && to.saturating_add(slack) > deadline);
    let is_late = told != u64::MAX && told > deadline.saturating_add(slack) && !was_stopped;
    is_late.then(|| {
        let late = Duration::from_nanos(told - deadline);
        finding(format!(
            "`{}`: {} was told of the loss {late:?} after its deadline",
            operation.name, operation.owner
        ))
    })
}

/// Finds holds that no client knows of and that lasted longer than an unrenewed lease.
fn orphans(
    operations: &Operations,
    truth: &ServerTruth,
    longest: impl Fn(&str) -> u64,
) -> Vec<Finding> {
    let known: std::collections::HashSet<_> =
        operations.granted().map(|operation| operation.owner.as_str()).collect();
    let orphans = truth.holds().filter(|hold| !known.contains(hold.owner.as_str()));
    orphans
        .filter(|hold| hold.to - hold.from > longest(&hold.name))
        .map(|hold| {
            let kept = Duration::from_nanos(hold.to - hold.from);
            finding(format!(
                "`{}`: the server kept {} for {kept:?}, and nobody was granted it",
                hold.name, hold.owner
            ))
        })
        .collect()
}

/// The time from `t` to the next grant of `name`.
#[must_use]
pub fn takeover_after(operations: &Operations, name: &str, t: u64) -> Option<Duration> {
    let of_name = operations
        .granted()
        .filter(|operation| operation.name == name && operation.nested_in.is_none());
    let next = of_name
        .filter_map(|operation| operation.granted)
        .map(|(at, _)| at)
        .filter(|at| *at > t)
        .min()?;
    Some(Duration::from_nanos(next - t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Share, What,
        checks::script::{MS, Script},
    };

    const ALL: Share = Share::Alone;

    fn found(script: Script, truth: Option<&ServerTruth>) -> Vec<Finding> {
        let events = script.events();
        let [lease, slack] = [2000, 50].map(Duration::from_millis);
        outcomes(&Operations::of(&events), &events, truth, |_| lease, slack)
    }

    #[test]
    fn one_that_never_ends_is_found_unless_its_process_was_killed() {
        assert!(found(Script::default().hold("x", 1, ALL, 1, 0, 5), None).is_empty());
        let waits = || Script::default().asked(0, "x", 1, ALL);
        assert_eq!(found(waits(), None).len(), 1);
        assert_eq!(found(waits().granted(1, "x", 1, 1, 50), None).len(), 1);
        assert!(found(waits().event(3, "x", 0, What::Killed), None).is_empty());
        assert!(found(waits().event(3, "x", 1, What::Cancelled), None).is_empty());
    }

    #[test]
    fn a_loss_that_was_told_late_is_found() {
        let told = |t| {
            Script::default()
                .asked(0, "x", 1, ALL)
                .granted(0, "x", 1, 1, 100)
                .event(t, "x", 1, What::Lost { reason: "LeaseEnded".into() })
                .event(t, "x", 1, What::NotReleased { kind: "Lost".into(), lost: true })
        };
        assert!(found(told(140), None).is_empty());
        assert_eq!(found(told(400), None).len(), 1);
        let stopped =
            told(400).event(50, "x", 0, What::Stopped).event(390, "x", 0, What::Continued);
        assert!(found(stopped, None).is_empty(), "who is stopped is told when it goes on");
    }

    #[test]
    fn a_hold_that_nobody_was_granted_and_that_is_renewed_is_found() {
        let kept = |ms| {
            let mut truth = ServerTruth::default();
            truth.add("a", "ghost:1", 0, ms * MS);
            truth
        };
        let script = || Script::default().hold("x", 1, ALL, 1, 0, 5);
        assert!(found(script(), Some(&kept(2040))).is_empty(), "it may stay for its lease");
        assert_eq!(found(script(), Some(&kept(2700))).len(), 1);
    }

    #[test]
    fn the_takeover_is_the_next_grant() {
        let events =
            Script::default().hold("x", 1, ALL, 1, 0, 5).hold("y", 1, ALL, 2, 70, 80).events();
        let operations = Operations::of(&events);
        assert_eq!(takeover_after(&operations, "a", 50 * MS), Some(Duration::from_millis(20)));
        assert_eq!(takeover_after(&operations, "a", 71 * MS), None);
    }
}
