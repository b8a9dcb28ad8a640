//! The table of the results, which the suite writes when every row has been measured.

mod promise;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use lockcore_testkit::RedisServer;

use crate::{
    deployment::Topology,
    section::Section,
    support::{LEASE, java},
};

pub(crate) use self::promise::Promise;

type Rows = BTreeMap<(Topology, Section, Promise), String>;

static MEASURED: Mutex<Rows> = Mutex::new(Rows::new());

/// Records the result of a test on a single server, once it has passed.
pub(crate) async fn record(section: Section, promise: Promise, measured: impl Into<String>) {
    record_on(Topology::Server, section, promise, measured).await;
}

/// Records the result of a test, once it has passed. The last row writes the table, so that a table
/// always comes from one complete run.
pub(crate) async fn record_on(
    topology: Topology,
    section: Section,
    promise: Promise,
    measured: impl Into<String>,
) {
    let measured = measured.into();
    println!("{topology:?}, {section:?}, {promise:?}: {measured}");
    let complete = {
        let mut rows = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert((topology, section, promise), measured);
        all().all(|row| rows.contains_key(&row)).then(|| rows.clone())
    };
    if let Some(rows) = complete {
        let (redisson, java) = java().versions().await.unwrap();
        let path = path();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, page(&rows, &redisson, &java)).unwrap();
    }
}

/// The keys of all rows.
fn all() -> impl Iterator<Item = (Topology, Section, Promise)> {
    let topologies = Topology::ALL.into_iter();
    topologies.flat_map(|topology| {
        Section::ALL.into_iter().flat_map(move |section| {
            let promises = section.promises(topology).into_iter();
            promises.map(move |promise| (topology, section, promise))
        })
    })
}

/// The path of the table: `LOCKCORE_INTEROP_TABLE`, or `docs/INTEROP.md`.
fn path() -> PathBuf {
    match env::var_os("LOCKCORE_INTEROP_TABLE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/INTEROP.md"),
    }
}

fn page(rows: &Rows, redisson: &str, java: &str) -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let mut page = format!(
        "<!-- Written by the suite itself: ./scripts/interop. Do not edit it by hand; its text is in interop/tests/redisson/report/. -->\n\
         # Sharing locks with Redisson: what was tested\n\n\
         Rust with lockcore and Java with the real Redisson contend for the same names: on a single server, on a primary with Sentinels,\n\
         and on a Redis Cluster. `./scripts/interop` runs this suite and writes this page when every test has passed, so that all\n\
         figures below come from one run.\n\n\
         | | version |\n|---|---|\n\
         | lockcore | {} |\n| Redisson | {redisson} |\n| Java | {java} |\n| Redis | {} |\n| machine | {} {}, {cores} cores |\n\n\
         Leases that a watchdog renews are {} ms on both sides, so that their ends can be waited for; every other option of Redisson that\n\
         has to do with locks has its default, unless a row names it. The tables up to the last three are about a single server.\n\
",
        env!("CARGO_PKG_VERSION"),
        redis_version(),
        env::consts::OS,
        env::consts::ARCH,
        LEASE.as_millis(),
    );
    for section in Section::ALL {
        let promises = section.promises(Topology::Server);
        if promises.is_empty() {
            continue;
        }
        write!(page, "\n## {}\n\n| promise | measured |\n|---|---|\n", section.title()).unwrap();
        for promise in promises {
            let measured = &rows[&(Topology::Server, section, promise)];
            writeln!(page, "| {} | {measured} |", promise.text(section)).unwrap();
        }
    }
    for topology in Topology::ALL.into_iter().skip(1) {
        write_deployment(&mut page, topology, rows);
    }
    page.push('\n');
    page.push_str(include_str!("notes.md"));
    page
}

/// The section of a deployment that is not a single server, with all kinds in one table.
fn write_deployment(page: &mut String, topology: Topology, rows: &Rows) {
    write!(page, "\n## {}\n\n| promise | measured |\n|---|---|\n", topology.title()).unwrap();
    for section in Section::ALL {
        let (kind, _) = section.title().split_once(':').unwrap_or((section.title(), ""));
        for promise in section.promises(topology) {
            let measured = &rows[&(topology, section, promise)];
            writeln!(page, "| {kind}: {} | {measured} |", promise.text(section)).unwrap();
        }
    }
}

fn redis_version() -> String {
    RedisServer::start().version().to_string()
}
