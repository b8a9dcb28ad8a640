//! Latches: a count that only falls, and the replies that were given.

use std::time::Duration;

use lockcore::BackendError;
use tokio::time::Instant;

use super::{NameKind, NameState};

/// How long the reply to a request is remembered, to answer repetitions of it.
const REPLY_TTL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct LatchState {
    /// Zero if the latch is open.
    count: u32,
    replies: Vec<RememberedReply>,
}

#[derive(Debug)]
struct RememberedReply {
    request_id: String,
    reply: u32,
    expires_at: Instant,
}

impl LatchState {
    pub(super) fn expire(&mut self, now: Instant) {
        self.replies.retain(|remembered| remembered.expires_at > now);
    }

    pub(super) fn closed_count(&self) -> u32 {
        self.count
    }

    pub(super) fn is_open(&self) -> bool {
        self.count == 0
    }

    pub(super) fn remembers_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Applies `change` for the first request with this id. Repetitions get the first reply.
    fn once(&mut self, id: &str, now: Instant, change: impl FnOnce(&mut u32) -> u32) -> u32 {
        if let Some(remembered) = self.replies.iter().find(|reply| reply.request_id == id) {
            return remembered.reply;
        }
        let reply = change(&mut self.count);
        let expires_at = now + REPLY_TTL;
        self.replies.push(RememberedReply { request_id: id.to_owned(), reply, expires_at });
        reply
    }
}

impl NameState {
    pub(crate) fn set_count(
        &mut self,
        count: u32,
        id: &str,
        now: Instant,
    ) -> Result<bool, BackendError> {
        self.use_as(NameKind::Latch)?;
        let was_set = self.latch.once(id, now, |current| match *current {
            0 => {
                *current = count;
                1
            }
            _ => 0,
        });
        Ok(was_set == 1)
    }

    pub(crate) fn count_down(&mut self, id: &str, now: Instant) -> Result<u32, BackendError> {
        self.use_as(NameKind::Latch)?;
        let was_open = self.latch.is_open();
        let count = self.latch.once(id, now, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if self.latch.is_open() && !was_open {
            self.wakeups.wake();
        }
        Ok(count)
    }

    pub(crate) fn count(&mut self) -> Result<u32, BackendError> {
        self.use_as(NameKind::Latch)?;
        Ok(self.latch.count)
    }

    pub(crate) fn open(&mut self) -> Result<u32, BackendError> {
        self.use_as(NameKind::Latch)?;
        self.wakeups.wake();
        Ok(std::mem::take(&mut self.latch.count))
    }
}
