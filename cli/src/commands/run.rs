//! `lockctl run`.

mod danger;
mod nested;
mod program;
mod supervise;

use std::{
    ffi::OsString,
    fmt,
    future::Future,
    io,
    process::Command,
    time::{Duration, Instant},
};

use clap::{ArgAction, ValueEnum, builder::RangedI64ValueParser};
use lockcore::{Lock, LockError, LockGuard, LockName, Locks};
use tokio::time::timeout;

use self::{
    danger::Danger,
    nested::Held,
    program::{as_script, cannot_start, is_of_unknown_format, not_started},
    supervise::Supervisor,
};
use crate::{
    cli::Common,
    duration,
    exit::{Exit, Failure},
    output,
    process::Signals,
};

/// How long connecting may take at least, whatever `-w` says.
const SHORTEST_CONNECT: Duration = Duration::from_secs(1);

/// How long closing the client may take. If the store does not answer by then, its place in a queue
/// and its record, which may still list it as a waiter, lapse by themselves.
const CLOSING: Duration = Duration::from_millis(500);

/// How long a release may take after the command was ended because of a loss.
const LAST_RELEASE: Duration = Duration::from_secs(1);

/// The shortest lease: a command has to be ended within a fraction of it.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// The longest lease. The store keeps the time of --at-least as a lease as well.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 86400);

const AFTER_HELP: &str = "\
What follows `--` is run without a shell, in a process group of its own. On a terminal it is the
foreground. Its exit code is that of lockctl. If signal n ended it, lockctl dies of the same signal,
which shells report as 128 + n. The lock is held until the last process of the group has ended, also
if the command itself ends before. On Linux, processes outside it that have no session of their own
count as well.

SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the group. While lockctl
waits for the lock, they end it (128 + n in a shell), and it gives up its place in the queue.

If the lease can no longer be relied on, the group gets SIGTERM, and SIGKILL before the store can
grant the lock to somebody else. On Linux, so do processes that have left the group. If the lock was
taken away, somebody else may have it at once.

The command's environment has LOCKCTL_NAME, LOCKCTL_TOKEN (the fencing token) and LOCKCTL_OWNER, and
LOCKCTL_URL is what --url says. A `lockctl run` of the same name inside enters at once; lease,
--at-least and --on-lost are then those of the outer one.

Exit codes of its own:
  75   the lock could not be acquired (-E sets another code); the message appears only with
       --verbose, as with flock
  76   the lock was lost, and the command was ended
  126  the command cannot be executed
  127  the command was not found; nobody waits for the lock then

If lockctl is killed, the group gets SIGTERM, and SIGKILL before the lease ends. On Linux the group
is stopped while lockctl is stopped. Both are done by a second process, lockctl-guard.

Examples:
  lockctl run nightly -- /usr/local/bin/backup --full
  lockctl run -n --at-least 30s nightly -- backup    # cron on several hosts: one of them runs it
  lockctl run -w 2.5 -E 0 report -- make report      # wait 2.5 s; not to have it is no failure
  lockctl run -s prices -- cat prices.csv            # together with other readers
  lockctl run --of 3 crawler -- crawl                # at most three at a time
  lockctl run --lease 10s --kill-after 2s import -- import";

/// Runs a command while it holds a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The name of the lock.
    name: String,
    /// Does not wait for the lock.
    #[arg(short = 'n', long, visible_alias = "nb", conflicts_with = "wait")]
    nonblock: bool,
    /// Waits for the lock for at most SECS seconds. Fractions are allowed.
    #[arg(short, long, visible_alias = "timeout", value_name = "SECS")]
    #[arg(value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Takes the read side of a read-write lock, which others may have at the same time.
    #[arg(short, long, group = "kind")]
    shared: bool,
    /// Takes the write side of a read-write lock, which excludes -s. Without -s and -x, the lock is
    /// a plain exclusive one, as services and Redisson have; a name has one kind at a time.
    #[arg(short = 'x', long, visible_short_alias = 'e', group = "kind")]
    exclusive: bool,
    /// Takes an exclusive lock in the order of arrival, across hosts.
    #[arg(long, group = "kind")]
    fair: bool,
    /// Takes N permits of a semaphore. Default with --of: 1.
    #[arg(long, value_name = "N", requires = "of", value_parser = at_least_one())]
    permits: Option<u32>,
    /// The number of permits of the semaphore, unless another number was set for it.
    #[arg(long, value_name = "M", group = "kind", value_parser = at_least_one())]
    of: Option<u32>,
    /// The exit code if the lock could not be acquired.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::NOT_HAD.code)]
    conflict_exit_code: u8,
    /// How long the store keeps the lock if this host dies: at least 1 s. It is renewed every third
    /// of it. The command is ended if the store is away for longer than about a quarter of it, or
    /// about half of it with a short --kill-after.
    #[arg(long, value_name = "D", default_value = "30s", value_parser = lease)]
    lease: Duration,
    /// Keeps the lock until D after it was taken, also if the command ends earlier, or lockctl is
    /// killed. For jobs of hosts whose clocks differ.
    #[arg(long, value_name = "D", value_parser = at_least)]
    at_least: Option<Duration>,
    /// Sends SIGKILL D after a signal that should have ended the command. On a loss, the default is
    /// a third of the lease, which D cannot exceed, and it is at most 10 s if somebody else may
    /// have the lock already.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// What happens if the lock is lost.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Kill)]
    on_lost: OnLost,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD", action = ArgAction::Append)]
    command: Vec<OsString>,
}

