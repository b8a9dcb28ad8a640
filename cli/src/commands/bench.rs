//! `lockctl bench`.

use std::{
    fmt::Write as _,
    future::Future,
    hash::{BuildHasher, RandomState},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use lockcore::{Lock, LockError, LockName, Locks};
use serde::Serialize;
use tokio::{
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    cli::Common,
    duration,
    exit::{Exit, Failure},
    output::{self, Table},
    process::Signals,
    store::Traces,
};

const AFTER_HELP: &str = "\
Each task acquires and releases an exclusive lock of its own, one pair after the other, and its
next request waits for the answer to the last. So with one task, the latency is that of one lock,
and with many, the pairs a second are what this server gives this client. Nobody waits for anybody.

The names begin with --name, and are different each time. Nothing stays at the store, also after
SIGINT or SIGTERM, which ends the run early; the report is printed then as well. If lockctl is
killed, the locks are free when their leases end, after 10 s.

A server that is in use is slowed down meanwhile.

Exit codes: 0, or 128 + n after signal n.

Examples:
  lockctl bench
  lockctl bench --tasks 100 --seconds 10
  lockctl bench --json | jq .acquire_ms.p99";

/// Measures the latency and the throughput of locks on this store, from here.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The number of tasks, 1 to 1000.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,
    /// How long it takes, at most 10 m.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// The beginning of the names of the locks.
    #[arg(long, default_value = "lockctl-bench")]
    name: String,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

const LONGEST: Duration = Duration::from_secs(600);
/// The lease of the locks, which nobody needs when this process has died.
const LEASE: Duration = Duration::from_secs(10);
/// How long the end may take if the store does not answer: longer than a request.
const LONGEST_END: Duration = Duration::from_secs(12);
/// In nanoseconds, like all measured times.
const LONGEST_TIME: u64 = 60_000_000_000;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match duration::parse_positive(text)? {
        seconds if seconds > LONGEST => Err("give at most 10m".into()),
        seconds => Ok(seconds),
    }
}

pub(crate) async fn bench(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let cannot_listen =
        |error| Failure::new(Exit::UNAVAILABLE, format!("cannot listen to signals: {error}"));
    // Before the first lock is taken.
    let mut signals = Signals::listen().map_err(cannot_listen)?;
    let unique = RandomState::new().hash_one(process::id());
    let name = |task| format!("{}:{unique:016x}:{task}", args.name);
    // A name that is not valid fails here.
    let names = (0..args.tasks).map(|task| LockName::new(name(task)));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let connecting = common.store()?;
    let (builder, traces) = tokio::select! {
        connected = connecting.connect_for_a_while() => connected?,
        signal = signals.next_end() => return Ok(Exit::of_signal(signal.as_raw())),
    };
    let locks = builder.lease(LEASE).build()?;
    let (run, signal) = Run::new(args.seconds).measure(&locks, &names, &mut signals).await;
    if let (Err(failure), Some(signal)) = (&run, signal)
        && failure.exit == Exit::of_signal(signal)
    {
        // The second signal waits for nothing.
        return run.map(|_| Exit::SUCCESS);
    }
    let cleaning = clean(&locks, &traces, &names);
    let signal = end_in_time(cleaning, signal, &mut signals).await;
    let (taken, signal) = (run?, signal?);
    let report = Report::of(&taken, args.tasks);
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(report.text())?,
    }
    Ok(signal.map_or(Exit::SUCCESS, Exit::of_signal))
}

/// Waits for `cleaning`, but no longer than [`LONGEST_END`], and not beyond the second signal.
/// Returns the signal that ended the run, or that came since.
async fn end_in_time(
    cleaning: impl Future<Output = Result<(), Failure>>,
    mut signal: Option<i32>,
    signals: &mut Signals,
) -> Result<Option<i32>, Failure> {
    let cleaning = timeout(LONGEST_END, cleaning);
    tokio::pin!(cleaning);
    loop {
        tokio::select! {
            cleaned = &mut cleaning => {
                let silent = |_| {
                    let message =
                        "the store did not answer at the end; the locks are free after 10 s";
                    Err(Failure::new(Exit::UNAVAILABLE, message))
                };
                return cleaned.unwrap_or_else(silent).map(|()| signal);
            }
            number = signals.next_end() => {
                if signal.replace(number.as_raw()).is_some() {
                    return Err(not_all_released(number.as_raw()));
                }
            }
        }
    }
}

fn not_all_released(signal: i32) -> Failure {
    Failure::new(Exit::of_signal(signal), "ended before all locks were released")
}

