//! The longest time without a grant of a lock that all clients work on.

use std::time::Duration;

use lockcore_testkit::{Operations, monotonic};

use super::Scene;
use crate::protocol::Result;

/// A start and an end.
type Span = (u64, u64);

impl Scene {
    /// Records, from `since` until now, the longest time in which there were waiters for a lock
    /// that all clients work on, and no grant.
    pub(crate) fn measure_pause(&mut self, what: &str, since: u64, bound: Duration) -> Result<()> {
        let whole = (since, monotonic());
        let operations = Operations::of(&self.events()?);
        let places = self.places();
        let longest = places.iter().map(|place| {
            let of_place = operations.all().iter().filter(|it| it.name == place.name);
            let (mut waits, mut grants) = (Vec::new(), Vec::new());
            for operation in of_place {
                let granted = operation.granted.map(|(t, _)| t);
                let end = granted.or(operation.end.map(|(t, _)| t));
                waits.push((operation.asked, end.unwrap_or(whole.1)));
                grants.extend(granted);
            }
            longest_pause(waits, &grants, whole)
        });
        let longest = longest.max().map(Duration::from_nanos);
        self.measure(what, longest, bound);
        Ok(())
    }
}

/// The longest time within `whole` in which there was always a waiter, and no grant.
fn longest_pause(mut waits: Vec<Span>, grants: &[u64], whole: Span) -> u64 {
    waits.sort_unstable();
    let mut waited: Vec<Span> = Vec::new();
    for (from, to) in waits {
        match waited.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => waited.push((from, to)),
        }
    }
    let of_span = |(from, to): Span| {
        let (from, to) = (from.max(whole.0), to.min(whole.1));
        let mut moments: Vec<u64> =
            grants.iter().copied().filter(|t| *t > from && *t < to).collect();
        moments.extend([from, to]);
        moments.sort_unstable();
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    };
    waited
        .into_iter()
        .filter(|(from, to)| *from < whole.1 && *to > whole.0)
        .map(of_span)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_found_also_at_the_ends() {
        let pause = |grants: &[u64]| longest_pause(vec![(0, 500)], grants, (100, 200));
        assert_eq!(pause(&[110, 150, 190]), 40);
        assert_eq!(pause(&[50, 160, 190, 300]), 60, "nobody came in at first");
        assert_eq!(pause(&[110, 120]), 80, "nobody came in at last");
        assert_eq!(pause(&[20, 400]), 100, "nobody came in");
    }

    #[test]
    fn a_pause_is_one_only_while_somebody_waits() {
        let pause =
            |waits: &[Span], grants: &[u64]| longest_pause(waits.to_vec(), grants, (100, 200));
        assert_eq!(pause(&[(110, 130), (150, 180)], &[130, 180]), 30);
        assert_eq!(pause(&[(110, 130), (120, 180)], &[180]), 70, "one waited after the other");
        assert_eq!(pause(&[(110, 180), (120, 150)], &[150, 180]), 40);
        assert_eq!(pause(&[(20, 90), (210, 300)], &[]), 0, "nobody waited");
    }
}
