//! `lockctl ls`.

use std::{
    cell::Cell,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use crate::{
    cli::Common,
    exit::{Exit, Failure},
    glob::Glob,
    output::{self, Table},
    pace::{DEFAULT_RATE, Pace, RATE_HELP},
    report::Report,
    sweep::Sweep,
};

const AFTER_HELP: &str = "\
COUNT is how often the holders have entered, the permits taken out of all of them, or the count of
a latch. WAITERS counts the places in the queue of a fair lock, a writer that keeps readers out, and
the waiters that clients tell of when they have waited for a few seconds. HOLDER is the host, the
program and the process id if the client has told them, and otherwise the owner as it is stored;
+2 stands for two more.

A name is listed if it is in use: held, waited for, a semaphore whose number of permits was set, or
a latch that is not open. Names that are in use no more when their turn comes are left out. A name
that cannot be read, such as one that the user has no right to, is listed with the error, in `error`
with --json, and said on stderr; the exit code is 0 then, and 69 if the store fails. With --json, the
output is an array of what `lockctl show --json` prints, without what is stored.

Examples:
  lockctl ls
  lockctl ls 'order:*' --limit 20
  lockctl ls --json | jq -r '.[] | select(.queue | length > 10) | .name'";

/// Lists the names that are in use: kind, holder, count, what is left of the lease, waiters.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Lists names that match only: `*` stands for any text, `?` for any character, `\` takes the
    /// next one literally. Quote it, so that the shell leaves it alone.
    pattern: Option<String>,
    /// Lists at most so many names, the first ones in their order.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    limit: Option<usize>,
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RATE, help = RATE_HELP)]
    #[arg(allow_negative_numbers = true)]
    rate: u32,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn ls(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let store = common.store()?.open().await?;
    let pattern = args.pattern.as_deref().map(Glob::new);
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut pace = Pace::new(args.rate);
    let progress = Progress::begin(io::stderr().is_terminal() && !common.verbose);
    let found = |count| progress.show(&format!("{count} names found"));
    let mut sweep = Sweep::begin(&store, pattern.as_ref(), &mut pace, found).await?;
    let mut reports = Vec::new();
    while reports.len() < limit
        && let Some(batch) = sweep.next(&mut pace).await?
    {
        reports.extend(batch.reports);
        let (done, total) = (sweep.done(), sweep.total());
        progress.show(&format!("{done} of {total} names, {} %", done * 100 / total.max(1)));
    }
    reports.truncate(limit);
    drop(progress);
    tell_of_failures(&reports);
    match args.json {
        true => output::print_json(&reports)?,
        false => output::print(table(&reports).to_string())?,
    }
    Ok(Exit::SUCCESS)
}

/// Reports the number of unreadable names, and the error of the first one.
fn tell_of_failures(reports: &[Report]) {
    let mut failed =
        reports.iter().filter_map(|report| Some((&report.name, report.error.as_ref()?)));
    let Some((name, error)) = failed.next() else { return };
    match failed.count() {
        0 => output::tell(format_args!("{name} could not be read: {error}")),
        others => {
            output::tell(format_args!("{} names could not be read; {name}: {error}", others + 1))
        }
    }
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::default();
    table.row(["NAME", "KIND", "HOLDER", "COUNT", "LEASE LEFT", "WAITERS"]);
    for report in reports {
        let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
        let lease = match (report.held, report.lease_left_seconds) {
            (false, _) => None,
            (true, None) => Some("no end".to_owned()),
            (true, Some(seconds)) => Some(format!("{seconds:.1} s")),
        };
        if let Some(error) = &report.error {
            // In the last column, so that it makes no column wider.
            table.row([&report.name, "unreadable", "-", "-", "-", error]);
            continue;
        }
        let waiters = report.waiters;
        table.row([
            report.name.clone(),
            report.kind.unwrap_or("-").to_owned(),
            or_dash(report.holder_in_short()),
            or_dash(report.count()),
            or_dash(lease),
            or_dash((waiters > 0).then(|| waiters.to_string())),
        ]);
    }
    table
}

/// The time after which progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// The progress of the list, shown on a terminal when it takes longer than [`PATIENCE`].
struct Progress {
    is_on_terminal: bool,
    began: Instant,
    is_shown: Cell<bool>,
}

impl Progress {
    fn begin(is_on_terminal: bool) -> Self {
        Self { is_on_terminal, began: Instant::now(), is_shown: Cell::new(false) }
    }

    fn show(&self, text: &str) {
        if self.is_due() {
            self.is_shown.set(true);
            let _ = write!(io::stderr(), "\r{text}\u{1b}[K");
        }
    }

    fn is_due(&self) -> bool {
        self.is_on_terminal && self.began.elapsed() >= PATIENCE
    }
}

impl Drop for Progress {
    /// Erases the line, because it is not part of the output.
    fn drop(&mut self) {
        if self.is_shown.get() {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::{BackendError, BackendErrorKind, Holder, LockState, Mode};

    use super::*;

    #[test]
    fn progress_is_shown_on_a_terminal_and_when_it_takes_long() {
        let is_due = |is_on_terminal, began| {
            let is_shown = Cell::new(false);
            Progress { is_on_terminal, began, is_shown }.is_due()
        };
        let (now, before) = (Instant::now(), Instant::now().checked_sub(PATIENCE).unwrap());
        assert!(is_due(true, before) && !is_due(true, now) && !is_due(false, before));
    }

    #[test]
    fn each_column_says_what_the_store_tells() {
        let readers = vec![Holder::new("a:1", Mode::Read, 1), Holder::new("b:1", Mode::Read, 2)];
        let reports = [
            Report::new("free", &LockState::free().with_waiters(vec!["w:1".into()]), None),
            Report::new("latch", &LockState::free(), Some(7)),
            Report::new("read", &LockState::held(readers, Some(Duration::from_secs(9))), None),
            Report::new("seats", &LockState::free().with_permits(3, Some(3)), None),
            Report::new("plain", &LockState::free().with_permits(3, None), None),
            Report::new(
                "x\u{1b}[2J",
                &LockState::held(vec![Holder::new("c:1", Mode::Exclusive, 4)], None),
                None,
            ),
            Report::unreadable("y", &BackendError::new(BackendErrorKind::Other, "no\u{7} right")),
        ];
        assert_eq!(
            table(&reports).to_string(),
            "\
NAME        KIND                     HOLDER  COUNT  LEASE LEFT  WAITERS
free        fair or read-write lock  -       -      -           1
latch       latch                    -       7      -           -
read        read-write lock          a:1 +1  3      9.0 s       -
seats       semaphore                -       0/3    -           -
plain       semaphore                -       0/?    -           -
x\\u{1b}[2J  lock                     c:1     4      no end      -
y           unreadable               -       -      -           no\\u{7} right; see the source of this error
"
        );
    }
}
