//! Read-write locks: readers together, a writer alone but for readers within its own hold.

use lockcore::{AcquireRequest, Mode};
use tokio::time::Instant;

use super::{Cell, Stored};

impl Cell {
    fn writer(&self) -> Option<&Stored> {
        self.holds.iter().find(|stored| stored.mode == Mode::Write)
    }

    pub(super) fn in_the_way_of_a_reader(&self, request: &AcquireRequest) -> Option<Instant> {
        let writer = self.writer().filter(|writer| request.within.as_ref() != Some(&writer.hold));
        writer.map(|writer| writer.ends)
    }

    /// A named owner takes over its own write hold, whatever readers are within it.
    pub(super) fn in_the_way_of_a_writer(&self, request: &AcquireRequest) -> Option<Instant> {
        let takes_over = self.writer().is_some_and(|writer| writer.gives_way_to(request));
        let ends = self.holds.iter().map(|stored| stored.ends);
        ends.max().filter(|_| !takes_over)
    }

    /// The writers that keep out new readers, but neither the next hold of one that is in nor one within a
    /// live write hold.
    pub(super) fn ahead_of_a_reader(&self, request: &AcquireRequest) -> Option<Instant> {
        let is_in = self.holds.iter().any(|stored| stored.gives_way_to(request));
        let writers = self.queue.iter().map(|queued| queued.until);
        writers.max().filter(|_| !is_in && self.writer().is_none())
    }

    /// Only readers can go on coming for ever. After a writer everybody has the same chance.
    pub(super) fn keeps_a_writers_place(&self) -> bool {
        self.writer().is_none()
    }
}
