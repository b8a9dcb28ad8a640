//! The table of the results, which the suite writes when every row of it has been measured.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::support::{LEASE, java};

/// What the table says, in this order. A suite for another synchronizer has its rows here as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Exclusion,
    Detection,
    RustWakesJava,
    JavaWakesRust,
    JavaNests,
    RustNests,
    RustSeesJava,
    JavaSeesRust,
    JavaAwaitsWatchdogOfRust,
    RustAwaitsWatchdogOfJava,
    RustCrashes,
    JavaCrashes,
    JavaCannotReleaseOurs,
    RustCannotReleaseTheirs,
    JavaForces,
    RustForces,
    FairExclusion,
    FairOrder,
    FairRustWakesJava,
    FairJavaWakesRust,
    FairJavaNests,
    FairRustNests,
    FairRustCrashes,
    FairJavaCrashes,
    FairRustWaiterCrashes,
    FairJavaWaiterCrashes,
}

impl Row {
    const REENTRANT: [Self; 16] = [
        Self::Exclusion,
        Self::Detection,
        Self::RustWakesJava,
        Self::JavaWakesRust,
        Self::JavaNests,
        Self::RustNests,
        Self::RustSeesJava,
        Self::JavaSeesRust,
        Self::JavaAwaitsWatchdogOfRust,
        Self::RustAwaitsWatchdogOfJava,
        Self::RustCrashes,
        Self::JavaCrashes,
        Self::JavaCannotReleaseOurs,
        Self::RustCannotReleaseTheirs,
        Self::JavaForces,
        Self::RustForces,
    ];

    const FAIR: [Self; 10] = [
        Self::FairExclusion,
        Self::FairOrder,
        Self::FairRustWakesJava,
        Self::FairJavaWakesRust,
        Self::FairJavaNests,
        Self::FairRustNests,
        Self::FairRustCrashes,
        Self::FairJavaCrashes,
        Self::FairRustWaiterCrashes,
        Self::FairJavaWaiterCrashes,
    ];

    /// What is promised.
    fn promise(self) -> &'static str {
        match self {
            Self::Exclusion => {
                "Two Rust and two Java clients, two tasks or threads each, contend for one name: nobody else is inside, no update is lost"
            }
            Self::Detection => {
                "The same with different locks for Rust and Java, to see that the test would notice it"
            }
            Self::RustWakesJava => "A release in Rust wakes Java within 50 ms at the median",
            Self::JavaWakesRust => "A release in Java wakes Rust within 50 ms at the median",
            Self::JavaNests => {
                "Nested holds of Java count for both sides, and the lock is free after the last"
            }
            Self::RustNests => "Nested holds of Rust keep Java out until the last is released",
            Self::RustSeesJava => "`state()` shows Java's hold: owner, count, remaining lease",
            Self::JavaSeesRust => {
                "`isLocked` and `remainTimeToLive` show our hold, `getHoldCount` does not claim it"
            }
            Self::JavaAwaitsWatchdogOfRust => {
                "Our watchdog renews a hold past its first lease: Java stays outside"
            }
            Self::RustAwaitsWatchdogOfJava => {
                "Java's watchdog renews a hold past its first lease: Rust stays outside"
            }
            Self::RustCrashes => {
                "The Rust holder is killed: Java enters at the end of the lease, at most 100 ms later"
            }
            Self::JavaCrashes => {
                "The Java holder is halted: Rust enters at the end of the lease, at most 100 ms later"
            }
            Self::JavaCannotReleaseOurs => "Java cannot release our hold",
            Self::RustCannotReleaseTheirs => "We cannot release Java's hold",
            Self::JavaForces => "`forceUnlock` in Java ends our hold, and we hear of it",
            Self::RustForces => "`force_release` in Rust ends Java's hold",
            Self::FairExclusion => {
                "Two Rust and two Java clients, two tasks or threads each, contend for one name: nobody else is inside, no update is lost"
            }
            Self::FairOrder => "Both sides enter in the order in which they asked",
            Self::FairRustWakesJava => "A release in Rust wakes Java within 50 ms at the median",
            Self::FairJavaWakesRust => "A release in Java wakes Rust within 50 ms at the median",
            Self::FairJavaNests => "Nested holds of Java count for both sides while Rust waits in the queue",
            Self::FairRustNests => {
                "Nested holds of Rust pass the queue, and keep Java in it until the last is released"
            }
            Self::FairRustCrashes => {
                "The Rust holder is killed: Java enters at the end of the lease, at most 100 ms later"
            }
            Self::FairJavaCrashes => {
                "The Java holder is halted: Rust enters at the end of the lease, at most 100 ms later"
            }
            Self::FairRustWaiterCrashes => {
                "A Rust waiter is killed at the head of the queue: Java, behind it, enters after the longer of its place and the lease"
            }
            Self::FairJavaWaiterCrashes => {
                "A Java waiter is halted at the head of the queue: Rust, behind it, enters when its place has lapsed"
            }
        }
    }
}

