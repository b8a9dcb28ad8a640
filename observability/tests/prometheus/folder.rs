//! The files of this folder, and how tests wait for their effects.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use lockcore_observability::{Prometheus, Sample};

/// The time limit for Prometheus to see an effect.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap()
}

/// The rules with seconds in place of minutes, so that a test can wait for them.
pub(crate) fn rules_in_seconds() -> String {
    in_seconds(&read("rules.yml"))
}

/// The text with seconds in place of minutes, wherever it says `[5m]` or `for: 5m`.
fn in_seconds(rules: &str) -> String {
    let mut seconds = String::new();
    let mut rest = rules;
    while let Some(at) = rest.find('m') {
        let (before, after) = rest.split_at(at);
        seconds.push_str(before);
        let digits = before.trim_end_matches(|character: char| character.is_ascii_digit());
        let is_minutes = digits.len() < before.len()
            && (digits.ends_with('[') || digits.ends_with("for: "))
            && after[1..].starts_with([']', '\n']);
        seconds.push(if is_minutes { 's' } else { 'm' });
        rest = &after[1..];
    }
    seconds + rest
}

/// Waits until `query` has a result with a value.
pub(crate) fn wait_for(server: &Prometheus, query: &str) -> Vec<Sample> {
    wait_until(server, || query.to_owned())
}

/// As [`wait_for`], with a query that is made anew for each look.
fn wait_until(server: &Prometheus, query: impl Fn() -> String) -> Vec<Sample> {
    let start = Instant::now();
    loop {
        let query = query();
        let samples = server.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
        if samples.iter().any(|sample| !sample.value.is_nan()) {
            return samples;
        }
        assert!(start.elapsed() < PATIENCE, "no result of {query} after {PATIENCE:?}: {samples:?}");
        // Prometheus has no event for a scrape.
        thread::sleep(Duration::from_millis(100));
    }
}

/// The names of the alerts that have fired, also of those that are over by now.
pub(crate) fn fired(server: &Prometheus) -> Vec<String> {
    let fired = server.query(r#"last_over_time(ALERTS{alertstate="firing"}[1h])"#).unwrap();
    let names = fired.iter().map(|sample| sample.labels["alertname"].as_str().unwrap().to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Waits until this alert has fired since then. It may be over by now: nothing is renewed any more
/// once all leases have ended.
pub(crate) fn wait_for_alert(server: &Prometheus, alert: &str, since: Instant) {
    wait_until(server, || {
        let ms = since.elapsed().as_millis().max(1);
        format!(r#"last_over_time(ALERTS{{alertstate="firing",alertname="{alert}"}}[{ms}ms])"#)
    });
}

#[test]
fn minutes_become_seconds_and_nothing_else_does() {
    let rules = "expr: sum(rate(a{le=\"5m\"}[15m]))\nfor: 2m\nrecord: a:p99_5m\n";
    let seconds = "expr: sum(rate(a{le=\"5m\"}[15s]))\nfor: 2s\nrecord: a:p99_5m\n";
    assert_eq!(in_seconds(rules), seconds);
}
