//! [`Samples`]: the measurements, by subject and round.

use crate::{
    measure::stats::{median, ratio},
    subjects::Subject,
};

/// The measurements of each subject, one for each round.
#[derive(Debug)]
pub(crate) struct Samples<T>(Vec<(Subject, Vec<T>)>);

impl<T> Samples<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, subject: Subject, sample: T) {
        match self.0.iter_mut().find(|(of, _)| *of == subject) {
            Some((_, samples)) => samples.push(sample),
            None => self.0.push((subject, vec![sample])),
        }
    }

    /// In their usual order.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let has = |subject: &Subject| self.0.iter().any(|(of, _)| of == subject);
        Subject::ALL.into_iter().chain(Subject::OF_OTHER_STORES).filter(has).collect()
    }

    pub(crate) fn of(&self, subject: Subject) -> &[T] {
        self.0.iter().find(|(of, _)| *of == subject).map_or(&[], |(_, samples)| samples)
    }

    pub(crate) fn median(&self, subject: Subject, of: impl Fn(&T) -> f64) -> f64 {
        median(&self.of(subject).iter().map(of).collect::<Vec<_>>())
    }

    /// The median over the rounds of the ratio of lockcore's figure to the best of the others.
    pub(crate) fn ratio(&self, others: &[Subject], of: impl Fn(&T) -> f64) -> f64 {
        let rounds = self.of(Subject::Lockcore).iter().enumerate().map(|(round, ours)| {
            let best = others
                .iter()
                .filter_map(|other| self.of(*other).get(round))
                .map(&of)
                .fold(0.0, f64::max);
            ratio(of(ours), best)
        });
        median(&rounds.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round_and_against_the_better_setting() {
        let mut samples = Samples::new();
        for (ours, slow, fast) in [(10.0, 1.0, 2.0), (30.0, 3.0, 1.0), (80.0, 1.0, 20.0)] {
            samples.add(Subject::Rslock, slow);
            samples.add(Subject::Lockcore, ours);
            samples.add(Subject::RslockFast, fast);
        }
        let ratio = samples.ratio(&[Subject::Rslock, Subject::RslockFast], |sample| *sample);
        assert!((ratio - 5.0).abs() < 1e-9, "{ratio}");
        assert_eq!(samples.subjects()[0], Subject::Lockcore);
    }
}
