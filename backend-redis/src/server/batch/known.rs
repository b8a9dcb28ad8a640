//! [`KnownScript`]: whether a server knows a script that several requests share.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set once the server has answered a script on this connection. Until then, the
/// script is sent with its source: if the server refused it, the requests that share it would be
/// sent again behind later ones.
#[derive(Debug, Default)]
pub(in crate::server) struct KnownScript(AtomicBool);

/// The scripts of batches.
#[derive(Debug, Default)]
pub(in crate::server) struct KnownScripts {
    /// The script of requests of any sort.
    pub(super) shared: KnownScript,
    /// The script of [recent](super::recent) locks.
    pub(super) recent: KnownScript,
}

impl KnownScript {
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, is_known: bool) {
        self.0.store(is_known, Ordering::Relaxed);
    }
}
