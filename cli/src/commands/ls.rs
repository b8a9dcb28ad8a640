//! `lockctl ls`.

use std::io::{self, IsTerminal, Write};

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
a latch that is not open. Names that are in use no more when their turn comes are left out. With
--json, the output is an array of what `lockctl show --json` prints.

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
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RATE, help = RATE_HELP)]
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
    let mut sweep = Sweep::begin(&store, pattern.as_ref(), &mut pace).await?;
    let mut reports = Vec::new();
    let progress = Progress::of_stderr();
    while reports.len() < limit
        && let Some(batch) = sweep.next(&mut pace).await?
    {
        reports.extend(batch.reports);
        progress.show(sweep.done(), sweep.total());
    }
    reports.truncate(limit);
    drop(progress);
    match args.json {
        true => output::print_json(&reports)?,
        false => output::print(table(&reports).to_string())?,
    }
    Ok(Exit::SUCCESS)
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

/// How far the sweep is, on a terminal, for as long as it takes.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn of_stderr() -> Self {
        Self { is_shown: io::stderr().is_terminal() }
    }

    fn show(&self, done: usize, total: usize) {
        if self.is_shown {
            let percent = done * 100 / total.max(1);
            let _ = write!(io::stderr(), "\r{done} of {total} names, {percent} %");
        }
    }
}

impl Drop for Progress {
    /// The line is erased: it is no part of the output.
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockcore::{Holder, LockState, Mode};

    use super::*;

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
"
        );
    }
}
