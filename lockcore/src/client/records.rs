//! The record of a client at the store, which is written now and then while the client is in use,
//! and removed when it is closed or gone; and the warning about cycles of waits within one client.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{
    answer::answer,
    foreign::foreign,
    presence::{Presence, Writing},
    scan::Scan,
    shared::Client,
};
use crate::{
    CycleKind,
    backend::Backend,
    time::{Clock, Moment},
    waits::{Account, Candidate, Reading},
};

/// For how long the end of a client waits for a request that writes the record, and then for the
/// one that removes it.
const REMOVE_WITHIN: Duration = Duration::from_millis(500);

impl Client {
    /// The background's work of each second while something is held or waited for. Requests run in
    /// `writes`, and do not keep the client alive.
    pub(super) fn tick(self: &Arc<Self>, writes: &mut JoinSet<()>) {
        if self.is_closed() {
            self.calendar.unwatch();
            return;
        }
        // Both before the look: the number refers to it, and a waiter that begins from now on asks
        // to be watched again.
        let (now, number) = (self.clock.now(), self.presence.next_look());
        let scan = match self.calendar.unwatch() {
            true => self.scan(now),
            false => Scan::default(),
        };
        // Before the backend is called, because that may panic.
        if scan.is_anybody_waiting {
            self.calendar.watch();
        }
        self.warn_of_cycles(&scan, now);
        self.keep_record((&scan, number), now, writes);
        if self.presence.may_list_waits(now) {
            self.calendar.watch();
        }
    }

    fn keep_record(&self, (scan, number): (&Scan, u64), now: Moment, writes: &mut JoinSet<()>) {
        let presence = &self.presence;
        if !presence.is_described() || self.backend.directory().is_none() {
            return;
        }
        let is_in_use = scan.is_anybody_waiting || self.is_in_use();
        if !is_in_use && !presence.may_list_waits(now) {
            return;
        }
        let looks = if scan.linked > 0 { number } else { 0 };
        let text = presence.record().text_with(&scan.waits, scan.omitted, looks);
        let begun = presence.begin(text, !scan.waits.is_empty(), is_in_use, now);
        let Some(mut writing) = begun else { return };
        let (backend, id) = (self.backend.clone(), self.client_id().to_owned());
        let lifetime = presence.lifetime();
        writes.spawn(async move {
            let Writing { text, outcome, .. } = &mut writing;
            if let Some(directory) = backend.directory() {
                *outcome = Some(answer(directory.put_client(&id, text, lifetime)).await);
            }
        });
    }

    /// Warns of each cycle once, after it was seen twice. There is no warning for a cycle that ends
    /// by itself, nor for a task that waits for itself, which was reported when its wait began.
    fn warn_of_cycles(&self, scan: &Scan, now: Moment) {
        let (mut reading, mut cycles) = (Reading::default(), Vec::new());
        if scan.linked > 1 {
            let waits = scan.waits.iter().take(scan.linked).cloned().collect();
            reading.add_own(self.client_id(), self.presence.record().with(waits, 0));
            cycles = reading.cycles(&Account::default());
            cycles.retain(|cycle| cycle.links.len() > 1);
        }
        let numbers = cycles.iter().map(Candidate::numbers);
        let due = self.presence.cycles_to_warn_of(numbers.collect());
        let due = due.into_iter().filter_map(|at| cycles.get(at).cloned()).collect();
        for cycle in reading.report(due, self.presence.unix(now)).cycles() {
            if cycle.kind() != CycleKind::Passing {
                foreign(|| tracing::warn!(%cycle, "tasks of this client wait for each other"));
            }
        }
    }

    /// The work that is left at the end of the client. It does not keep the client alive.
    pub(super) fn leftover(&self) -> RecordLeftover {
        let (backend, presence) = (self.backend.clone(), self.presence.clone());
        RecordLeftover {
            backend,
            presence,
            clock: self.clock.clone(),
            id: self.client_id().to_owned(),
        }
    }
}

/// The record that a client leaves when it ends.
pub(super) struct RecordLeftover {
    backend: Arc<dyn Backend>,
    presence: Arc<Presence>,
    clock: Clock,
    id: String,
}

impl RecordLeftover {
    /// Stops writing the record, and removes it. Takes a bounded time, whatever the backend does.
    pub(super) async fn remove(self) {
        let Self { backend, presence, clock, id } = self;
        if !presence.close(clock.now()) {
            return;
        }
        // A write that is under way must not arrive after the removal.
        let _ = tokio::time::timeout(REMOVE_WITHIN, presence.writing.none()).await;
        // A task of its own: a panic of the backend is a failure like any other.
        let mut removal = JoinSet::new();
        removal.spawn(async move {
            match backend.directory() {
                Some(directory) => directory.remove_client(&id).await,
                None => Ok(()),
            }
        });
        match tokio::time::timeout(REMOVE_WITHIN, removal.join_next()).await {
            Ok(Some(Ok(Ok(())))) => presence.removed(),
            Ok(Some(Ok(Err(error)))) => {
                foreign(|| tracing::debug!(%error, "the record of this client runs out"));
            }
            Ok(_) | Err(_) => {}
        }
    }
}
