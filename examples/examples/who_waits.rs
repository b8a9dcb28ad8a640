//! Three transfers that each hold an account and want the next one's: a deadlock, and the report that says who waits for whom.
//!
//! ```text
//! cargo run --example who_waits
//! cargo run --example who_waits -- --redis redis://127.0.0.1:6379
//! ```
//!
//! On Redis, each transfer is a process of its own.

use std::{
    env,
    future::Future,
    io::{BufRead, BufReader, Write, stdin},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use lockcore::{CycleKind, Locks, Owner, WaitCycle};
use lockcore_examples::{Failure, Story, claim, run_with};
use lockcore_memory::MemoryBackend;
use lockcore_redis::RedisBackend;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// When the example gives up. A deadlock is known within 5 s, on a machine that is not busy.
const LONGEST: Duration = Duration::from_secs(30);

/// How long the holds of the transfers outlive them.
const LEASE: Duration = Duration::from_secs(2);

/// What a process is to hold and to want, and the URL of the store, which may contain a password and so is no argument.
const TRANSFER: &str = "WHO_WAITS_TRANSFER";
const URL: &str = "WHO_WAITS_URL";

#[tokio::main]
async fn main() -> ExitCode {
    if let (Ok(transfer), Ok(url)) = (env::var(TRANSFER), env::var(URL)) {
        return match process(&transfer, &url).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    run_with("who_waits", "--redis", "redis://127.0.0.1:6379", async |url| {
        let pairs = [(1, 2), (2, 3), (3, 1)].map(|(from, to)| (account(from), account(to)));
        match url {
            Some(url) => {
                let observer = Locks::new(RedisBackend::connect(url).await?);
                who_waits(&observer, Processes::start(url, &pairs)?).await
            }
            None => {
                let store = MemoryBackend::new();
                who_waits(&Locks::new(store.clone()), Tasks::start(&store, &pairs).await).await
            }
        }
    })
    .await
}

/// A name that no other run on the same store has.
fn account(number: u32) -> String {
    format!("example-{}:account:{number}", std::process::id())
}

async fn who_waits(observer: &Locks, transfers: impl Transfers) -> Result<(), Failure> {
    let story = Story::begin("Three transfers between three accounts, none of which can go on");

    story.chapter("1. Each holds its account, and nobody waits");
    claim(deadlock(observer).await?.is_none(), "there is no deadlock yet")?;
    story.tell("observer", "sees no cycle");

    story.chapter("2. Each asks for the account of the next one");
    let began = Instant::now();
    let mut transfers = transfers;
    transfers.go_on()?;
    let cycle = loop {
        if let Some(cycle) = deadlock(observer).await? {
            break cycle;
        }
        claim(began.elapsed() < LONGEST, "a deadlock is reported")?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let took = began.elapsed().as_secs_f64();
    story.tell("observer", format_args!("sees {} after {took:.1} s", cycle.kind()));
    for link in cycle.links() {
        let waiting = link.waiting();
        story.add(format_args!("{}:", waiting.client()));
        story.add(format_args!("waits for {} at {}", waiting.lock(), waiting.site()));
        if let Some(held) = link.blocked_by() {
            story.add(format_args!("which was acquired at {}", held.site()));
        }
    }
    claim(cycle.links().len() == 3, "all three are in the cycle")?;
    story.line(
        "\nIn short: acquire several locks in the same order everywhere, or with `multi_lock`.",
    );
    Ok(())
}

/// The deadlock of this run, if there is one.
async fn deadlock(observer: &Locks) -> Result<Option<WaitCycle>, Failure> {
    let waits = observer.waits().await?;
    let is_of_this_run = |cycle: &&WaitCycle| {
        let locks = cycle.links().iter().map(|link| link.waiting().lock());
        let prefix = format!("example-{}:", std::process::id());
        cycle.kind() == CycleKind::Deadlock && locks.clone().all(|lock| lock.starts_with(&prefix))
    };
    Ok(waits.cycles().iter().find(is_of_this_run).cloned())
}

/// Holds one account, and asks for another one when it is told to.
async fn transfer(
    locks: Locks,
    (from, to): (String, String),
    is_ready: impl FnOnce(),
    go: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let both = async {
        let _from = locks.lock(from).acquire().await?;
        is_ready();
        go.await;
        let _to = locks.lock(to).acquire().await?;
        Ok(())
    };
    Owner::new().scope(both).await
}

/// Transfers that hold one account each.
trait Transfers {
    /// Has all of them ask for the other account. They end when this value is dropped.
    fn go_on(&mut self) -> Result<(), Failure>;
}

/// Transfers in this process, each with a client of its own.
struct Tasks {
    go: watch::Sender<bool>,
    _tasks: JoinSet<Result<(), Failure>>,
}

impl Tasks {
    async fn start(store: &MemoryBackend, pairs: &[(String, String)]) -> Self {
        let (go, mut tasks) = (watch::Sender::new(false), JoinSet::new());
        let (ready, mut is_ready) = mpsc::channel(pairs.len());
        for pair in pairs.iter().cloned() {
            let (ready, mut told) = (ready.clone(), go.subscribe());
            let go = async move { _ = told.wait_for(|go| *go).await };
            let is_ready = move || _ = ready.try_send(());
            tasks.spawn(transfer(Locks::new(store.clone()), pair, is_ready, go));
        }
        for _ in pairs {
            is_ready.recv().await;
        }
        Self { go, _tasks: tasks }
    }
}

impl Transfers for Tasks {
    fn go_on(&mut self) -> Result<(), Failure> {
        self.go.send_replace(true);
        Ok(())
    }
}

/// Transfers in processes of their own, which are killed in the end.
struct Processes(Vec<Child>);

impl Processes {
    fn start(url: &str, pairs: &[(String, String)]) -> Result<Self, Failure> {
        let mut processes = Self(Vec::new());
        for (from, to) in pairs {
            let mut process = Command::new(env::current_exe()?);
            let process = process.env(TRANSFER, format!("{from} {to}")).env(URL, url);
            processes.0.push(process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        }
        for process in &mut processes.0 {
            let said = process.stdout.as_mut().ok_or("a process without a pipe")?;
            let is_ready = BufReader::new(said).read_line(&mut String::new())? > 0;
            claim(is_ready, "each process holds its account")?;
        }
        Ok(processes)
    }
}

impl Transfers for Processes {
    fn go_on(&mut self) -> Result<(), Failure> {
        for process in &mut self.0 {
            process.stdin.as_mut().ok_or("a process without a pipe")?.write_all(b"go\n")?;
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What one of the processes does. It ends with the one that has started it.
async fn process(pair: &str, url: &str) -> Result<(), Failure> {
    let (from, to) = pair.split_once(' ').ok_or("two accounts are needed")?;
    let locks = Locks::builder(RedisBackend::connect(url).await?).lease(LEASE).build()?;
    let (told, mut hears) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        stdin().lines().map_while(Result::ok).for_each(|_| _ = told.send(()));
        // Whoever has started this process is gone.
        std::process::exit(1)
    });
    let go = async move { _ = hears.recv().await };
    transfer(locks, (from.to_owned(), to.to_owned()), || println!("ready"), go).await
}
