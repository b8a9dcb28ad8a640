//! [`WakeChannel`]: the subscribers of one name.

use tokio::sync::watch;

/// A channel that exists while it has subscribers. It keeps a wake-up that arrives while no
/// subscriber is waiting.
#[derive(Debug, Default)]
pub(super) struct WakeChannel(Option<watch::Sender<()>>);

impl WakeChannel {
    pub(super) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.0.get_or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    pub(super) fn wake(&self) {
        if let Some(sender) = &self.0 {
            sender.send_replace(());
        }
    }

    /// Closes the channel if its last subscriber is gone.
    pub(super) fn expire(&mut self) {
        self.0.take_if(|sender| sender.receiver_count() == 0);
    }

    pub(super) fn has_subscribers(&self) -> bool {
        self.0.is_some()
    }
}
