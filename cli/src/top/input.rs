//! [`Input`]: the keys and other events of the terminal.

use std::{io, thread, time::Duration};

use crossterm::event::{self, Event};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The interval at which the thread looks whether anybody listens.
const INTERVAL: Duration = Duration::from_millis(100);

/// The keys and other events of the terminal, until this is dropped.
///
/// A thread of its own reads them. When the terminal goes away, crossterm reads again and again
/// without an end, and the signal that comes then has to be heard all the same.
pub(crate) struct Input {
    events: UnboundedReceiver<io::Result<Event>>,
}

impl Input {
    pub(crate) fn open() -> io::Result<Self> {
        let (sender, events) = unbounded_channel();
        thread::Builder::new().name("keys".to_owned()).spawn(move || read(&sender))?;
        Ok(Self { events })
    }

    /// The next event. [`None`] after an error.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no event is lost.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Event>> {
        self.events.recv().await
    }
}

fn read(events: &UnboundedSender<io::Result<Event>>) {
    while !events.is_closed() {
        let event = match event::poll(INTERVAL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let is_last = event.is_err();
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}
