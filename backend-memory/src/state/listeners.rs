//! Those who want to be woken.

use tokio::sync::watch;

/// A channel that is there while somebody listens. It keeps a wake-up that comes while nobody waits for it.
#[derive(Debug, Default)]
pub(super) struct Listeners(Option<watch::Sender<()>>);

impl Listeners {
    pub(super) fn subscribe(&mut self) -> watch::Receiver<()> {
        self.0.get_or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    pub(super) fn wake(&self) {
        if let Some(sender) = &self.0 {
            sender.send_replace(());
        }
    }

    pub(super) fn settle(&mut self) {
        self.0.take_if(|sender| sender.receiver_count() == 0);
    }

    pub(super) fn are_there(&self) -> bool {
        self.0.is_some()
    }
}
