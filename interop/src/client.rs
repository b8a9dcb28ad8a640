//! [`Redisson`]: a Redisson client.

use std::time::Duration;

use crate::{java::Java, kind::Kind, reply::JavaError, thread::JavaThread};

/// The lease of a hold in Java.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The lease of the client, renewed by its watchdog. Permits have none: they never expire then.
    Watchdog,
    /// A lease that is not renewed.
    Fixed(Duration),
}

impl Lease {
    pub(crate) fn wire(self) -> String {
        match self {
            Self::Watchdog => "-1".to_owned(),
            Self::Fixed(lease) => lease.as_millis().to_string(),
        }
    }
}

/// The options of a Redisson client.
#[derive(Clone, Debug)]
pub struct Configuration {
    url: String,
    watchdog: Duration,
    fair_wait: Duration,
    has_plain_messages: bool,
}

impl Configuration {
    /// A client for `url`, in lockcore's format, whose watchdog renews for `watchdog`.
    #[must_use]
    pub fn new(url: impl Into<String>, watchdog: Duration) -> Self {
        let url = url.into();
        Self { url, watchdog, fair_wait: Duration::ZERO, has_plain_messages: false }
    }

    /// How long waiters for fair locks keep a place: `fairLockWaitTimeout`.
    #[must_use]
    pub fn fair_wait(mut self, fair_wait: Duration) -> Self {
        self.fair_wait = fair_wait;
        self
    }

    /// Publishes with `PUBLISH` on a cluster as well: `ShardedSubscriptionMode.OFF`.
    #[must_use]
    pub fn plain_messages(mut self) -> Self {
        self.has_plain_messages = true;
        self
    }

    pub(crate) fn wire(&self) -> [String; 4] {
        let [watchdog, fair_wait] =
            [self.watchdog, self.fair_wait].map(|span| span.as_millis().to_string());
        let mode = if self.has_plain_messages { "OFF" } else { "AUTO" };
        [self.url.clone(), watchdog, fair_wait, mode.to_owned()]
    }
}

/// A Redisson instance: a separate client, as if in another Java service. [`close`](Self::close)
/// it; a dropped one is closed as well, but in the background.
#[derive(Debug)]
pub struct Redisson {
    java: Java,
    id: String,
}

impl Redisson {
    pub(crate) fn new(java: Java, id: String) -> Self {
        Self { java, id }
    }

    /// The id of the client, the prefix of the owners of its holds.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A new thread, for reentrant locks.
    #[must_use]
    pub fn thread(&self) -> JavaThread {
        self.thread_for(Kind::Reentrant)
    }

    /// A new thread, for locks of a kind.
    #[must_use]
    pub fn thread_for(&self, kind: Kind) -> JavaThread {
        JavaThread::new(self.java.clone(), self.id.clone(), kind)
    }

    /// Closes the client. Its holds stay until their leases end.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn close(self) -> Result<(), JavaError> {
        self.java.call("control", "close", &[&self.id]).await.map(drop)
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        // The call sends the request; a client that is closed already answers that it does not
        // exist.
        drop(self.java.call("control", "close", &[&self.id]));
    }
}
