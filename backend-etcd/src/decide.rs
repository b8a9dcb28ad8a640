//! [`decide`]: the outcome of a request for a lock. Nothing here does I/O.

use etcd_client::{Compare, CompareOp};
use lockcore::{Mode, backend::AcquireRequest};

use crate::{
    keys::{Keys, Kind},
    seen::{Entry, Seen, nothing_below},
};

/// The next step of a request.
pub(crate) enum Decision<'a> {
    /// The hold exists already.
    Own(&'a Entry),
    /// The leases of these have to end first.
    Blocked {
        by: Vec<&'a Entry>,
        /// `true` if the hold gets a place when it wants one.
        may_queue: bool,
    },
    /// The hold that should grow does not exist.
    Gone,
    /// The name is in use as another kind of lock.
    OtherKind,
    /// The hold is granted, if these conditions still hold when it is written.
    Grant {
        /// Earlier holds of the same owner.
        replaces: Vec<&'a Entry>,
        conditions: Vec<Compare>,
    },
}

/// Decides about a request of `kind`.
pub(crate) fn decide<'a>(
    seen: &'a Seen,
    keys: &Keys,
    kind: Kind,
    request: &AcquireRequest,
) -> Decision<'a> {
    if seen.is_of_other_kind {
        return Decision::OtherKind;
    }
    let mode = request.mode;
    let in_mode = |entry: &&Entry| kind == Kind::Lock || entry.record.mode == mode;
    let own = seen.holds.iter().find(|entry| in_mode(entry) && entry.id == request.hold.id());
    if let Some(own) = own {
        return Decision::Own(own);
    }
    let owner = request.hold.owner();
    let replaces: Vec<_> =
        seen.holds.iter().filter(|entry| in_mode(entry) && entry.record.owner == owner).collect();
    let takes_over = !replaces.is_empty();
    let by = blockers(seen, request, takes_over);
    if !by.is_empty() {
        let is_written = by.iter().any(|entry| entry.record.mode == Mode::Write);
        return Decision::Blocked { by, may_queue: mode != Mode::Write || !is_written };
    }
    if request.count > 1 {
        return Decision::Gone;
    }
    let first = if takes_over { Vec::new() } else { waits_for(seen, request) };
    if !first.is_empty() {
        return Decision::Blocked { by: first, may_queue: true };
    }
    let conditions = conditions(seen, keys, kind, request, takes_over);
    Decision::Grant { replaces, conditions }
}

/// The holds that exclude this one.
fn blockers<'a>(seen: &'a Seen, request: &AcquireRequest, takes_over: bool) -> Vec<&'a Entry> {
    let owner = request.hold.owner();
    let within = request.within.as_ref().map(|within| within.id());
    let blocks = |entry: &&Entry| match request.mode {
        // A named owner takes over its own hold, whatever other holds exist.
        Mode::Read | Mode::Write if takes_over => false,
        Mode::Read => entry.record.mode == Mode::Write && Some(entry.id.as_str()) != within,
        Mode::Write => true,
        _ => entry.record.owner != owner,
    };
    seen.holds.iter().filter(blocks).collect()
}

/// The places that come first although no hold is in the way.
fn waits_for<'a>(seen: &'a Seen, request: &AcquireRequest) -> Vec<&'a Entry> {
    match request.mode {
        Mode::Fair if seen.holds.is_empty() => {
            seen.places.iter().take(1).filter(|first| first.id != request.hold.id()).collect()
        }
        // A reader beside a writer does not wait for writers.
        Mode::Read if !seen.holds.iter().any(|entry| entry.record.mode == Mode::Write) => {
            seen.places.iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The conditions under which the grant is written.
fn conditions(
    seen: &Seen,
    keys: &Keys,
    kind: Kind,
    request: &AcquireRequest,
    takes_over: bool,
) -> Vec<Compare> {
    let own = keys.hold(request.mode, request.hold.id());
    let mut conditions = vec![
        nothing_below(keys.kind(kind.other())),
        // A late copy of the request must not replace what the first one has written.
        Compare::create_revision(own, CompareOp::Equal, 0),
    ];
    match request.mode {
        Mode::Read => {
            conditions.push(seen.nothing_new(keys.holds_in(Mode::Write)));
            // A named owner has one hold, so it must not have got another one meanwhile.
            if request.hold.is_named() {
                conditions.push(seen.nothing_new(keys.holds_in(Mode::Read)));
            }
            if !takes_over {
                conditions.push(seen.nothing_new(keys.places(kind)));
            }
            let within = request.within.as_ref().map(|within| within.id());
            let is_within = |entry: &&Entry| {
                entry.record.mode == Mode::Write && Some(entry.id.as_str()) == within
            };
            conditions.extend(seen.holds.iter().find(is_within).map(Entry::present));
        }
        _ => conditions.push(seen.nothing_new(keys.holds(kind))),
    }
    if request.mode == Mode::Fair && !takes_over {
        match &seen.own_place {
            // A waiter that comes now is behind it.
            Some(place) => conditions.push(place.present()),
            None => conditions.push(seen.nothing_new(keys.places(kind))),
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockcore::{LockName, backend::HoldId};

    use super::*;

    #[test]
    fn no_grant_replaces_the_hold_itself() {
        let name = LockName::new("order").unwrap();
        let keys = Keys::new("lockcore/", &name);
        for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
            let kind = Kind::of(mode).unwrap();
            let seen = Seen {
                revision: 1,
                holds: Vec::new(),
                places: Vec::new(),
                own_place: None,
                is_of_other_kind: false,
            };
            let hold = HoldId::unique("a");
            let request = AcquireRequest::new(name.clone(), hold, Duration::from_secs(30));
            let request = request.mode(mode);
            let Decision::Grant { conditions, .. } = decide(&seen, &keys, kind, &request) else {
                panic!("refused");
            };
            let absent = Compare::create_revision(keys.hold(mode, "a"), CompareOp::Equal, 0);
            let (all, absent) = (format!("{conditions:?}"), format!("{absent:?}"));
            assert!(all.contains(&absent), "{mode:?}: {all}");
        }
    }
}
