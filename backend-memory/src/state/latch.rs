//! Latches: a count that only falls, and what was answered to whom.

use std::time::Duration;

use lockcore::BackendError;
use tokio::time::Instant;

use super::{Cell, Kind};

/// For how long a repetition of a request is known as one.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Latch {
    /// Zero of a latch that is open.
    left: u32,
    answered: Vec<Answered>,
}

#[derive(Debug)]
struct Answered {
    id: String,
    answer: u32,
    until: Instant,
}

impl Latch {
    pub(super) fn settle(&mut self, now: Instant) {
        self.answered.retain(|answered| answered.until > now);
    }

    pub(super) fn is_open(&self) -> bool {
        self.left == 0
    }

    pub(super) fn remembers(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Does `change` for the first request with this id, and answers the others as that one.
    fn once(&mut self, id: &str, now: Instant, change: impl FnOnce(&mut u32) -> u32) -> u32 {
        if let Some(answered) = self.answered.iter().find(|answered| answered.id == id) {
            return answered.answer;
        }
        let answer = change(&mut self.left);
        self.answered.push(Answered { id: id.to_owned(), answer, until: now + REMEMBERED });
        answer
    }
}

impl Cell {
    pub(crate) fn set_count(
        &mut self,
        count: u32,
        id: &str,
        now: Instant,
    ) -> Result<bool, BackendError> {
        self.use_as(Kind::Latch)?;
        let set = self.latch.once(id, now, |left| match *left {
            0 => {
                *left = count;
                1
            }
            _ => 0,
        });
        Ok(set == 1)
    }

    pub(crate) fn count_down(&mut self, id: &str, now: Instant) -> Result<u32, BackendError> {
        self.use_as(Kind::Latch)?;
        let was_open = self.latch.is_open();
        let left = self.latch.once(id, now, |left| {
            *left = left.saturating_sub(1);
            *left
        });
        if self.latch.is_open() && !was_open {
            self.listeners.wake();
        }
        Ok(left)
    }

    pub(crate) fn count(&mut self) -> Result<u32, BackendError> {
        self.use_as(Kind::Latch)?;
        Ok(self.latch.left)
    }

    pub(crate) fn open(&mut self) -> Result<u32, BackendError> {
        self.use_as(Kind::Latch)?;
        self.listeners.wake();
        Ok(std::mem::take(&mut self.latch.left))
    }
}
