//! [`Pressure`]: the share of the time in which something waited for this machine's parts.

use std::{fmt::Write, fs, time::Instant};

/// The parts that Linux keeps account of.
const PARTS: [&str; 3] = ["cpu", "io", "memory"];

/// The pressure stall information of Linux: the time in which at least one process waited for a part.
/// All processes on the machine count, so it tells a slow machine from a slow client.
#[derive(Debug)]
pub(super) struct Pressure {
    began: Instant,
    /// In microseconds since the start of the machine; `None` if it is not counted.
    waited: [Option<u64>; 3],
}

impl Pressure {
    pub(super) fn now() -> Self {
        Self { began: Instant::now(), waited: PARTS.map(waited) }
    }

    /// The shares since then, as the end of a sentence.
    pub(super) fn since(&self) -> String {
        let mut text = String::new();
        let passed = self.began.elapsed().as_micros().max(1);
        for (part, (before, now)) in PARTS.iter().zip(self.waited.iter().zip(PARTS.map(waited))) {
            if let (Some(before), Some(now)) = (before, now) {
                let percent = u128::from(now.saturating_sub(*before)) * 100 / passed;
                let _ = write!(text, ", {part} was waited for {percent} % of the time");
            }
        }
        text
    }
}

fn waited(part: &str) -> Option<u64> {
    total(&fs::read_to_string(format!("/proc/pressure/{part}")).ok()?)
}

fn total(of: &str) -> Option<u64> {
    let some = of.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_processes_counts() {
        let of =
            "some avg10=0.00 avg60=1.50 avg300=2.00 total=604585344\nfull avg10=0.00 total=7\n";
        assert_eq!(total(of), Some(604_585_344));
        assert_eq!(total(""), None);
    }
}
