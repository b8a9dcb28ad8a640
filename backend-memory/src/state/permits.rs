//! Semaphores: any number of holds whose permits do not exceed the total.

use lockcore::{
    BackendError, Mode,
    backend::{ResizeOutcome, ResizeRequest},
};
use tokio::time::Instant;

use super::{NameKind, NameState};

impl NameState {
    /// Sets the number of permits.
    pub(crate) fn resize(
        &mut self,
        request: &ResizeRequest,
    ) -> Result<ResizeOutcome, BackendError> {
        self.use_as(NameKind::Permits)?;
        if request.only_if_unset && self.permits.is_some() {
            return Ok(ResizeOutcome::AlreadySet);
        }
        self.permits = Some(request.permits);
        self.wakeups.wake();
        Ok(ResizeOutcome::Resized)
    }

    /// The number of permits, taken or not: the number that was set, else the number given by the
    /// acquisition that found the name free, else `requested`.
    fn total(&self, requested: u32) -> u32 {
        let given = self.holds.first().map(|stored| match stored.mode {
            Mode::Permit { limit, .. } => limit,
            _ => requested,
        });
        self.permits.or(given).unwrap_or(requested)
    }

    fn available_of(&self, total: u32) -> u32 {
        let taken = self.holds.iter().map(|stored| match stored.mode {
            Mode::Permit { count, .. } => count,
            _ => 0,
        });
        total.saturating_sub(taken.sum())
    }

    /// The number of permits, if the request asks for more than that.
    pub(super) fn exceeded_limit(&self, mode: Mode) -> Option<u32> {
        let Mode::Permit { count, limit, .. } = mode else { return None };
        Some(self.total(limit)).filter(|total| *total < count)
    }

    /// When the next lease ends, if too few permits are available now.
    pub(super) fn permits_blocked_until(&self, count: u32, limit: u32) -> Option<Instant> {
        let next = self.holds.iter().map(|stored| stored.expires_at).min();
        next.filter(|_| self.available_of(self.total(limit)) < count)
    }

    /// The mode to store with a hold. Permits store the total, which later requests rely on.
    pub(super) fn mode_to_store(&self, mode: Mode) -> Mode {
        match mode {
            Mode::Permit { count, limit, plain: false, .. } => {
                Mode::permits(count, self.total(limit))
            }
            Mode::Permit { count, limit, plain: true, .. } => {
                Mode::plain_permits(count, self.total(limit))
            }
            other => other,
        }
    }

    /// The available permits and the total, if the name is in use as a semaphore.
    pub(super) fn available(&self) -> Option<(u32, u32)> {
        let used = self
            .used_as()
            .filter(|kind| [NameKind::Permits, NameKind::PlainPermits].contains(kind));
        used.map(|_| {
            let total = self.total(0);
            (self.available_of(total), total)
        })
    }
}
