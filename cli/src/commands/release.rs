//! `lockctl release`.

use std::io::{self, BufRead, IsTerminal, Write};

use lockcore::LockName;

use crate::{
    cli::Common,
    clients::Clients,
    exit::{Exit, Failure},
    output,
    pace::Pace,
    report::Report,
};

const AFTER_HELP: &str = "\
The holder goes on with its work until it notices, which takes up to a third of its lease. Until
then it and the next holder are both inside, and only the fencing token tells them apart. So end
the holder first if you can, or wait for the end of its lease.

On a terminal this asks first. Elsewhere it needs --yes.

Exit codes: 0 if the name was freed or was not held, 75 if you said no or the holder has changed
meanwhile.

Examples:
  lockctl release nightly --force
  lockctl release nightly --force --yes";

/// Frees a lock by force, whoever holds it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The name of the lock.
    name: String,
    /// Takes the lock from its holder. Required, because there is no other way to free a lock from
    /// outside.
    #[arg(long)]
    force: bool,
    /// Does not ask.
    #[arg(short, long)]
    yes: bool,
}

pub(crate) async fn release(args: &Args, common: &Common) -> Result<Exit, Failure> {
    if !args.force {
        return Err(Failure::usage(
            "a lock can only be freed from outside by taking it from its holder; add --force",
        ));
    }
    let asks = !args.yes;
    if asks && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::usage("there is no terminal to ask on; add --yes"));
    }
    let lock_name = LockName::new(args.name.as_str())?;
    let store = common.store()?.open().await?;
    let name = output::escaped(&args.name);
    let is_held = !Report::of(&*store.backend, &lock_name).await?.holders.is_empty();
    if !is_held {
        output::print(format!("{name} is not held\n"))?;
        return Ok(Exit::SUCCESS);
    }
    let clients = Clients::read(&store, &mut Pace::new(0)).await;
    // That takes seconds if clients seem to wait for each other, and the lock may have passed on.
    let mut before = Report::of(&*store.backend, &lock_name).await?;
    match clients {
        Ok(clients) => before.identify(&clients),
        // The lock can be freed without.
        Err(error) => {
            output::tell(format_args!("the processes are left out: {}", Failure::from(error)));
        }
    }
    if before.holders.is_empty() {
        output::print(format!("{name} is not held any more\n"))?;
        return Ok(Exit::SUCCESS);
    }
    let holders = output::escaped(&before.holders_and_processes());
    if asks {
        if !is_confirmed(&name, &holders)? {
            return Err(Failure::new(Exit::NOT_HAD, "nothing was released"));
        }
        // The answer applies only to the holder that was shown.
        let now = Report::of(&*store.backend, &lock_name).await?;
        if now.holders_in_words() != before.holders_in_words() {
            let message = format!("nothing was released: {name} has another holder by now");
            return Err(Failure::new(Exit::NOT_HAD, message));
        }
    }
    match store.backend.force_release(&lock_name).await? {
        true => output::print(format!("released {name}, held by {holders}\n"))?,
        false => output::print(format!("{name} is not held any more\n"))?,
    }
    Ok(Exit::SUCCESS)
}

fn is_confirmed(name: &str, holders: &str) -> Result<bool, Failure> {
    let failed = |error| Failure::new(Exit::NO_OUTPUT, format!("cannot ask: {error}"));
    let mut stderr = io::stderr();
    write!(stderr, "{name} is held by {holders}. Take it away? [y/N] ")
        .and_then(|()| stderr.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
