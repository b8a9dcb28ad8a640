//! [`Identity`]: what a server shows of its past, and [`Past`], what follows from that.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What a server shows of its past when a connection is made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// When it was started, in microseconds.
    pub(crate) started: i64,
    /// Its timeline. A replica that takes over, or a backup that is read in, begins another one.
    pub(crate) timeline: String,
    /// How far its log was on the disk.
    pub(crate) logged: i64,
}

impl Identity {
    /// Returns `true` if it has all that a server with the identity `earlier` was told.
    fn continues(&self, earlier: &Self) -> bool {
        // What is acknowledged is on the disk: a restart loses nothing. Copies of the files that
        // are older end earlier.
        self.started == earlier.started
            || self.timeline == earlier.timeline && self.logged >= earlier.logged
    }
}

/// The servers that the connections have led to.
#[derive(Debug, Default)]
pub(crate) struct Past(Mutex<Option<(Identity, Option<Instant>)>>);

impl Past {
    /// Notes the server of a connection that is ready for requests.
    pub(crate) fn note(&self, identity: Identity) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*last {
            Some((earlier, since)) if identity.continues(earlier) => *since,
            Some(_) => Some(Instant::now()),
            None => None,
        };
        *last = Some((identity, since));
    }

    /// How long ago connections began to lead to a server that may lack what an earlier one was
    /// told. `None` if nothing is known of the server.
    pub(crate) fn intact_for(&self) -> Option<Duration> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, since) = last.as_ref()?;
        Some(since.map_or(Duration::MAX, |since| since.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(started: i64, timeline: &str, logged: i64) -> Identity {
        Identity { started, timeline: timeline.to_owned(), logged }
    }

    #[test]
    fn a_restart_is_borne_and_a_replacement_is_not() {
        let first = server(1, "01", 100);
        for same in [server(1, "01", 90), server(2, "01", 100)] {
            let past = Past::default();
            assert_eq!(past.intact_for(), None);
            past.note(first.clone());
            past.note(same.clone());
            assert_eq!(past.intact_for(), Some(Duration::MAX), "{same:?}");
        }
        for other in [server(2, "01", 90), server(2, "02", 200)] {
            let past = Past::default();
            past.note(first.clone());
            past.note(other.clone());
            past.note(other.clone());
            assert!(past.intact_for() < Some(Duration::MAX), "{other:?}");
        }
    }
}
