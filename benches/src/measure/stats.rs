//! Statistics of samples.

use hdrhistogram::Histogram;

use crate::error::Result;

/// The middle value, or the mean of the two middle ones; 0 without samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Jain's fairness index: 1 if all have equal shares, 1/n if one has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let shares: Vec<f64> = shares.iter().map(|share| float(*share)).collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (float(shares.len() as u64) * squares) } else { 0.0 }
}

/// The percentage of each count in their sum, the largest first.
pub(crate) fn shares(counts: &[u64]) -> Vec<f64> {
    let sum = float(counts.iter().sum());
    let mut shares: Vec<_> = counts.iter().map(|count| ratio(float(*count) * 100.0, sum)).collect();
    shares.sort_by(|a, b| b.total_cmp(a));
    shares
}

/// `a / b`, or 0 if `b` is 0: then nothing was measured, and no bar is reached.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Times in nanoseconds, of up to a minute and to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 60_000_000_000, 3)?))
    }

    pub(crate) fn of(times: impl IntoIterator<Item = u64>) -> Result<Self> {
        Self::of_counts(times.into_iter().map(|time| (time, 1)))
    }

    /// From times, with the number of each.
    pub(crate) fn of_counts(counts: impl IntoIterator<Item = (u64, u64)>) -> Result<Self> {
        let mut times = Self::new()?;
        for (time, count) in counts {
            times.0.saturating_record_n(time, count);
        }
        Ok(times)
    }

    pub(crate) fn add(&mut self, times: impl IntoIterator<Item = u64>) {
        for time in times {
            self.0.saturating_record(time);
        }
    }

    /// The time that this fraction of all times does not exceed, in nanoseconds.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        float(self.0.value_at_quantile(part))
    }

    /// The counts from which [`of_counts`](Self::of_counts) makes the same times.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        self.0
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_about(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!(is_about(median(&[3.0, 1.0, 2.0]), 2.0));
        assert!(is_about(median(&[4.0, 1.0, 2.0, 3.0]), 2.5));
        assert!(is_about(median(&[]), 0.0));
    }

    #[test]
    fn jain_is_one_for_equal_shares_and_one_nth_for_one_winner() {
        assert!(is_about(jain(&[7, 7, 7, 7]), 1.0));
        assert!(is_about(jain(&[9, 0, 0]), 1.0 / 3.0));
        assert!(is_about(jain(&[0, 0]), 0.0));
    }

    #[test]
    fn shares_are_percentages_in_order() {
        let found = shares(&[30, 50, 20]);
        assert!(found.iter().zip([50.0, 30.0, 20.0]).all(|(share, of)| is_about(*share, of)));
        assert!(shares(&[0, 0]).iter().all(|share| is_about(*share, 0.0)));
    }

    #[test]
    fn quantiles_survive_the_way_between_processes() {
        let times = Times::of((1..=1000).map(|time| time * 1000)).unwrap();
        let again = Times::of_counts(times.counts()).unwrap();
        for part in [0.5, 0.99] {
            assert!(is_about(times.quantile(part), again.quantile(part)));
        }
        assert!((times.quantile(0.99) - 990_000.0).abs() < 1_000.0);
    }
}
