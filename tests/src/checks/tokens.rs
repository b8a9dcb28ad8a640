//! C2: tokens rise from grant to grant, are unique, and stay the same when nested.

use std::collections::{BTreeMap, HashMap};

use super::{Finding, at, history::Operation};
use crate::{Event, Operations, What};

/// Finds tokens that do not rise, that two holds share, or that change in a nested hold, and writes
/// that the resource should have rejected.
#[must_use]
pub fn tokens(operations: &Operations, events: &[Event]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (name, operations) in operations.by_name() {
        let granted: Vec<_> =
            operations.into_iter().filter(|operation| operation.granted.is_some()).collect();
        findings.extend(shared(name, &granted));
        findings.extend(not_rising(name, &granted));
    }
    findings.extend(nested(operations));
    findings.extend(let_through(events));
    findings
}

fn finding(message: String) -> Finding {
    Finding::new("C2 tokens", message)
}

fn token(operation: &Operation) -> u64 {
    operation.granted.map_or(0, |(_, token)| token)
}

/// Finds tokens with two owners.
fn shared(name: &str, granted: &[&Operation]) -> Vec<Finding> {
    let mut owners: HashMap<u64, &str> = HashMap::new();
    let mut findings = Vec::new();
    for operation in granted {
        let owner = owners.entry(token(operation)).or_insert(&operation.owner);
        if *owner != operation.owner {
            let message = format!(
                "`{name}`: token {} is that of {owner} and of {}",
                token(operation),
                operation.owner
            );
            findings.push(finding(message));
        }
    }
    findings
}

/// The maximum number of tokens that a client is issued with its hold, to hand on.
const ISSUED: u64 = 256;

/// An acquisition that began after another owner's grant has a greater token. A token that was
/// handed on is as old as the hold that it was issued with: if that hold is lost, the token may
/// come after a greater one of the next owner.
fn not_rising(name: &str, granted: &[&Operation]) -> Vec<Finding> {
    let holds: BTreeMap<_, _> = granted
        .iter()
        .rev()
        .map(|operation| ((&*operation.owner, token(operation)), operation.asked))
        .collect();
    let issued = |operation: &Operation| {
        let (owner, token) = (&*operation.owner, token(operation));
        let earlier = holds.range((owner, token.saturating_sub(ISSUED - 1))..=(owner, token));
        earlier.map(|(_, asked)| *asked).min().unwrap_or(operation.asked)
    };
    let mut findings = falling(name, granted, issued);
    let mut by_owner: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in granted {
        by_owner.entry(&operation.owner).or_default().push(operation);
    }
    for operations in by_owner.values() {
        findings.extend(falling(name, operations, |operation| operation.asked));
    }
    findings.sort_by(|a, b| a.message.cmp(&b.message));
    findings.dedup_by(|a, b| a.message == b.message);
    findings
}

/// Finds tokens that are not greater than those granted before they were `asked` for.
fn falling(name: &str, granted: &[&Operation], asked: impl Fn(&Operation) -> u64) -> Vec<Finding> {
    let mut by_grant: Vec<_> = granted.to_vec();
    by_grant.sort_by_key(|operation| operation.granted);
    let mut by_request: Vec<_> = granted.iter().filter(|o| o.nested_in.is_none()).collect();
    by_request.sort_by_key(|operation| asked(operation));
    let mut earlier = by_grant.into_iter().peekable();
    let mut greatest: Option<&Operation> = None;
    let mut findings = Vec::new();
    for operation in by_request {
        while let Some(before) =
            earlier.next_if(|before| before.granted.is_some_and(|(t, _)| t < asked(operation)))
        {
            greatest =
                greatest.filter(|greatest| token(greatest) >= token(before)).or(Some(before));
        }
        if let Some(before) = greatest
            && token(operation) <= token(before)
        {
            findings.push(finding(format!(
                "`{name}`: {} asked at {} and got token {}, after {} had got {}",
                operation.owner,
                at(operation.asked),
                token(operation),
                before.owner,
                token(before)
            )));
        }
    }
    findings
}