/// Removes everything from the store.
async fn clean(locks: &Locks, traces: &Traces, names: &[LockName]) -> Result<(), Failure> {
    locks.close().await?;
    let mut removing = JoinSet::new();
    for name in names {
        let (traces, name) = (traces.clone(), name.clone());
        removing.spawn(async move { traces.remove(&name).await });
    }
    while let Some(removed) = removing.join_next().await {
        removed.map_err(task_failed)??;
    }
    Ok(())
}

fn task_failed(error: JoinError) -> Failure {
    Failure::new(Exit::UNAVAILABLE, format!("a task failed: {error}"))
}

/// The times of many pairs, in nanoseconds.
#[derive(Clone, Debug)]
struct Times {
    acquire: Histogram<u64>,
    release: Histogram<u64>,
    took: Duration,
}

impl Times {
    fn new() -> Result<Self, Failure> {
        let empty = || {
            Histogram::new_with_bounds(1, LONGEST_TIME, 3).map_err(|error| {
                Failure::new(Exit::UNAVAILABLE, format!("cannot make a histogram: {error}"))
            })
        };
        Ok(Self { acquire: empty()?, release: empty()?, took: Duration::ZERO })
    }

    fn add(&mut self, acquired: Duration, released: Duration) {
        self.acquire.saturating_record(nanos(acquired).max(1));
        self.release.saturating_record(nanos(released).max(1));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(LONGEST_TIME)
}

/// A measurement under way.
#[derive(Debug)]
struct Run {
    ends_at: Instant,
    began: Instant,
    is_over: Arc<AtomicBool>,
}

impl Run {
    fn new(time: Duration) -> Self {
        let began = Instant::now();
        Self { ends_at: began + time, began, is_over: Arc::default() }
    }

    /// Runs a task for each name. Returns the signal that has ended it early, if one has.
    async fn measure(
        self,
        locks: &Locks,
        names: &[LockName],
        signals: &mut Signals,
    ) -> (Result<Times, Failure>, Option<i32>) {
        // Shared by all tasks: a thousand of these would take hundreds of megabytes.
        let times = match Times::new() {
            Ok(times) => Arc::new(Mutex::new(times)),
            Err(failure) => return (Err(failure), None),
        };
        let mut tasks = JoinSet::new();
        for name in names {
            let (lock, is_over) = (locks.lock(name.as_str()), self.is_over.clone());
            tasks.spawn(repeat(lock, self.ends_at, is_over, times.clone()));
        }
        let (mut signal, mut limit) = (None, tokio::time::Instant::now());
        let gathered = {
            let gathering = self.gather(&mut tasks, times);
            tokio::pin!(gathering);
            loop {
                tokio::select! {
                    gathered = &mut gathering => break gathered,
                    number = signals.next_end() => {
                        // After the second signal, requests are no longer waited for.
                        if signal.replace(number.as_raw()).is_some() {
                            break Err(not_all_released(number.as_raw()));
                        }
                        self.is_over.store(true, Ordering::Relaxed);
                        limit = tokio::time::Instant::now() + LONGEST_END;
                    }
                    () = tokio::time::sleep_until(limit), if signal.is_some() => {
                        let message = "the store does not answer, so the run was broken off";
                        break Err(Failure::new(Exit::UNAVAILABLE, message));
                    }
                }
            }
        };
        // The remaining tasks drop their guards, which releases their locks.
        tasks.shutdown().await;
        (gathered, signal)
    }

    /// Waits for the tasks, and returns their measurements.
    async fn gather(
        &self,
        tasks: &mut JoinSet<Result<(), Failure>>,
        times: Arc<Mutex<Times>>,
    ) -> Result<Times, Failure> {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(task_failed)??;
        }
        let mut all = times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.took = self.began.elapsed();
        Ok(all)
    }
}

/// Acquires and releases a lock until it is time to end.
async fn repeat(
    lock: Lock,
    ends_at: Instant,
    is_over: Arc<AtomicBool>,
    times: Arc<Mutex<Times>>,
) -> Result<(), Failure> {
    while Instant::now() < ends_at && !is_over.load(Ordering::Relaxed) {
        let (acquired, released) = pair(&lock).await?;
        // All tasks are on one thread, so that this waits for nobody.
        times.lock().unwrap_or_else(PoisonError::into_inner).add(acquired, released);
    }
    Ok(())
}

