//! [`Redisson`]: a client of Redisson's.

use std::time::Duration;

use crate::{java::Java, kind::Kind, reply::JavaError, thread::JavaThread};

/// The lease of a hold of Java's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// That of the client, renewed by its watchdog. Permits have none: they have no end then.
    Watchdog,
    /// Not renewed.
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

/// A Redisson instance: a client of its own, as another Java service would be. [`close`](Self::close) it; one that is dropped
/// is closed as well, without anybody waiting for it.
#[derive(Debug)]
pub struct Redisson {
    java: Java,
    id: String,
}

impl Redisson {
    pub(crate) fn new(java: Java, id: String) -> Self {
        Self { java, id }
    }

    /// Its id, with which the owners of its holds begin.
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
        // The request is sent by the call; a client that is closed already answers that it does not exist.
        drop(self.java.call("control", "close", &[&self.id]));
    }
}