static MEASURED: Mutex<BTreeMap<Row, String>> = Mutex::new(BTreeMap::new());

/// Enters what a test has measured, once it has passed. The last row has the table written, so that a table always comes from
/// one complete run.
pub(crate) async fn record(row: Row, measured: impl Into<String>) {
    let measured = measured.into();
    println!("{row:?}: {measured}");
    let complete = {
        let mut rows = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert(row, measured);
        (rows.len() == Row::REENTRANT.len() + Row::FAIR.len()).then(|| rows.clone())
    };
    if let Some(rows) = complete {
        let (redisson, java) = java().versions().await.unwrap();
        let path = path();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, page(&rows, &redisson, &java)).unwrap();
    }
}

/// Where the table goes: `LOCKCORE_INTEROP_TABLE`, or `docs/INTEROP.md`.
fn path() -> PathBuf {
    match env::var_os("LOCKCORE_INTEROP_TABLE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/INTEROP.md"),
    }
}

fn page(rows: &BTreeMap<Row, String>, redisson: &str, java: &str) -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let mut page = format!(
        "<!-- Written by the suite itself: ./scripts/interop. Do not edit it by hand; its text is in interop/tests/redisson/report.rs. -->\n\
         # Sharing locks with Redisson: what was tested\n\n\
         Rust with lockcore and Java with the real Redisson contend for the same names on one redis-server. `./scripts/interop` runs this\n\
         suite and writes this page when every test has passed, so that all figures below come from one run.\n\n\
         | | version |\n|---|---|\n\
         | lockcore | {} |\n| Redisson | {redisson} |\n| Java | {java} |\n| Redis | {} |\n| machine | {} {}, {cores} cores |\n\n\
         Leases that a watchdog renews are {} ms on both sides, so that their ends can be waited for; every other option of Redisson that\n\
         has to do with locks has its default, unless a row names it.\n\
",
        env!("CARGO_PKG_VERSION"),
        redis_version(),
        env::consts::OS,
        env::consts::ARCH,
        LEASE.as_millis(),
    );
    let sections = [
        ("Reentrant lock: `Locks::lock` and `RLock`", Row::REENTRANT.as_slice()),
        ("Fair lock: `Locks::fair_lock` and `RFairLock`", Row::FAIR.as_slice()),
    ];
    for (title, section) in sections {
        write!(page, "\n## {title}\n\n| promise | measured |\n|---|---|\n").unwrap();
        for row in section {
            writeln!(page, "| {} | {} |", row.promise(), rows[row]).unwrap();
        }
    }
    page.push_str(NOTES);
    page
}

const NOTES: &str = "
## Notes

How it is measured:

- **Exclusion.** Every holder counts itself in and out in one key, and reads and writes back another with plain `GET` and `SET`, as
  work that relies on the lock does. Two inside at a time would be counted, or would lose an update. A *change of side* is a hold
  whose predecessor was the other side's.
- **Wake-ups.** From just before the release is asked for until the waiter's entry is known to the suite, and only when the waiter
  is subscribed. The release itself and the way through the pipe to Java and back are included, so the wake-up is shorter.
- **Crashes.** The Rust holder is a process that gets SIGKILL, the Java holder one that halts its virtual machine. The end of the
  lease is what the server says is left of it after the death; the waiter was waiting before. Java waits once without being measured,
  since it loads its classes then, which takes some 20 ms.
- **Order.** The waiters of a fair lock ask one after the other; each is seen in the queue before the next one asks.
  The holder releases at once: a hold longer than its lease and our `queue_timeout` together is not part of the test, and a Rust
  waiter behind a Java waiter can lose its place in one.
- **Crashed waiters.** From the death until the other side's entry is known. The holder releases right after the death, so that only
  the dead waiter's place keeps the other side. Redisson counts `fairLockWaitTimeout` from when the lease that it found would end, so
  that what is left of that lease comes on top. Behind a dead Rust waiter nobody wakes Java when the place lapses: it sleeps for
  what it saw left of the holder's lease before it asks again.

Two things look different from the other side, by design:

- `getHoldCount` and `isHeldByCurrentThread` of Redisson are about the calling thread only. No Java client can see how often somebody
  else has entered.
- Nested holds of lockcore that needed no round trip are counted where they were made; on the server the hold has a count of 1. The
  last release frees the lock, on both sides.
";

fn redis_version() -> String {
    let output = Command::new("redis-server").arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or("unknown").to_owned()
}