/// Finds nested holds whose token differs from that of the outer hold.
fn nested(operations: &Operations) -> Vec<Finding> {
    let tokens: BTreeMap<_, _> = operations
        .granted()
        .map(|operation| ((&operation.client, operation.op), token(operation)))
        .collect();
    operations
        .granted()
        .filter_map(|operation| {
            let outer = tokens.get(&(&operation.client, operation.nested_in?))?;
            (*outer != token(operation)).then(|| {
                finding(format!(
                    "`{}`: {} has token {} nested in token {outer}",
                    operation.name,
                    operation.owner,
                    token(operation)
                ))
            })
        })
        .collect()
}

/// Finds accepted writes whose token is smaller than an earlier one.
fn let_through(events: &[Event]) -> Vec<Finding> {
    let mut greatest: HashMap<&str, u64> = HashMap::new();
    let mut findings = Vec::new();
    for event in events {
        if let What::Wrote { name, token, accepted: true, .. } = &event.what {
            let greatest = greatest.entry(name).or_insert(*token);
            if token < greatest {
                findings.push(finding(format!(
                    "`{name}`: the resource accepted token {token} after {greatest}"
                )));
            }
            *greatest = (*token).max(*greatest);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Share,
        checks::script::{MS, Script},
    };

    const ALL: Share = Share::Alone;

    fn found(script: Script) -> Vec<Finding> {
        let events = script.events();
        tokens(&Operations::of(&events), &events)
    }

    #[test]
    fn rising_tokens_are_good() {
        assert!(
            found(Script::default().hold("x", 1, ALL, 1, 0, 5).hold("y", 1, ALL, 7, 6, 9))
                .is_empty()
        );
    }

    #[test]
    fn a_token_that_falls_or_stays_is_found() {
        let falls = found(Script::default().hold("x", 1, ALL, 5, 0, 5).hold("y", 1, ALL, 4, 6, 9));
        assert!(falls[0].message.contains("got token 4"), "{falls:?}");
        let stays = found(Script::default().hold("x", 1, ALL, 5, 0, 5).hold("x", 2, ALL, 5, 6, 9));
        assert_eq!(stays.len(), 2, "it is somebody else's as well: {stays:?}");
    }

    #[test]
    fn a_token_that_is_handed_on_is_as_old_as_its_hold() {
        let handed_on = |token, owner: &'static str| {
            Script::default()
                .hold("x", 1, ALL, 5, 0, 5)
                .hold("y", 1, ALL, 9, 3, 20)
                .event(7, "x", 2, What::Asked { name: "a".into(), share: ALL, nested_in: None })
                .event(8, "x", 2, What::Granted { token, owner: owner.into(), until: 90 * MS })
        };
        assert_eq!(found(handed_on(6, "x:1")), []);
        assert_eq!(found(handed_on(6, "x:2")).len(), 1, "it is not of the lost hold");
        assert_eq!(found(handed_on(5, "x:1")).len(), 1, "it is the token of the hold before");
        assert_eq!(found(handed_on(4, "x:1")).len(), 2, "it falls, and is not of the lost hold");
    }

    #[test]
    fn those_who_asked_at_the_same_time_come_in_any_order() {
        let script = Script::default()
            .asked(0, "x", 1, Share::Read)
            .asked(1, "y", 1, Share::Read)
            .granted(2, "y", 1, 2, 50)
            .granted(3, "x", 1, 1, 50);
        assert!(found(script).is_empty());
    }

    #[test]
    fn a_nested_hold_with_another_token_is_found() {
        let nested = |token| {
            Script::default()
                .hold("x", 1, ALL, 3, 0, 9)
                .event(2, "x", 2, What::Asked { name: "a".into(), share: ALL, nested_in: Some(1) })
                .event(3, "x", 2, What::Granted { token, owner: "x:1".into(), until: 90 * MS })
        };
        assert!(found(nested(3)).is_empty());
        assert_eq!(found(nested(4)).len(), 1);
    }

    #[test]
    fn a_resource_that_lets_an_old_token_through_is_found() {
        assert!(
            found(Script::default().wrote(1, 5, 0, 1, true).wrote(2, 4, 0, 1, false)).is_empty()
        );
        assert_eq!(
            found(Script::default().wrote(1, 5, 0, 1, true).wrote(2, 4, 1, 2, true)).len(),
            1
        );
    }
}
