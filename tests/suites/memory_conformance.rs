//! The memory backend keeps every clause, on tokio's paused clock.

use lockcore::LockName;
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fixture, conformance_tests};

struct MemoryFixture(MemoryBackend);

impl Fixture for MemoryFixture {
    type Backend = MemoryBackend;

    async fn set_up() -> Self {
        Self(MemoryBackend::new())
    }

    async fn client(&self) -> MemoryBackend {
        self.0.clone()
    }

    async fn left_behind(&self, _: &LockName) -> Vec<String> {
        (0..self.0.names_in_use()).map(|number| format!("name {number} in use")).collect()
    }
}

conformance_tests!(
    MemoryFixture,
    fair,
    read_write,
    permits,
    hand_over,
    demand,
    direct_grant,
    proposed_tokens,
    latches,
    conditions,
    directory,
    paused
);

mod signals {
    crate::signals::signal_tests!(super::MemoryFixture, run_case_paused);
}

mod races {
    crate::races::race_tests!(super::MemoryFixture);
}
