//! Read-write locks: any number of readers, or one writer with the readers inside its own hold.

use lockcore::{Mode, backend::AcquireRequest};
use tokio::time::Instant;

use super::{NameState, StoredHold};

impl NameState {
    fn writer(&self) -> Option<&StoredHold> {
        self.holds.iter().find(|stored| stored.mode == Mode::Write)
    }

    /// Returns `true` if the owner already has a hold that the request would replace.
    fn replaces_a_hold(&self, request: &AcquireRequest) -> bool {
        self.holds.iter().any(|stored| stored.is_replaced_by(request))
    }

    /// When the write hold that excludes this reader expires, if there is one.
    pub(super) fn read_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        let writer = self.writer().filter(|writer| request.within.as_ref() != Some(&writer.hold));
        writer.filter(|_| !self.replaces_a_hold(request)).map(|writer| writer.expires_at)
    }

    /// When the last hold that excludes this writer expires, if there is one. A named owner takes
    /// over its own write hold despite the readers inside it.
    pub(super) fn write_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        let last = self.holds.iter().map(|stored| stored.expires_at).max();
        last.filter(|_| !self.replaces_a_hold(request))
    }

    /// When the last waiting writer stops blocking this reader. Waiting writers block new readers,
    /// but neither an owner that already reads nor a reader inside a live write hold.
    pub(super) fn read_turn_blocked_until(&self, request: &AcquireRequest) -> Option<Instant> {
        let writers = self.queue.iter().map(|queued| queued.expires_at);
        writers.max().filter(|_| !self.replaces_a_hold(request) && self.writer().is_none())
    }

    /// Returns `true` if a refused writer blocks new readers. Only a stream of readers can starve
    /// a writer; when a writer releases, all waiters compete on equal terms.
    pub(super) fn refused_writer_blocks_readers(&self) -> bool {
        self.writer().is_none()
    }
}
