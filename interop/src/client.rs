//! [`Redisson`] and [`JavaThread`]: whom Redisson's holds belong to.

use std::{future::Future, pin::Pin, str::FromStr, time::Duration};

use crate::{java::Java, reply::JavaError};

/// What Java will answer. The request has been sent, whether or not this is polled; [`JavaError::Thrown`] is what it threw.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, JavaError>> + Send>>;

/// Which of Redisson's locks is meant. The other kinds of `RLock` have the same verbs, and belong here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `RedissonClient.getLock`.
    Reentrant,
    /// `RedissonClient.getFairLock`.
    Fair,
}

impl Kind {
    fn wire(self) -> &'static str {
        match self {
            Self::Reentrant => "reentrant",
            Self::Fair => "fair",
        }
    }
}

/// The lease of a hold of Java's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// That of the client, renewed by its watchdog.
    Watchdog,
    /// Not renewed.
    Fixed(Duration),
}

impl Lease {
    fn wire(self) -> String {
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

    /// A new thread.
    #[must_use]
    pub fn thread(&self) -> JavaThread {
        let name = format!("thread-{}", self.java.number());
        JavaThread { java: self.java.clone(), client: self.id.clone(), name, kind: Kind::Reentrant }
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

/// A thread of a Redisson client. What it is asked is done in that order, at once and whether or not the futures are polled; a
/// call that waits keeps later ones of this thread waiting, but none of another.
#[derive(Clone, Debug)]
pub struct JavaThread {
    java: Java,
    client: String,
    name: String,
    kind: Kind,
}

impl JavaThread {
    /// The same thread, for the locks of another kind.
    #[must_use]
    pub fn kind(&self, kind: Kind) -> Self {
        Self { kind, ..self.clone() }
    }

    /// `RLock.lock`; the owner, as Redisson writes it on the wire.
    pub fn lock(&self, name: &str, lease: Lease) -> Answer<String> {
        self.call("lock", name, &[&lease.wire()])
    }

    /// `RLock.tryLock`, which waits for at most `wait`.
    pub fn try_lock(&self, name: &str, wait: Duration, lease: Lease) -> Answer<bool> {
        parsed(self.call("tryLock", name, &[&wait.as_millis().to_string(), &lease.wire()]))
    }

    /// `RLock.unlock`.
    pub fn unlock(&self, name: &str) -> Answer<()> {
        let unlocked = self.call("unlock", name, &[]);
        Box::pin(async move { unlocked.await.map(drop) })
    }

    /// `RLock.forceUnlock`: whether somebody held it.
    pub fn force_unlock(&self, name: &str) -> Answer<bool> {
        parsed(self.call("forceUnlock", name, &[]))
    }

    /// `RLock.isLocked`.
    pub fn is_locked(&self, name: &str) -> Answer<bool> {
        parsed(self.call("isLocked", name, &[]))
    }

    /// `RLock.isHeldByCurrentThread`.
    pub fn is_held(&self, name: &str) -> Answer<bool> {
        parsed(self.call("isHeld", name, &[]))
    }

    /// `RLock.getHoldCount`: how often this thread has entered.
    pub fn hold_count(&self, name: &str) -> Answer<u32> {
        parsed(self.call("holdCount", name, &[]))
    }

    /// `RLock.remainTimeToLive`: what is left of the lease, `None` if nobody holds it.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn remaining(&self, name: &str) -> Result<Option<Duration>, JavaError> {
        let left: i64 = parsed(self.call("remainTimeToLive", name, &[])).await?;
        match left {
            -2 => Ok(None),
            left => u64::try_from(left)
                .map(|left| Some(Duration::from_millis(left)))
                .map_err(|_| JavaError::Protocol(format!("remainTimeToLive {left}"))),
        }
    }

    /// Takes the lock `rounds` times and does inside, under `keys`, what two at a time would spoil: see `Contention.java`. How often somebody else
    /// was inside, and how often the hold before was the other side's.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn contend(&self, name: &str, keys: &str, rounds: u32) -> Result<(u64, u64), JavaError> {
        let answer = self.call("contend", name, &[keys, &rounds.to_string()]).await?;
        let unknown = || JavaError::Protocol(answer.clone());
        let (overlaps, switches) = answer.split_once(' ').ok_or_else(unknown)?;
        Ok((overlaps.parse().map_err(|_| unknown())?, switches.parse().map_err(|_| unknown())?))
    }

    fn call(&self, verb: &str, name: &str, arguments: &[&str]) -> Answer<String> {
        let arguments = [&[self.client.as_str(), self.kind.wire(), name], arguments].concat();
        Box::pin(self.java.call(&self.name, verb, &arguments))
    }
}

fn parsed<T: FromStr>(answer: Answer<String>) -> Answer<T> {
    Box::pin(async move {
        let answer = answer.await?;
        answer.parse().map_err(|_| JavaError::Protocol(answer))
    })
}
