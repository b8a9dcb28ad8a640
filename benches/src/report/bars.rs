//! The bars that figures must reach.

use crate::report::record::{RATIO, Record, figure};

/// A bar for a figure of lockcore.
#[derive(Debug)]
struct Bar {
    scenario: &'static str,
    metric: &'static str,
    against: Option<&'static str>,
    limit: Limit,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Limit {
    fn is_kept_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(limit) => format!("at least {}", figure(limit, unit)),
            Self::AtMost(limit) => format!("at most {}", figure(limit, unit)),
        }
    }
}

const fn ratio(
    scenario: &'static str,
    metric: &'static str,
    against: &'static str,
    limit: f64,
) -> Bar {
    Bar { scenario, metric, against: Some(against), limit: Limit::AtLeast(limit) }
}

/// At most this multiple of another figure.
const fn at_most_of(
    scenario: &'static str,
    metric: &'static str,
    against: &'static str,
    limit: f64,
) -> Bar {
    Bar { scenario, metric, against: Some(against), limit: Limit::AtMost(limit) }
}

const fn at_least(scenario: &'static str, metric: &'static str, limit: f64) -> Bar {
    Bar { scenario, metric, against: None, limit: Limit::AtLeast(limit) }
}

const fn at_most(scenario: &'static str, metric: &'static str, limit: f64) -> Bar {
    Bar { scenario, metric, against: None, limit: Limit::AtMost(limit) }
}

/// The name of rslock where the better of its settings counts.
pub(crate) const BETTER_RSLOCK: &str = "rslock's better setting";

/// The name under which the fastest other library of each round is compared.
pub(crate) const BEST_PEER: &str = "the best peer";

const BARS: [Bar; 64] = [
    ratio("uncontended", "pairs", "floor", 0.95),
    ratio("uncontended", "pairs", BEST_PEER, 1.0),
    at_most_of("uncontended", "server time a pair", "rslock", 1.1),
    ratio("distinct", "pairs of 1 task", "floor", 0.95),
    ratio("distinct", "pairs of 1 task", BEST_PEER, 1.0),
    ratio("distinct", "pairs of 4 tasks", "floor", 0.95),
    ratio("distinct", "pairs of 4 tasks", BEST_PEER, 1.0),
    ratio("distinct", "pairs of 16 tasks", "floor", 0.95),
    ratio("distinct", "pairs of 16 tasks", BEST_PEER, 1.0),
    ratio("distinct", "pairs of 64 tasks", "floor", 0.95),
    ratio("distinct", "pairs of 64 tasks", BEST_PEER, 1.0),
    ratio("distinct", "pairs of 256 tasks", "floor", 0.95),
    ratio("distinct", "pairs of 256 tasks", BEST_PEER, 1.0),
    ratio("distinct", "pairs of 1024 tasks", "floor", 0.95),
    ratio("distinct", "pairs of 1024 tasks", BEST_PEER, 1.0),
    at_most_of("distinct", "server time of 64 tasks", "rslock", 0.8),
    ratio("contended", "pairs", BEST_PEER, 50.0),
    at_least("contended", "Jain's index", 0.95),
    at_most("contended", "p99 wait in turns", 3.0),
    ratio("fleet", "grants", BETTER_RSLOCK, 10.0),
    at_least("fleet", "smallest share", 22.0),
    at_most("fleet", "commands a grant", 1.0),
    ratio("cluster", "pairs of 1 task", "floor", 0.9),
    ratio("cluster", "pairs of 1 task", "rslock", 1.0),
    ratio("cluster", "pairs of 1 task", "Redisson", 1.0),
    ratio("cluster", "pairs of 16 tasks", "floor", 0.9),
    ratio("cluster", "pairs of 16 tasks", "rslock", 1.0),
    ratio("cluster", "pairs of 16 tasks", "Redisson", 1.0),
    ratio("cluster", "pairs of 64 tasks", "floor", 0.9),
    ratio("cluster", "pairs of 64 tasks", "rslock", 1.0),
    ratio("cluster", "pairs of 64 tasks", "Redisson", 1.0),
    ratio("cluster", "pairs of 256 tasks", "floor", 0.9),
    ratio("cluster", "pairs of 256 tasks", "rslock", 1.0),
    ratio("cluster", "pairs of 256 tasks", "Redisson", 1.0),
    ratio("cluster", "pairs of 1024 tasks", "floor", 0.9),
    ratio("cluster", "pairs of 1024 tasks", "rslock", 1.0),
    ratio("cluster", "pairs of 1024 tasks", "Redisson", 1.0),
    at_most_of("pingpong", "p50", "PING", 2.3),
    at_most_of("pingpong", "p50 of a fair lock", "PING", 1.6),
    ratio("pingpong", "p50, less is more", "rueidislock", 1.0),
    at_most_of("quorum", "time of an uncontended pair", "one server", 1.5),
    ratio("quorum", "pairs of 16 tasks", BETTER_RSLOCK, 1.0),
    ratio("quorum", "pairs of 64 tasks", BETTER_RSLOCK, 1.0),
    ratio("quorum", "p50 of a hand-over, less is more", "rslock", 1.0),
    ratio("quorum", "p50 of a hand-over, less is more", "rslock (5 ms)", 1.0),
    ratio("postgres", "pairs of 16 tasks", "pg_advisory_lock", 1.0),
    ratio("postgres", "pairs of 64 tasks", "pg_advisory_lock", 1.0),
    ratio("postgres", "p50 of a hand-over, less is more", "pg_advisory_lock", 1.0),
    ratio("etcd", "pairs of 16 tasks", "etcd-client", 1.0),
    ratio("etcd", "pairs of 64 tasks", "etcd-client", 1.0),
    ratio("etcd", "p50 of a hand-over, less is more", "etcd-client", 1.0),
    at_most("idle", "with those inside scripts", 2.0),
    at_most("holds", "calls a tick", 100.0),
    at_most("holds", "client CPU", 3.0),
    at_most("holds", "late renewals", 0.0),
    at_most("nested", "p50 of a pair", 1.0),
    at_most("nested", "commands", 0.0),
    ratio("linger", "pairs", "lockcore without linger", 100.0),
    ratio("memory", "pairs of 1 task", "floor", 0.1),
    ratio("memory", "pairs of 64 tasks", "floor", 0.3),
    at_most("footprint", "a hold", 1024.0),
    at_most("footprint", "a waiter", 1024.0),
    at_most("footprint", "an idle name", 0.0),
    at_most("takeover", "p99 after the lease", 100.0),
];

