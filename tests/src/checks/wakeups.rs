//! C5: nobody waits long for a free lock.

use std::{collections::HashMap, time::Duration};

use super::{Ending, Finding, at, history::Operation};
use crate::{Event, Operations, What, span};

/// The limits of [`wakeups`].
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// How long the store keeps a hold that is not renewed.
    pub lease: Duration,
    /// The maximum wait for a free lock.
    pub within: Duration,
    /// The time after the end of a fault that is not checked.
    pub grace: Duration,
}

/// A start and an end.
type Span = (u64, u64);

/// Finds acquisitions that waited too long for a lock that was free all the while. Times of faults,
/// and times while the waiter's process is stopped, do not count.
#[must_use]
pub fn wakeups(operations: &Operations, events: &[Event], waits: Waits) -> Vec<Finding> {
    let faults = faults(events, span(waits.grace));
    let stops = stops(events);
    let none = Vec::new();
    let mut findings = Vec::new();
    for (name, operations) in operations.by_name() {
        let lease = span(waits.lease);
        let mut busy: Vec<Span> =
            operations.iter().filter_map(|operation| busy(operation, lease)).collect();
        for operation in &operations {
            let of_client = stops.get(operation.client.as_str()).unwrap_or(&none);
            busy.extend(
                of_client.iter().filter_map(|stop| stopped_midway(operation, *stop, lease)),
            );
        }
        let busy = joined(busy);
        for waiter in operations {
            let mut excused = busy.clone();
            excused.extend(&faults);
            excused.extend(stops.get(waiter.client.as_str()).unwrap_or(&none));
            let waited = (waiter.asked, waits_until(waiter));
            if let Some((from, to)) = longest_gap(waited, joined(excused))
                && to - from > span(waits.within)
            {
                let how_long = Duration::from_nanos(to - from);
                findings.push(Finding::new(
                    "C5 wake-ups",
                    format!(
                        "`{name}`: free from {}, {} op {} waited for {how_long:?}",
                        at(from),
                        waiter.client,
                        waiter.op
                    ),
                ));
            }
        }
    }
    findings
}

/// The end of the wait of an acquisition. [`outcomes`](super::outcomes) finds those that never
/// ended.
fn waits_until(operation: &Operation) -> u64 {
    let granted = operation.granted.map(|(t, _)| t);
    granted.or(operation.end.map(|(t, _)| t)).unwrap_or(operation.asked)
}

/// The time during which the store may have had a hold: from the grant until it has certainly
/// ended.
fn busy(operation: &Operation, lease: u64) -> Option<Span> {
    let (end, ending) = operation.end.unwrap_or((u64::MAX - lease, Ending::Unconfirmed));
    let from = match operation.granted {
        Some((granted, _)) => granted,
        None if matches!(ending, Ending::Unknown | Ending::Killed) => operation.asked,
        None => return None,
    };
    Some(match ending {
        Ending::Refused | Ending::Released | Ending::Dropped => (from, end),
        Ending::Unknown | Ending::Unconfirmed | Ending::Killed => (from, end.saturating_add(lease)),
    })
}

/// A stopped process may have been granted a lock without knowing it yet, or may not have released
/// a dropped one.
fn stopped_midway(operation: &Operation, stop: Span, lease: u64) -> Option<Span> {
    const ON_ITS_WAY: u64 = 250_000_000;
    let decided = operation.granted.map_or(u64::MAX, |(t, _)| t);
    let end = operation.end.map_or(u64::MAX, |(t, _)| t);
    let is_asking = operation.asked < stop.0 && stop.0 < decided.min(end);
    let is_going = end < stop.0 && stop.0 < end.saturating_add(ON_ITS_WAY);
    (is_asking || is_going).then(|| (stop.0.min(end), stop.0.saturating_add(lease)))
}

fn faults(events: &[Event], grace: u64) -> Vec<Span> {
    let mut faults = Vec::new();
    for event in events {
        match &event.what {
            What::Fault { .. } => faults.push((event.t, u64::MAX)),
            What::Healed => {
                for fault in faults.iter_mut().filter(|fault| fault.1 == u64::MAX) {
                    fault.1 = event.t + grace;
                }
            }
            _ => {}
        }
    }
    faults
}