async fn pair(lock: &Lock) -> Result<(Duration, Duration), LockError> {
    let asked = Instant::now();
    let guard = lock.acquire().await?;
    let acquired = asked.elapsed();
    let asked = Instant::now();
    guard.release().await?;
    Ok((acquired, asked.elapsed()))
}

#[derive(Debug, Serialize)]
struct Report {
    tasks: u32,
    seconds: f64,
    pairs: u64,
    pairs_per_second: f64,
    acquire_ms: Latencies,
    release_ms: Latencies,
    /// Without the buckets before the first and behind the last that has anything in it.
    histogram: Vec<Bucket>,
}

#[derive(Debug, Serialize)]
struct Latencies {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    mean: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Bucket {
    from_ms: f64,
    below_ms: f64,
    acquire: u64,
    release: u64,
}

fn ms(nanos: u64) -> f64 {
    // Whole microseconds.
    (nanos as f64 / 1e3).round() / 1e3
}

impl Latencies {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| ms(times.value_at_quantile(quantile));
        let mean = (times.mean() / 1e3).round() / 1e3;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: ms(times.max()), mean }
    }
}

impl Report {
    fn of(times: &Times, tasks: u32) -> Self {
        let (seconds, pairs) = (times.took.as_secs_f64(), times.acquire.len());
        Self {
            tasks,
            seconds,
            pairs,
            pairs_per_second: if seconds > 0.0 { pairs as f64 / seconds } else { 0.0 },
            acquire_ms: Latencies::of(&times.acquire),
            release_ms: Latencies::of(&times.release),
            histogram: buckets(times),
        }
    }

    fn text(&self) -> String {
        let Self { tasks, seconds, pairs, pairs_per_second, .. } = self;
        let plural = if *tasks == 1 { "" } else { "s" };
        let mut text = format!(
            "{pairs} pairs in {seconds:.1} s, {pairs_per_second:.0} a second; {tasks} \
             task{plural}\n\n"
        );
        let mut table = Table::default();
        table.row(["MS", "P50", "P90", "P99", "MAX", "MEAN"]);
        for (title, times) in [("acquire", &self.acquire_ms), ("release", &self.release_ms)] {
            let Latencies { p50, p90, p99, max, mean } = times;
            let cells = [p50, p90, p99, max, mean].map(|time| format!("{time:.3}"));
            table.row([title.to_owned()].into_iter().chain(cells));
        }
        let _ = write!(text, "{table}\nhow often an acquisition took so many ms\n");
        let most = self.histogram.iter().map(|bucket| bucket.acquire).max().unwrap_or(0).max(1);
        for Bucket { from_ms, below_ms, acquire, .. } in &self.histogram {
            let length = usize::try_from((acquire * WIDTH).div_ceil(most)).unwrap_or(0);
            let bar = "#".repeat(length);
            let line = format!("{from_ms:>10.3} - {below_ms:<10.3} {acquire:>9} {bar}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

/// The width of the longest bar.
const WIDTH: u64 = 40;

/// Counts in buckets, each twice as wide as the one before it.
fn buckets(times: &Times) -> Vec<Bucket> {
    let all = [&times.acquire, &times.release];
    let least = all.iter().map(|times| times.min()).min().unwrap_or(0);
    let most = all.iter().map(|times| times.max()).max().unwrap_or(0);
    let mut buckets = Vec::new();
    let mut from = 1_000;
    while from <= most {
        let below = from * 2;
        if below > least {
            let count = |times: &Histogram<u64>| times.count_between(from, below - 1);
            let [acquire, release] = all.map(count);
            buckets.push(Bucket { from_ms: ms(from), below_ms: ms(below), acquire, release });
        }
        from = below;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_times_are_in_the_report() {
        let mut times = Times::new().unwrap();
        times.took = Duration::from_secs(2);
        for micros in [100, 110, 120, 300, 5000] {
            times.acquire.record(micros * 1000).unwrap();
            times.release.record(micros * 500).unwrap();
        }
        let report = Report::of(&times, 3);
        assert_eq!((report.pairs, report.pairs_per_second), (5, 2.5));
        assert!((report.acquire_ms.p50 - 0.12).abs() < 0.001, "{report:?}");
        assert!((report.acquire_ms.max - 5.0).abs() < 0.01, "{report:?}");
        let text = report.text();
        assert!(text.starts_with("5 pairs in 2.0 s, 2 a second; 3 tasks\n"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains('#')).count(), 3, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn a_run_without_pairs_has_a_report() {
        let report = Report::of(&Times::new().unwrap(), 1);
        assert_eq!((report.pairs, report.histogram), (0, vec![]));
    }
}
