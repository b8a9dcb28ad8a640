//! What read-write locks have of their own: reading beside one's own write hold, and the refusal to do it the other way round.

use std::sync::Arc;

use crate::{
    LockError, LockGuard, Mode, Owner,
    acquiring::acquisition::{Acquisition, Attempt},
    acquiring::retry::Backoff,
    acquiring::waiters::Inside,
    leases::hold::{Hold, Phase},
    leases::renewal,
};

impl Acquisition {
    /// Lets in an owner as a reader that is in as a writer: past the queue, since everybody in it waits for this owner. `None` if the
    /// write hold has ended.
    pub(crate) async fn read_within(
        &self,
        write: &Arc<Hold>,
        owner: &Owner,
        waits: bool,
    ) -> Result<Option<LockGuard>, LockError> {
        let store = &self.client.store;
        // One at a time: the next one nests in the hold of the first.
        let _order = write.storing().lock().await;
        if let Some(Inside::Nested(read)) = self.inside(owner) {
            return Ok(self.nest(&read).await?.then(|| self.guard(read)));
        }
        let mut backoff = Backoff::default();
        let start = store.clock.now();
        loop {
            if !self.is_live(write)? {
                return Ok(None);
            }
            let request = self
                .request(self.client.hold_id(owner, self.client.draw_number()), waits)
                .within(Some(write.id.clone()));
            match self.attempt(owner, &request, &write.cell, None, store.clock.now()).await {
                Ok(Attempt::Granted(hold)) => return self.enter_past_the_queue(hold).map(Some),
                // Nobody else can have it while the write hold is there.
                Ok(Attempt::Refused { .. }) => renewal::gone(store, write),
                Err(LockError::Backend(error))
                    if waits
                        && error.is_retryable()
                        && store.clock.now().since(start) < self.client.settings.retry_for =>
                {
                    tracing::debug!(%error, "attempt failed, will be retried");
                    self.is_troubled_by(Some(error.into()));
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// An owner that reads and waits to write would wait for itself. `None` if the read hold has ended.
    pub(crate) fn refuse_upgrade(&self, read: &Hold) -> Result<Option<LockGuard>, LockError> {
        debug_assert_eq!(self.mode, Mode::Write);
        if self.is_live(read)? {
            Err(LockError::Upgrade { lock: self.name.clone() })
        } else {
            Ok(None)
        }
    }

    /// Whether a hold of the owner is still there, and not just registered.
    fn is_live(&self, hold: &Hold) -> Result<bool, LockError> {
        match hold.phase(self.client.store.clock.now()) {
            Phase::Live => Ok(true),
            Phase::Released => Ok(false),
            Phase::Lost(reason) => Err(LockError::Lost { lock: self.name.clone(), reason }),
        }
    }
}