/// The times at which each process was stopped.
pub(super) fn stops(events: &[Event]) -> HashMap<&str, Vec<Span>> {
    let mut stops: HashMap<&str, Vec<Span>> = HashMap::new();
    for event in events {
        let of_client = stops.entry(&event.client).or_default();
        match &event.what {
            What::Stopped => of_client.push((event.t, u64::MAX)),
            What::Continued | What::Killed => {
                for stop in of_client.iter_mut().filter(|stop| stop.1 == u64::MAX) {
                    stop.1 = event.t;
                }
            }
            _ => {}
        }
    }
    stops
}

/// Sorts the spans, and merges those that touch.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// The longest part of `whole` that none of the spans covers.
fn longest_gap(whole: Span, spans: Vec<Span>) -> Option<Span> {
    let mut gaps = Vec::new();
    let mut from = whole.0;
    for span in spans.into_iter().filter(|span| span.1 > whole.0 && span.0 < whole.1) {
        gaps.push((from, span.0));
        from = from.max(span.1);
    }
    gaps.push((from, whole.1));
    gaps.into_iter().filter(|(from, to)| from < to).max_by_key(|(from, to)| to - from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Share, checks::script::Script};

    const ALL: Share = Share::Alone;

    fn found(script: Script) -> Vec<Finding> {
        let events = script.events();
        let [lease, within, grace] = [2000, 300, 100].map(Duration::from_millis);
        wakeups(&Operations::of(&events), &events, Waits { lease, within, grace })
    }

    /// y asks while x holds; x leaves at 100; y is granted the lock at `at`.
    fn handed_over(at: u64) -> Script {
        Script::default()
            .hold("x", 1, ALL, 1, 0, 100)
            .asked(10, "y", 1, ALL)
            .granted(at, "y", 1, 2, 9999)
            .event(at + 1, "y", 1, What::Released)
    }

    #[test]
    fn a_prompt_hand_over_is_good() {
        assert!(found(handed_over(110)).is_empty());
    }

    #[test]
    fn a_wake_up_that_was_lost_is_found() {
        let lost = found(handed_over(1500));
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(lost[0].message.contains("1.4s"), "{}", lost[0]);
    }

    #[test]
    fn a_lock_that_may_be_held_is_not_free() {
        // The acquisition of z was not answered.
        let unknown = What::Failed { kind: "Timeout".into(), unknown: true };
        assert!(
            found(handed_over(1500).asked(50, "z", 1, ALL).event(150, "z", 1, unknown)).is_empty()
        );
        // x did not release but was killed.
        let killed = Script::default()
            .asked(0, "x", 1, ALL)
            .granted(0, "x", 1, 1, 2000)
            .event(100, "x", 0, What::Killed)
            .asked(10, "y", 1, ALL);
        assert!(found(killed.granted(2100, "y", 1, 2, 9999)).is_empty());
    }

    #[test]
    fn faults_and_stopped_waiters_are_excused() {
        let fault = |from, to| {
            handed_over(1500).event(from, "rig", 0, What::Fault { what: String::new() }).event(
                to,
                "rig",
                0,
                What::Healed,
            )
        };
        assert!(found(fault(90, 1200)).is_empty());
        assert_eq!(found(fault(90, 1000)).len(), 1);
        let going = handed_over(1500).event(200, "x", 0, What::Stopped).event(
            1000,
            "x",
            0,
            What::Continued,
        );
        assert!(found(going).is_empty(), "its release may not have been sent");
        let later = handed_over(1500).event(400, "x", 0, What::Stopped).event(
            1000,
            "x",
            0,
            What::Continued,
        );
        assert_eq!(found(later).len(), 1);
        let stop =
            handed_over(1500).event(90, "y", 0, What::Stopped).event(1300, "y", 0, What::Continued);
        assert!(found(stop).is_empty());
    }
}
