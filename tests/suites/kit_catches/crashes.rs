//! Crashes of the store of [`Flawed`](super::store::Flawed) clients, and what the flaws lose by
//! them.

use std::time::Duration;

use lockcore_testkit::Crashes;
use tokio::time::Instant;

use super::{
    flaw::Flaw,
    flawed::FlawedFixture,
    store::{Cell, Store, Stored},
};

impl Store {
    /// Replaces the contents by what was written.
    fn crash(&mut self, flaw: Flaw) {
        let now = Instant::now();
        for cell in self.cells.values_mut() {
            cell.settle(now);
            if let Some(stored) = cell.hold.as_mut() {
                stored.crash(flaw, now);
            }
            cell.crash(flaw, now);
        }
        match flaw {
            Flaw::CrashLosesLatches => self.signals.latches.clear(),
            Flaw::CrashLosesTokens => self.tokens.clear(),
            Flaw::CrashLosesRaisedTokens => self.tokens.extend(self.before_raise.take()),
            _ => {}
        }
    }
}

impl Cell {
    fn crash(&mut self, flaw: Flaw, now: Instant) {
        match flaw {
            Flaw::CrashLosesHolds => self.hold = None,
            Flaw::CrashLosesSharedHolds => self.shared.holds.clear(),
            Flaw::CrashLosesNumbersOfPermits => self.shared.permits = None,
            Flaw::CrashLosesDirectGrants => {
                self.hold.take_if(|stored| stored.granted_request.is_some());
            }
            Flaw::CrashLosesReleases if self.hold.is_none() => {
                self.hold = self.former.take().filter(|former| former.ends > now);
            }
            _ => {}
        }
    }
}

impl Stored {
    fn crash(&mut self, flaw: Flaw, now: Instant) {
        match flaw {
            Flaw::CrashLosesRenewals if !self.has_grown => {
                self.ends = self.ends.min(now + self.lease);
            }
            Flaw::CrashLosesGrowth if self.has_grown => self.count = 1,
            Flaw::CrashLosesTheLeases => self.ends += Duration::from_secs(86_400),
            _ => {}
        }
    }
}

impl Crashes for FlawedFixture {
    async fn crash(&self) {
        let mut store = self.store.lock().unwrap();
        store.crash(self.flaw);
        store.break_connections(self.flaw);
    }
}
