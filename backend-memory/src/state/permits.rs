//! Semaphores: as many holds as there are permits for.

use lockcore::{
    BackendError, Mode,
    backend::{ResizeOutcome, ResizeRequest},
};
use tokio::time::Instant;

use super::{Cell, Kind};

impl Cell {
    /// Sets how many permits there are.
    pub(crate) fn resize(
        &mut self,
        request: &ResizeRequest,
    ) -> Result<ResizeOutcome, BackendError> {
        self.use_as(Kind::Permits)?;
        if request.only_if_unset && self.permits.is_some() {
            return Ok(ResizeOutcome::AlreadySet);
        }
        self.permits = Some(request.permits);
        self.listeners.wake();
        Ok(ResizeOutcome::Resized)
    }

    /// How many permits there are: as many as were set, or else as the one said that found the name free.
    fn total(&self, asked: u32) -> u32 {
        let said = self.holds.first().map(|stored| match stored.mode {
            Mode::Permit { limit, .. } => limit,
            _ => asked,
        });
        self.permits.or(said).unwrap_or(asked)
    }

    fn free(&self, total: u32) -> u32 {
        let taken = self.holds.iter().map(|stored| match stored.mode {
            Mode::Permit { count, .. } => count,
            _ => 0,
        });
        total.saturating_sub(taken.sum())
    }

    /// How many permits there are, if that is less than is asked for.
    pub(super) fn limit_below(&self, mode: Mode) -> Option<u32> {
        let Mode::Permit { count, limit, .. } = mode else { return None };
        Some(self.total(limit)).filter(|total| *total < count)
    }

    /// When the next permits come back, if there are too few now.
    pub(super) fn in_the_way_of_permits(&self, count: u32, limit: u32) -> Option<Instant> {
        let next = self.holds.iter().map(|stored| stored.ends).min();
        next.filter(|_| self.free(self.total(limit)) < count)
    }

    /// Each hold of permits remembers how many there are, for those that come later.
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

    /// How many permits can be taken of how many, if the name is in use as a semaphore.
    pub(super) fn available(&self) -> Option<(u32, u32)> {
        let used = self.used_as().filter(|used| [Kind::Permits, Kind::PlainPermits].contains(used));
        used.map(|_| {
            let total = self.total(0);
            (self.free(total), total)
        })
    }
}
