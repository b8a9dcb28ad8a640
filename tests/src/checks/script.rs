//! Handwritten logs for the tests of the checkers. Times are in milliseconds.

use crate::{Event, Share, What};

pub(super) const MS: u64 = 1_000_000;

/// A log under construction.
#[derive(Default)]
pub(super) struct Script(Vec<Event>);

impl Script {
    pub(super) fn event(mut self, t: u64, client: &str, op: u64, what: What) -> Self {
        self.0.push(Event { t: t * MS, client: client.into(), op, what });
        self
    }

    pub(super) fn asked(self, t: u64, client: &str, op: u64, share: Share) -> Self {
        self.event(t, client, op, What::Asked { name: "a".into(), share, nested_in: None })
    }

    pub(super) fn granted(self, t: u64, client: &str, op: u64, token: u64, until: u64) -> Self {
        let owner = format!("{client}:{op}");
        self.event(t, client, op, What::Granted { token, owner, until: until * MS })
    }

    /// A hold that was requested and granted at `from`, and released at `to`.
    pub(super) fn hold(
        self,
        client: &str,
        op: u64,
        share: Share,
        token: u64,
        from: u64,
        to: u64,
    ) -> Self {
        self.asked(from, client, op, share)
            .granted(from, client, op, token, to + 1000)
            .event(to, client, op, What::Leaving)
            .event(to, client, op, What::Released)
    }

    pub(super) fn wrote(self, t: u64, token: u64, base: u64, value: u64, accepted: bool) -> Self {
        self.event(t, "resource", 0, What::Wrote { name: "a".into(), token, base, value, accepted })
    }

    pub(super) fn events(self) -> Vec<Event> {
        self.0
    }
}