/// A bar, and whether it was reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) scenario: &'static str,
    pub(crate) measure: String,
    pub(crate) bar: String,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
}

/// The bars of the measured figures.
pub(crate) fn judge(records: &[Record]) -> Vec<Verdict> {
    BARS.iter().filter_map(|bar| bar.judge(records)).collect()
}

impl Bar {
    fn judge(&self, records: &[Record]) -> Option<Verdict> {
        let record = records.iter().find(|record| {
            record.scenario == self.scenario
                && record.subject == "lockcore"
                && record.metric == self.metric
                && record.against.as_deref() == self.against
        })?;
        let measure = match self.against {
            Some(against) => format!("{}, against {against}", self.metric),
            None => self.metric.to_owned(),
        };
        let unit = if self.against.is_some() { RATIO } else { record.unit };
        Some(Verdict {
            scenario: self.scenario,
            measure,
            bar: self.limit.text(unit),
            measured: figure(record.value, unit),
            is_met: self.limit.is_kept_by(record.value),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(metric: &str, value: f64, against: Option<&str>) -> Record {
        let against = against.map(str::to_owned);
        Record {
            scenario: "contended",
            subject: "lockcore".into(),
            metric: metric.into(),
            value,
            unit: "",
            against,
        }
    }

    #[test]
    fn what_was_measured_is_judged_and_nothing_else() {
        let records = [
            record("pairs", 49.9, Some(BEST_PEER)),
            record("pairs", 50_000.0, None),
            record("p99 wait in turns", 3.0, None),
        ];
        let verdicts = judge(&records);
        let met: Vec<_> =
            verdicts.iter().map(|verdict| (verdict.measure.as_str(), verdict.is_met)).collect();
        assert_eq!(met, [("pairs, against the best peer", false), ("p99 wait in turns", true)]);
        assert_eq!(
            (verdicts[0].bar.as_str(), verdicts[0].measured.as_str()),
            ("at least 50", "49.9")
        );
    }
}
