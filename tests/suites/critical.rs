//! The section that a lock protects, for tests of exclusion.

use std::sync::atomic::{AtomicU64, Ordering};

use lockcore::LockGuard;

/// The state of the section. It is outside of the system under test, so that it sees what is true.
#[derive(Default)]
pub(crate) struct Critical {
    inside: AtomicU64,
    greatest_token: AtomicU64,
    entries: AtomicU64,
}

impl Critical {
    /// The only one inside, with the greatest token so far.
    pub(crate) async fn visit(&self, guard: &LockGuard) {
        let token = u64::from(guard.token());
        let before = self.inside.swap(token, Ordering::SeqCst);
        assert_eq!(before, 0, "token {token} met token {before} inside");
        let greatest = self.greatest_token.swap(token, Ordering::SeqCst);
        assert!(token > greatest, "token {token} after {greatest}");
        tokio::task::yield_now().await;
        assert_eq!(self.inside.swap(0, Ordering::SeqCst), token, "somebody else came in");
        self.entries.fetch_add(1, Ordering::SeqCst);
    }

    /// How often somebody was inside.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::SeqCst)
    }
}
