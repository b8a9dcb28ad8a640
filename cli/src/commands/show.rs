//! `lockctl show`.

use lockcore::LockName;

use crate::{
    cli::Common,
    clients::{Clients, Who},
    exit::{Exit, Failure},
    output::{self, Table},
    pace::Pace,
    report::{PermitsReport, Report},
};

const AFTER_HELP: &str = "\
Host, program and process id are shown of clients that have told them. What a store cannot tell is
left out: the fencing token of a hold, who waits for a condition, and those without a place in a
queue who have waited for a few seconds only. A nested hold without a request of its own is known to
its process only.

Examples:
  lockctl show nightly
  lockctl show nightly --json | jq -r '.holders[].owner'";

/// Shows one name: its kind, holders, queue, permits and what is left of the lease.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The name of the lock.
    name: String,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn show(args: &Args, common: &Common) -> Result<Exit, Failure> {
    let name = LockName::new(args.name.as_str())?;
    let store = common.store()?.open().await?;
    let mut report = Report::of(&*store.backend, &name).await?;
    if report.kind.is_some() {
        report.identify(&Clients::read(&store, &mut Pace::new(0)).await?);
    }
    match args.json {
        true => output::print_json(&report)?,
        false => output::print(text(&report))?,
    }
    Ok(Exit::SUCCESS)
}

fn text(report: &Report) -> String {
    let mut text = facts(report).to_string();
    if !report.holders.is_empty() {
        let mut table = Table::default();
        table.row(["HOLDER", "MODE", "COUNT", "HOST", "PROGRAM", "PID"]);
        for holder in &report.holders {
            let [host, program, pid] = cells(holder.client.as_ref());
            table.row([
                &holder.owner,
                &holder.mode,
                &holder.count.to_string(),
                &host,
                &program,
                &pid,
            ]);
        }
        text += &format!("\n{table}");
    }
    if !report.queue.is_empty() {
        let mut table = Table::default();
        table.row(["PLACE", "WAITER", "HOST", "PROGRAM", "PID"]);
        for (at, waiter) in report.queue.iter().enumerate() {
            let [host, program, pid] = cells(waiter.client.as_ref());
            table.row([&(at + 1).to_string(), &waiter.owner, &host, &program, &pid]);
        }
        text += &format!("\n{table}");
    }
    if !report.waiting.is_empty() {
        let mut table = Table::default();
        table.row(["WAITING FOR", "MODE", "HOST", "PROGRAM", "PID", "AT"]);
        for wait in &report.waiting {
            let [host, program, pid] = cells(Some(&wait.client));
            let seconds = format!("{:.0} s", wait.seconds);
            table.row([&seconds, &wait.mode, &host, &program, &pid, &wait.site]);
        }
        text += &format!("\n{table}");
    }
    text
}

fn facts(report: &Report) -> Table {
    let mut facts = Table::default();
    facts.row(["name", &report.name]);
    facts.row(["kind", report.kind.unwrap_or("none: the name is not in use")]);
    let lease = match (report.held, report.lease_left_seconds) {
        (false, _) => "not held".to_owned(),
        (true, Some(seconds)) => format!("held, {seconds:.1} s left of the lease"),
        (true, None) => "held, without a lease".to_owned(),
    };
    facts.row(["state", &lease]);
    if let Some(PermitsReport { available, total }) = &report.permits {
        let total = total.map_or("an unknown number".to_owned(), |total| total.to_string());
        facts.row(["permits", &format!("{available} of {total} available")]);
    }
    if let Some(count) = report.latch {
        facts.row(["latch", &format!("closed, count {count}")]);
    }
    facts
}

/// Host, program and process id.
fn cells(client: Option<&Who>) -> [String; 3] {
    let or_dash = |text: Option<&String>| text.map_or("-".to_owned(), Clone::clone);
    let pid = client.and_then(|who| who.pid).map(|pid| pid.to_string());
    [
        or_dash(client.and_then(|who| who.host.as_ref())),
        or_dash(client.and_then(|who| who.program.as_ref())),
        or_dash(pid.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockcore::{Holder, LockState, Mode};

    use super::*;

    #[test]
    fn what_the_store_tells_cannot_act_on_the_terminal() {
        let holders = vec![Holder::new("a\u{1b}[2J:1", Mode::Exclusive, 2)];
        let state = LockState::held(holders, Some(Duration::from_secs(12)))
            .with_waiters(vec!["b\u{9b}:2".to_owned()]);
        let report = Report::new("x\u{7}", &state, None);
        let text = text(&report);
        assert!(
            !text.chars().any(|character| character.is_control() && character != '\n'),
            "{text}"
        );
        assert!(text.contains("a\\u{1b}[2J:1") && text.contains("12.0 s left"), "{text}");
        assert_eq!(report.kind, Some("fair lock"));
    }
}
