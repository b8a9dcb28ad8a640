//! [`Figures`]: a recorder that keeps everything for tests.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// A figure is at most a second old.
const SETTLED: Duration = Duration::from_millis(1010);

/// The values of one metric, by its key in the format of Prometheus: the recorded ones, or
/// everything that was added.
type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

/// Keeps the recorded values. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    values: Values,
    described: Arc<Mutex<BTreeMap<String, Option<Unit>>>>,
}

#[derive(Debug)]
struct Handle {
    key: String,
    values: Values,
}

impl Figures {
    /// Runs a test on a paused clock, with these figures as its recorder.
    pub(crate) fn of<F: Future>(test: impl FnOnce(Self) -> F) -> F::Output {
        let figures = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        metrics::with_local_recorder(&figures, || runtime.block_on(test(figures.clone())))
    }

    fn handle(&self, key: &Key) -> Arc<Handle> {
        let mut labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        let key = format!("{}{{{}}}", key.name(), labels.join(","));
        self.values.lock().unwrap().entry(key.clone()).or_default();
        Arc::new(Handle { key, values: self.values.clone() })
    }

    /// Waits until the figures are current: the client updates the recorder within a second.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(SETTLED).await;
    }

    /// The recorded values of `name{label=value,..}`, with the labels in alphabetical order.
    pub(crate) fn values(&self, key: &str) -> Vec<f64> {
        self.values.lock().unwrap().get(key).cloned().unwrap_or_default()
    }

    /// Checks that `times` were recorded, in seconds: the client rounds them to within 2 %.
    pub(crate) fn assert_times(&self, key: &str, times: &[f64]) {
        let values = self.values(key);
        let is_near = |(value, time): (&f64, &f64)| (value - time).abs() <= time / 50.0;
        let are_near = values.iter().zip(times).all(is_near);
        assert!(values.len() == times.len() && are_near, "{key}: {values:?}, not {times:?}");
    }

    /// The number of recorded values.
    pub(crate) fn count(&self, key: &str) -> usize {
        self.values(key).len()
    }

    /// The value of a counter or a gauge.
    pub(crate) fn sum(&self, key: &str) -> f64 {
        self.values(key).iter().sum()
    }

    /// The keys that are registered.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.values.lock().unwrap().keys().cloned().collect()
    }

    /// The metrics that are described, with their units.
    pub(crate) fn described(&self) -> BTreeMap<String, Option<Unit>> {
        self.described.lock().unwrap().clone()
    }

    /// Checks that, according to the gauges, nobody waits and nothing is held.
    pub(crate) fn assert_at_rest(&self, what: &str) {
        for key in self.keys() {
            if key.starts_with("lockcore_waiting") || key.starts_with("lockcore_held") {
                assert_eq!(self.sum(&key), 0.0, "{what}: {key}");
            }
        }
    }
}

impl Handle {
    fn add(&self, value: f64) {
        self.values.lock().unwrap().entry(self.key.clone()).or_default().push(value);
    }
}

impl CounterFn for Handle {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        panic!("no counter is set");
    }
}

impl GaugeFn for Handle {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        panic!("no gauge is set: other clients have the same");
    }
}

impl HistogramFn for Handle {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recorder for Figures {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key))
    }
}
