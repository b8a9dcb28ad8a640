//! How long nobody was granted a lock that all clients work on.

use std::time::Duration;

use lockcore_testkit::{Operations, monotonic};

use super::Scene;
use crate::protocol::Result;

impl Scene {
    /// Puts down for how long at most nobody was granted one of the locks that all clients work on,
    /// from `since` until now.
    pub(crate) fn measure_pause(&mut self, what: &str, since: u64, bound: Duration) -> Result<()> {
        let now = monotonic();
        let operations = Operations::of(&self.events()?);
        let places = self.places();
        let longest = places.iter().map(|place| {
            let of_place = operations.granted().filter(|operation| operation.name == place.name);
            longest_pause(of_place.filter_map(|operation| operation.granted), since, now)
        });
        let longest = longest.max().map(Duration::from_nanos);
        self.measure(what, longest, bound);
        Ok(())
    }
}

/// The longest time between two moments in which none of the grants falls, of which each has a time
/// and a token.
fn longest_pause(grants: impl Iterator<Item = (u64, u64)>, from: u64, to: u64) -> u64 {
    let mut moments: Vec<u64> = grants.map(|(t, _)| t).filter(|t| *t > from && *t < to).collect();
    moments.extend([from, to]);
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_found_also_at_the_ends() {
        let pause = |grants: &[u64]| longest_pause(grants.iter().map(|t| (*t, 0)), 100, 200);
        assert_eq!(pause(&[110, 150, 190]), 40);
        assert_eq!(pause(&[50, 160, 190, 300]), 60, "nobody came in at first");
        assert_eq!(pause(&[110, 120]), 80, "nobody came in at last");
        assert_eq!(pause(&[20, 400]), 100, "nobody came in");
    }
}
