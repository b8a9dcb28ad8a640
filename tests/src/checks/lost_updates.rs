//! C3: no write at the resource replaces a version that its writer has not read.

use std::collections::HashMap;

use super::{Finding, at};
use crate::{Event, What};

/// Finds accepted writes whose writer had read an older version than the one that it replaced.
#[must_use]
pub fn lost_updates(events: &[Event]) -> Vec<Finding> {
    let mut current: HashMap<&str, u64> = HashMap::new();
    let mut findings = Vec::new();
    for event in events {
        if let What::Wrote { name, token, base, value, accepted: true } = &event.what {
            let current = current.entry(name).or_insert(0);
            if base != current {
                findings.push(Finding::new(
                    "C3 lost updates",
                    format!(
                        "`{name}` at {}: token {token} had read version {base} and overwrote {current}",
                        at(event.t)
                    ),
                ));
            }
            *current = *value;
        }
    }
    findings
}

/// The number of writes that the resource rejected because of their token.
#[must_use]
pub fn stale_writes(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::Wrote { accepted: false, .. })).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::script::Script;

    #[test]
    fn each_write_upon_the_one_before_is_good() {
        let events = Script::default().wrote(1, 1, 0, 10, true).wrote(2, 2, 10, 11, true).events();
        assert!(lost_updates(&events).is_empty());
    }

    #[test]
    fn a_write_upon_an_older_version_is_found() {
        let lost = Script::default().wrote(1, 1, 0, 10, true).wrote(2, 2, 0, 11, true).events();
        assert_eq!(lost_updates(&lost).len(), 1);
        let turned_away =
            Script::default().wrote(1, 1, 0, 10, true).wrote(2, 2, 0, 11, false).events();
        assert!(lost_updates(&turned_away).is_empty());
        assert_eq!(stale_writes(&turned_away), 1);
    }
}
