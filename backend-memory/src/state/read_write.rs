//! Read-write locks: readers together, a writer alone but for readers within its own hold.

use lockcore::{Mode, backend::AcquireRequest};
use tokio::time::Instant;

use super::{Cell, Stored};

impl Cell {
    fn writer(&self) -> Option<&Stored> {
        self.holds.iter().find(|stored| stored.mode == Mode::Write)
    }

    /// Whether this owner has a hold already, which the one asked for takes over.
    fn is_in(&self, request: &AcquireRequest) -> bool {
        self.holds.iter().any(|stored| stored.gives_way_to(request))
    }

    pub(super) fn in_the_way_of_a_reader(&self, request: &AcquireRequest) -> Option<Instant> {
        let writer = self.writer().filter(|writer| request.within.as_ref() != Some(&writer.hold));
        writer.filter(|_| !self.is_in(request)).map(|writer| writer.ends)
    }

    /// A named owner takes over its own write hold, whatever readers are within it.
    pub(super) fn in_the_way_of_a_writer(&self, request: &AcquireRequest) -> Option<Instant> {
        let ends = self.holds.iter().map(|stored| stored.ends);
        ends.max().filter(|_| !self.is_in(request))
    }

    /// The writers that keep out new readers, but neither the next hold of one that is in nor one within a
    /// live write hold.
    pub(super) fn ahead_of_a_reader(&self, request: &AcquireRequest) -> Option<Instant> {
        let writers = self.queue.iter().map(|queued| queued.until);
        writers.max().filter(|_| !self.is_in(request) && self.writer().is_none())
    }

    /// Only readers can go on coming for ever. After a writer everybody has the same chance.
    pub(super) fn keeps_a_writers_place(&self) -> bool {
        self.writer().is_none()
    }
}
