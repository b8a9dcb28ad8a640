//! [`Past`]: detects a change of the server.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The servers that the connections have led to. Each is identified by a text that changes with a
/// restart, with a replica that takes over, and with other data files.
#[derive(Debug, Default)]
pub(crate) struct Past(Mutex<Option<(String, Option<Instant>)>>);

impl Past {
    /// Notes the server of a connection that is ready for requests.
    pub(crate) fn note(&self, server: String) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*last {
            Some((earlier, since)) if *earlier == server => *since,
            Some(_) => Some(Instant::now()),
            None => None,
        };
        *last = Some((server, since));
    }

    /// How long ago connections began to lead to a server that may lack the data of an earlier one.
    /// `None` if nothing is known of the server.
    pub(crate) fn intact_for(&self) -> Option<Duration> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, since) = last.as_ref()?;
        Some(since.map_or(Duration::MAX, |since| since.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_noticed_once() {
        let (past, note) = (Past::default(), |past: &Past, server: &str| past.note(server.into()));
        assert_eq!(past.intact_for(), None);
        note(&past, "one");
        note(&past, "one");
        assert_eq!(past.intact_for(), Some(Duration::MAX));
        note(&past, "other");
        let since = past.intact_for().unwrap();
        note(&past, "other");
        let later = past.intact_for().unwrap();
        assert!(since <= later && later < Duration::MAX, "{since:?}, {later:?}");
    }
}