/// What happens if the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// Ends the command.
    Kill,
    /// Says so on stderr and lets the command run on.
    Warn,
}

fn at_least_one() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        lease if lease < SHORTEST_LEASE => Err("a lease is at least 1 s".into()),
        lease if lease > LONGEST_LEASE => Err("a lease is at most 365d".into()),
        lease => Ok(lease),
    }
}

fn at_least(text: &str) -> Result<Duration, String> {
    match duration::parse_positive(text)? {
        time if time > LONGEST_LEASE => Err("give at most 365d".into()),
        time => Ok(time),
    }
}

pub(crate) async fn run(args: Args, common: &Common) -> Result<Exit, Failure> {
    args.check()?;
    let url = common.store()?;
    let no_signals = |error: io::Error| {
        Failure::new(Exit::UNAVAILABLE, format!("cannot listen to signals: {error}"))
    };
    // A nested run becomes the command, which would not get what this process has heard.
    let outer = Held::covering(&args.name, args.kind())?;
    let mut signals = match &outer {
        None => Some(Signals::listen().map_err(no_signals)?),
        Some(_) => None,
    };
    let began = Instant::now();
    let connecting = async {
        // One task asks for one lock, so that there is nobody to hand it over to.
        let builder = url.connect().await?.lease(args.lease).hand_over(Duration::ZERO);
        // A waiting command tolerates an outage that a running one would survive.
        Ok::<Locks, Failure>(builder.retry_for(args.lease).build()?)
    };
    let connecting = within(args.wait, connecting);
    let locks = match &mut signals {
        None => connecting.await?,
        Some(signals) => match or_signal(signals, connecting).await {
            Ok(locks) => locks?,
            Err(exit) => return Ok(exit),
        },
    };
    let (lock, url) = (args.lock(&locks), common.url.clone());
    let run = Run { began, lock, args, locks, url, is_verbose: common.verbose };
    if let Some(outer) = outer
        && outer.is_there(&run.lock).await?
    {
        return run.within(&outer);
    }
    let signals = match signals {
        Some(signals) => signals,
        None => Signals::listen().map_err(no_signals)?,
    };
    run.alone(signals).await
}

/// The result of `work`, or the end by a signal that comes first.
async fn or_signal<T>(signals: &mut Signals, work: impl Future<Output = T>) -> Result<T, Exit> {
    tokio::select! {
        biased;
        signal = signals.next_end() => Err(Exit::by_signal(signal.as_raw())),
        output = work => Ok(output),
    }
}

/// The result of connecting, if it comes in the time of `-w`.
async fn within(
    patience: Option<Duration>,
    connecting: impl Future<Output = Result<Locks, Failure>>,
) -> Result<Locks, Failure> {
    // Even without patience, a store that answers at once may have the lock free.
    let Some(patience) = patience.map(|patience| patience.max(SHORTEST_CONNECT)) else {
        return connecting.await;
    };
    timeout(patience, connecting).await.unwrap_or_else(|_| {
        let message = format!("the store did not answer within {patience:?}");
        Err(Failure::new(Exit::UNAVAILABLE, message))
    })
}

/// One `lockctl run` with a client.
struct Run {
    began: Instant,
    args: Args,
    locks: Locks,
    lock: Lock,
    /// The URL of the option.
    url: Option<String>,
    is_verbose: bool,
}

impl Run {
    /// Acquires the lock, runs the command, releases the lock.
    async fn alone(self, mut signals: Signals) -> Result<Exit, Failure> {
        let acquired = or_signal(&mut signals, self.acquire()).await;
        let guard = match acquired {
            Ok(Ok(Some(guard))) => guard,
            Ok(Ok(None)) => {
                self.say(format_args!("{} is not free", self.args.name));
                let exit = Exit::code(self.args.conflict_exit_code);
                return Ok(self.close(&mut signals, exit).await);
            }
            Ok(Err(error)) => {
                let failure = explained(error);
                self.close(&mut signals, failure.exit).await;
                return Err(failure);
            }
            // The place in the queue is given up.
            Err(exit) => return Ok(self.close(&mut signals, exit).await),
        };
        let taken = Instant::now();
        let (waited, token) = (taken.duration_since(self.began), guard.token());
        self.say(format_args!("holds {} after {waited:.3?}, token {token}", self.args.name));
        self.hold(guard, signals, taken).await
    }

