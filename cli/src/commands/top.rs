//! `lockctl top`.

use std::{
    io::{self, IsTerminal},
    sync::Arc,
    time::{Duration, Instant},
};

use crossterm::event::Event;
use lockcore::{BackendError, backend::Backend};
use rustix::process::{Signal, kill_current_process_group};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Interval, MissedTickBehavior, interval, timeout},
};

use crate::{
    cli::Common,
    duration,
    exit::{Exit, Failure},
    output,
    pace::{DEFAULT_RATE, Pace, RATE_HELP},
    process::{Signals, stop_unless_orphaned},
    top::{
        input::Input,
        keys::{self, Request},
        model::{Model, News, Release},
        source::{self, Source},
        terminal::Screen,
        view::{self, Theme},
    },
};

const AFTER_HELP: &str = "\
The store is swept again and again: first the names, then the state of each. With many names a sweep
takes longer than --interval, because the rate is bounded; the title says how far it is. The
selected name is looked at every --interval all the same.

GRANTS counts the holders that were new at a look: with short holds there are more. RAN OUT counts
holds that ended with their lease after nobody had renewed it: those of dead processes, and of locks
with a fixed lease. A time with > was not seen from its beginning.

Keys: arrows or j, k select, Enter shows details, / filters, s sorts, f releases by force after
asking, ? lists all of them, q quits. NO_COLOR turns colours off.

Examples:
  lockctl top
  lockctl top --interval 5 --rate 100
  ssh -t web-3 lockctl top";

/// Shows live what is held and waited for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// How often to look at the names: 0.2 s to 1 h.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval_of)]
    interval: Duration,
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RATE, help = RATE_HELP)]
    rate: u32,
}

fn interval_of(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    match (Duration::from_millis(200)..=Duration::from_secs(3600)).contains(&interval) {
        true => Ok(interval),
        false => Err("give 200ms to 1h".into()),
    }
}

/// The interval of checks for something new to draw.
const DRAWING_INTERVAL: Duration = Duration::from_millis(200);

/// The interval at which leases and times are redrawn even without news.
const LONGEST_STILL: Duration = Duration::from_secs(1);

/// How long the signal of a terminal that goes away may come after its first error.
const HANG_UP: Duration = Duration::from_millis(100);

