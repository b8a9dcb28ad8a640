//! [`Screen`]: the terminal while `lockctl top` draws on it.

use std::{
    io::{self, BufWriter, Stdout, Write},
    mem::ManuallyDrop,
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    cursor,
    event::{DisableBracketedPaste, EnableBracketedPaste},
    execute,
    terminal::{self, EnterAlternateScreen, LeaveAlternateScreen},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};

/// `true` while the terminal has to be given back.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

type Canvas = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// The terminal in raw mode, with a screen of its own. It is given back when this is dropped, and
/// before the message of a panic is written.
pub(crate) struct Screen {
    /// Never dropped: that shows the cursor, which is done when the terminal is given back, and
    /// panics if the terminal is gone. So there is only one.
    terminal: ManuallyDrop<Canvas>,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let say = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                say(panic);
            }));
        });
        take()?;
        match Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout()))) {
            Ok(terminal) => Ok(Self { terminal: ManuallyDrop::new(terminal) }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Gives the terminal back for a while.
    #[allow(clippy::unused_self, reason = "only who has the screen may do this")]
    pub(crate) fn suspend(&mut self) {
        give_back();
    }

    /// Takes the terminal again, and redraws everything, whatever others have done to it.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        take()?;
        // `clear` would ask the terminal for the position of the cursor, and the answer arrives as
        // a key.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    // Before the first step, so that the effects of a failed step are undone.
    IS_OPEN.store(true, Ordering::SeqCst);
    let taken = terminal::enable_raw_mode()
        // Pasted text must not be taken for commands.
        .and_then(|()| {
            execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide)
        });
    taken.inspect_err(|_| give_back())
}

/// Does nothing if the terminal was given back. There is nothing to do about a failure.
fn give_back() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), DisableBracketedPaste, LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
        let _ = io::stdout().flush();
    }
}