    async fn acquire(&self) -> Result<Option<LockGuard>, LockError> {
        let guard = match (self.args.nonblock, self.args.wait) {
            (true, _) => self.lock.try_acquire().await?,
            (false, Some(patience)) => {
                let patience = patience.saturating_sub(self.began.elapsed());
                match self.lock.acquire_timeout(patience).await {
                    Err(LockError::Timeout { .. }) => None,
                    acquired => Some(acquired?),
                }
            }
            (false, None) => Some(self.lock.acquire().await?),
        };
        if let Some(guard) = &guard {
            self.secure(guard).await?;
        }
        Ok(guard)
    }

    /// Extends the lease to the time that the command may rely on.
    async fn secure(&self, guard: &LockGuard) -> Result<(), LockError> {
        let lease = match self.args.at_least {
            // The store keeps the hold for this long, whatever becomes of this process.
            Some(time) => time.max(self.args.lease),
            // A hold that replaced a place in the queue has only the rest of the place's time.
            None if self.args.kind() == Kind::Fair => self.args.lease,
            None => return Ok(()),
        };
        guard.extend(lease).await
    }

    /// Runs the command while `guard` lives.
    async fn hold(
        self,
        guard: LockGuard,
        mut signals: Signals,
        taken: Instant,
    ) -> Result<Exit, Failure> {
        let (exit, is_asked) = match self.supervise(&guard, &mut signals).await {
            Ok(Ended::OfItself { exit, is_asked }) => (exit, is_asked),
            Ok(Ended::ForLoss { is_anybody_inside }) => {
                // The store may be back.
                if self.args.at_least.is_none() && !is_anybody_inside {
                    let _ = timeout(LAST_RELEASE, self.leave(guard)).await;
                }
                self.locks.abandon();
                return Ok(Exit::LOST);
            }
            Err(failure) => {
                // Another host may have the missing program, so it does not wait for --at-least.
                let _ = timeout(LAST_RELEASE, self.leave(guard)).await;
                return Err(failure);
            }
        };
        let rest = self.args.at_least.unwrap_or_default().saturating_sub(taken.elapsed());
        if !rest.is_zero() {
            self.say(format_args!("keeps {} for another {rest:.1?}", self.args.name));
            // A signal that came while the command ran applies to this wait as well.
            let waited = match is_asked {
                true => Err(exit),
                false => or_signal(&mut signals, tokio::time::sleep(rest)).await,
            };
            if let Err(by) = waited {
                // The command has ended, and the store keeps the hold until its lease ends.
                let left = guard.remaining();
                if !left.is_zero() {
                    output::tell(format_args!(
                        "{} is not released: the store keeps it until its lease ends, in \
                         {left:.1?}",
                        self.args.name
                    ));
                }
                self.locks.abandon();
                return Ok(exit.or_interrupted(by));
            }
        }
        match or_signal(&mut signals, guard.release_now()).await {
            Ok(released) => {
                let ended_now = rest.is_zero();
                let exit = released
                    .map_or_else(|error| self.not_released(&error, exit, ended_now), |()| exit);
                Ok(self.close(&mut signals, exit).await)
            }
            Err(by) => {
                let exit = exit.or_interrupted(by);
                // The release goes on in the background, and without this would end with it.
                let closed = self.closed(&mut signals).await;
                if closed != Ok(true) {
                    self.tell_not_confirmed("a signal has ended the wait for the answer");
                }
                Ok(closed.map_or_else(|by| exit.or_interrupted(by), |_| exit))
            }
        }
    }

    /// Closes the client, which takes its record off the store, and returns `exit`.
    async fn close(&self, signals: &mut Signals, exit: Exit) -> Exit {
        self.closed(signals).await.map_or_else(|by| exit.or_interrupted(by), |_| exit)
    }

    /// Closes the client. Returns `true` if everything is released. A signal ends this.
    async fn closed(&self, signals: &mut Signals) -> Result<bool, Exit> {
        let closed = or_signal(signals, timeout(CLOSING, self.locks.close())).await?;
        Ok(matches!(closed, Ok(Ok(()))))
    }

    /// Releases the lock and closes the client.
    async fn leave(&self, guard: LockGuard) {
        // If it was not released, closing the client tries again.
        let _ = guard.release_now().await;
        let _ = self.locks.close().await;
    }