pub(crate) async fn top(args: &Args, common: &Common) -> Result<Exit, Failure> {
    if !io::stdout().is_terminal() {
        return Err(Failure::usage("stdout is no terminal to draw on; `lockctl ls` prints a list"));
    }
    let url = common.store()?;
    let store = url.open().await?;
    if store.backend.directory().is_none() {
        return Err(BackendError::unsupported("telling which names are in use").into());
    }
    let signals = Signals::listen().map_err(no_terminal)?;
    let (news, heard) = mpsc::channel(64);
    let (select, selected) = watch::channel(None);
    let source = Source {
        store: store.clone(),
        pace: Pace::new(args.rate),
        interval: args.interval,
        selected,
        news,
    };
    let sweeps = tokio::spawn(source.run());
    let mut ticks = interval(DRAWING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let top = Top {
        model: Model::new(url.shown()),
        screen: Screen::open().map_err(no_terminal)?,
        theme: Theme::of_environment(),
        keys: Input::open().map_err(no_terminal)?,
        signals,
        ticks,
        heard,
        releases: JoinSet::new(),
        select,
        backend: store.backend,
        interval: args.interval,
    };
    let exit = top.run().await;
    sweeps.abort();
    exit
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::new(Exit::NO_OUTPUT, format!("cannot use the terminal: {error}"))
}

/// Everything that `lockctl top` listens to, and the screen.
struct Top {
    model: Model,
    screen: Screen,
    theme: Theme,
    keys: Input,
    signals: Signals,
    ticks: Interval,
    heard: mpsc::Receiver<News>,
    /// The forced releases that are under way. Each ends with a message.
    releases: JoinSet<String>,
    select: watch::Sender<Option<String>>,
    backend: Arc<dyn Backend>,
    interval: Duration,
}

/// The message about a forced release that was not waited for.
const NOT_KNOWN: &str = "whether the lock was released by force is not known";

/// The message of a forced release that has ended.
fn said_of(ended: Option<Result<String, JoinError>>) -> String {
    ended.and_then(Result::ok).unwrap_or_else(|| NOT_KNOWN.to_owned())
}

impl Top {
    /// Shows everything, and ends when asked to.
    async fn run(mut self) -> Result<Exit, Failure> {
        let mut shown = self.show().await;
        if shown.is_err()
            && let Ok(signal) = timeout(HANG_UP, self.signals.next_end()).await
        {
            shown = Ok(Exit::of_signal(signal.as_raw()));
        }
        match &shown {
            Ok(exit) if *exit != Exit::SUCCESS && !self.releases.is_empty() => {
                // A signal ends this at once.
                drop(self.screen);
                output::tell(NOT_KNOWN);
                shown
            }
            _ => self.end().await.map_or(shown, Ok),
        }
    }

    async fn show(&mut self) -> Result<Exit, Failure> {
        let (mut is_new, mut drawn_at, mut sampled_at) = (false, Instant::now(), Instant::now());
        self.draw()?;
        loop {
            tokio::select! {
                // A signal tells more than the error of a terminal that goes away with it.
                biased;
                signal = self.signals.next() => {
                    if let Some(exit) = self.signal(signal)? {
                        return Ok(exit);
                    }
                    self.draw()?;
                }
                _ = self.ticks.tick() => {
                    let now = Instant::now();
                    if now.duration_since(sampled_at) >= self.interval && self.model.has_swept() {
                        self.model.sample(now);
                        sampled_at = now;
                    }
                    if is_new || now.duration_since(drawn_at) >= LONGEST_STILL {
                        self.draw()?;
                        (is_new, drawn_at) = (false, now);
                    }
                }
                event = self.keys.next() => {
                    let Some(event) = event else { return Ok(Exit::SUCCESS) };
                    if let Some(exit) = self.event(event.map_err(no_terminal)?)? {
                        return Ok(exit);
                    }
                    self.draw()?;
                }
                Some(said) = self.releases.join_next() => {
                    self.model.hear(News::Notice(said_of(Some(said))), Instant::now());
                    is_new = true;
                }
                Some(news) = self.heard.recv() => {
                    self.model.hear(news, Instant::now());
                    is_new = true;
                }
            }
            self.select.send_if_modified(|selected| {
                let is_other = *selected != self.model.selected;
                selected.clone_from(&self.model.selected);
                is_other
            });
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let (model, theme) = (&mut self.model, self.theme);
        let draw = |frame: &mut ratatui::Frame<'_>| view::draw(frame, model, theme, Instant::now());
        self.screen.draw(draw).map_err(no_terminal)
    }

    fn event(&mut self, event: Event) -> Result<Option<Exit>, Failure> {
        // Others, such as a new size or pasted text, are reasons to draw.
        let Event::Key(key) = event else { return Ok(None) };
        match keys::press(&mut self.model, key, Instant::now()) {
            None => {}
            Some(Request::Quit) => return Ok(Some(Exit::SUCCESS)),
            Some(Request::Redraw) => self.screen.resume().map_err(no_terminal)?,
            // As the terminal does for a program that leaves Ctrl-Z to it. The signal comes back to
            // this process.
            Some(Request::Suspend) => {
                let _ = kill_current_process_group(Signal::TSTP);
            }
            Some(Request::Release(release)) => self.release(release),
        }
        Ok(None)
    }

    fn release(&mut self, release: Release) {
        let backend = Arc::clone(&self.backend);
        self.releases.spawn(async move {
            output::without_passwords(&source::release(&*backend, &release).await)
        });
    }

    /// Gives the terminal back and waits for the releases that are under way, whose outcome would
    /// otherwise be unknown. A signal ends this as well.
    async fn end(self) -> Option<Exit> {
        let Self { screen, mut releases, mut signals, .. } = self;
        drop(screen);
        while !releases.is_empty() {
            tokio::select! {
                said = releases.join_next() => output::tell(said_of(said)),
                signal = signals.next_end() => {
                    output::tell(NOT_KNOWN);
                    return Some(Exit::of_signal(signal.as_raw()));
                }
            }
        }
        None
    }

    fn signal(&mut self, signal: Signal) -> Result<Option<Exit>, Failure> {
        match signal {
            Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT => {
                return Ok(Some(Exit::of_signal(signal.as_raw())));
            }
            Signal::TSTP => {
                self.screen.suspend();
                stop_unless_orphaned();
                self.screen.resume().map_err(no_terminal)?;
            }
            Signal::CONT => self.screen.resume().map_err(no_terminal)?,
            _ => {}
        }
        Ok(None)
    }
}
