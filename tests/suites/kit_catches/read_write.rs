//! The rules that keep readers and writers out, and how the flaws change them.

use std::time::Duration;

use lockcore::{
    Mode,
    backend::{AcquireOutcome, AcquireRequest, HoldId, ReleaseOutcome},
};
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    shared::Shared,
    store::{Cell, Flawed, Stored},
};

impl Flawed {
    pub(super) fn refuse_reader(
        &self,
        shared: &Shared,
        request: &AcquireRequest,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        let held = |until: Instant| Some(AcquireOutcome::Held { remaining: Some(until - now) });
        let is_reader = |stored: &&Stored| stored.mode == Mode::Read;
        let writer = shared.writer();
        let is_within = writer.is_some_and(|writer| request.within.as_ref() == Some(&writer.id));
        let lets_in = match self.flaw {
            Flaw::ReadersIgnoreWriters => true,
            Flaw::RefusesToReadWithin => false,
            Flaw::AnyWithinLetsIn => request.within.is_some(),
            Flaw::ReaderWithinOpensTheLock => {
                is_within || shared.holds.iter().any(|stored| is_reader(&stored))
            }
            _ => is_within,
        };
        if let Some(writer) = writer.filter(|_| !lets_in) {
            return held(writer.ends);
        }
        if let Some(other) =
            shared.holds.iter().find(is_reader).filter(|_| self.has(Flaw::OneReaderAtATime))
        {
            return held(other.ends);
        }
        let mut own = shared.holds.iter().filter(is_reader);
        let is_in = own.any(|stored| stored.id.owner() == request.hold.owner());
        let passes = match self.flaw {
            Flaw::WaitingWritersStopAllReaders => false,
            Flaw::WaitingWritersStopTakeovers => is_within,
            Flaw::WaitingWritersStopReadersWithin => is_in,
            _ => is_in || is_within,
        };
        let until = shared.writers.iter().map(|(_, until)| *until).max()?;
        if passes || request.count > 1 { None } else { held(until) }
    }

    pub(super) fn refuse_writer(
        &self,
        shared: &mut Shared,
        request: &AcquireRequest,
        now: Instant,
    ) -> Option<AcquireOutcome> {
        let is_own = |writer: &Stored| writer.id.owner() == request.hold.owner();
        if shared.writer().is_some_and(is_own) && !self.has(Flaw::RefusesTheOwnersNextWriter) {
            return None;
        }
        let ignored = match self.flaw {
            Flaw::WritersIgnoreReaders => Some(Mode::Read),
            Flaw::WritersShare => Some(Mode::Write),
            _ => None,
        };
        let in_the_way = shared.holds.iter().filter(|stored| Some(stored.mode) != ignored);
        let mut ends = in_the_way.map(|stored| stored.ends);
        let until = match self.flaw {
            Flaw::TellsTheFirstEnd => ends.min(),
            Flaw::TellsTheNewestEnd => ends.next_back(),
            _ => ends.max(),
        }?;
        self.keep_readers_out(shared, request, now);
        Some(AcquireOutcome::Held { remaining: Some(until - now) })
    }

    fn keep_readers_out(&self, shared: &mut Shared, request: &AcquireRequest, now: Instant) {
        let for_a_try = self.has(Flaw::TryingKeepsReadersOut).then_some(Duration::from_secs(600));
        let Some(time) = request.queue.or(for_a_try) else { return };
        let is_behind_a_writer =
            shared.writer().is_some() && !self.has(Flaw::WritersBehindWritersKeepReadersOut);
        if is_behind_a_writer || self.has(Flaw::WaitingWritersKeepNobodyOut) {
            return;
        }
        let until = match self.flaw {
            Flaw::WaitingWritersNeverLapse => now + time * 1000,
            Flaw::WaitingWritersLapseEarly => now + time.mul_f64(0.9),
            _ => now + time,
        };
        if self.has(Flaw::OneWriterKeepsReadersOut) {
            shared.writers.clear();
        }
        match shared.writers.iter_mut().find(|(hold, _)| *hold == request.hold) {
            Some(_) if self.has(Flaw::AskingAgainDoesNotKeepReadersOut) => {}
            Some((_, kept)) => *kept = until,
            None => shared.writers.push((request.hold.clone(), until)),
        }
    }

    /// The release of a hold that does not exist: a writer stops waiting.
    pub(super) fn give_up(&self, cell: &mut Cell, hold: &HoldId) -> ReleaseOutcome {
        let waited = cell.shared.writers.iter().any(|(waiting, _)| waiting == hold);
        if !self.has(Flaw::WritersThatGaveUpKeepReadersOut) {
            cell.shared.writers.retain(|(waiting, _)| waiting != hold);
        }
        if waited && !self.has(Flaw::WritersThatGiveUpWakeNobody) {
            self.wake(cell);
        }
        ReleaseOutcome::NotHeld
    }
}