    /// Runs the command until its group is gone.
    async fn supervise(&self, guard: &LockGuard, signals: &mut Signals) -> Result<Ended, Failure> {
        let held = Held::new(guard, self.args.kind());
        let start = |words: &[OsString]| -> Result<_, Failure> {
            let mut command = self.command(words);
            held.describe(&mut command)?;
            Ok(Supervisor::start(command, guard, &self.args))
        };
        let words = &self.args.command;
        let mut started = start(words)?;
        if started.as_ref().is_err_and(is_of_unknown_format)
            && let Some(script) = as_script(words)
        {
            started = start(&script)?;
        }
        let mut supervisor = started.map_err(|error| not_started(&words[0], &error))?;
        let exit = supervisor.until_gone(signals).await;
        Ok(match supervisor.has_ended_for_loss() {
            true => Ended::ForLoss { is_anybody_inside: supervisor.was_given_up() },
            false => Ended::OfItself { exit, is_asked: supervisor.was_asked_to_end() },
        })
    }

    /// The command has ended, and its lock could not be released. `ended_now` is `false` if some of
    /// the time of --at-least has passed since.
    fn not_released(&self, error: &LockError, exit: Exit, ended_now: bool) -> Exit {
        match error {
            LockError::Lost { .. } => {
                output::tell(Failure::from(error.clone()));
                if self.args.on_lost == OnLost::Kill && ended_now { Exit::LOST } else { exit }
            }
            _ => {
                self.tell_not_confirmed(Failure::from(error.clone()));
                exit
            }
        }
    }

    fn tell_not_confirmed(&self, reason: impl fmt::Display) {
        let Args { name, lease, .. } = &self.args;
        output::tell(format_args!(
            "the release of {name} was not confirmed ({reason}); the store frees it within \
             {lease:?}"
        ));
    }

    /// Becomes the command, because an outer `lockctl run` holds the lock.
    fn within(self, outer: &Held) -> Result<Exit, Failure> {
        use std::os::unix::process::CommandExt;

        self.say(format_args!("{} is held by an outer lockctl run", self.args.name));
        let mut command = self.command(&self.args.command);
        outer.describe(&mut command)?;
        output::flush();
        // In the process group of the outer run, so that a loss ends it as well.
        let error = command.exec();
        Err(not_started(&self.args.command[0], &error))
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if let Some(url) = &self.url {
            // A nested run has to find the same store.
            command.env("LOCKCTL_URL", url);
        }
        command
    }

    fn say(&self, message: fmt::Arguments<'_>) {
        if self.is_verbose {
            output::tell(message);
        }
    }
}

/// How a command has ended.
enum Ended {
    OfItself {
        exit: Exit,
        /// Set if a signal had asked it to end.
        is_asked: bool,
    },
    /// It was ended because its lock was lost.
    ForLoss {
        /// Set if there may be processes left that could not be killed.
        is_anybody_inside: bool,
    },
}

/// The kind of lock that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Fair,
    Read,
    Write,
    Permits,
}

impl Args {
    /// Refuses options that can never work, before anybody waits.
    fn check(&self) -> Result<(), Failure> {
        LockName::new(self.name.as_str())?;
        let lease = Danger::shortest_lease(self.kill_after.unwrap_or_default());
        if self.on_lost == OnLost::Kill && self.lease < lease {
            return Err(Failure::usage(format!(
                "with --kill-after {:?}, --lease has to be at least {lease:?}, so that the \
                 command can be ended before a lease that is not renewed",
                self.kill_after.unwrap_or_default()
            )));
        }
        match cannot_start(&self.command[0]) {
            Some(error) => Err(not_started(&self.command[0], &error)),
            None => Ok(()),
        }
    }

    fn kind(&self) -> Kind {
        match (self.shared, self.exclusive, self.fair, self.of) {
            (true, ..) => Kind::Read,
            (_, true, ..) => Kind::Write,
            (_, _, true, _) => Kind::Fair,
            (.., Some(_)) => Kind::Permits,
            _ => Kind::Plain,
        }
    }

    fn lock(&self, locks: &Locks) -> Lock {
        let name = self.name.as_str();
        match self.kind() {
            Kind::Plain => locks.lock(name),
            Kind::Fair => locks.fair_lock(name),
            Kind::Read => locks.rw_lock(name).read(),
            Kind::Write => locks.rw_lock(name).write(),
            Kind::Permits => {
                let permits = self.permits.unwrap_or(1);
                locks.semaphore(name, self.of.unwrap_or(1)).permits(permits)
            }
        }
    }
}

/// The error of an acquisition, in terms of the command line.
fn explained(error: LockError) -> Failure {
    let LockError::Backend(cause) = &error else { return error.into() };
    if cause.kind() != lockcore::BackendErrorKind::WrongType {
        return error.into();
    }
    Failure::usage(format!(
        "{}; -s and -x take a read-write lock, --of a semaphore, and without them it is a plain \
         lock: `lockctl show` tells which it is",
        Failure::from(error)
    ))
}
