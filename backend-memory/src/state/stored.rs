//! The parts of a name, as entries for people.

use lockcore::backend::{StoredEntry, StoredKind};
use tokio::time::Instant;

use super::NameState;

impl NameState {
    /// The holds, the queue, the number of permits and the count.
    pub(crate) fn stored(&self, now: Instant) -> Vec<StoredEntry> {
        let left = |end: Instant| Some(end.saturating_duration_since(now));
        let mut entries = Vec::new();
        for stored in &self.holds {
            let hold = StoredEntry::new(format!("hold {}", stored.hold.id()), StoredKind::Hold);
            let hold = hold.with_number(Some(u64::from(stored.token)));
            entries.push(hold.with_left(left(stored.expires_at)));
        }
        if let Some(last) = self.queue.iter().map(|queued| queued.expires_at).max() {
            let queue = StoredEntry::new("queue", StoredKind::Queue);
            let queue = queue.with_number(Some(self.queue.len() as u64));
            entries.push(queue.with_left(left(last)));
        }
        if let Some(permits) = self.permits {
            let permits = u64::from(permits);
            entries
                .push(StoredEntry::new("permits", StoredKind::Permits).with_number(Some(permits)));
        }
        if !self.latch.is_open() {
            let count = Some(u64::from(self.latch.closed_count()));
            entries.push(StoredEntry::new("count", StoredKind::Latch).with_number(count));
        }
        entries
    }
}
