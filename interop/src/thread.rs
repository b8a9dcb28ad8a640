//! [`JavaThread`]: the owner of Redisson's holds.

use std::{future::Future, pin::Pin, str::FromStr, time::Duration};

use crate::{client::Lease, java::Java, kind::Kind, reply::JavaError};

/// The answer of Java. The request has been sent, whether or not this is polled; an exception is
/// [`JavaError::Thrown`].
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, JavaError>> + Send>>;

/// A thread of a Redisson client. Its requests are carried out in order, starting at once, whether
/// or not the futures are polled; a call that waits delays later ones of this thread, but none of
/// another.
#[derive(Clone, Debug)]
pub struct JavaThread {
    java: Java,
    client: String,
    name: String,
    kind: Kind,
}

impl JavaThread {
    pub(crate) fn new(java: Java, client: String, kind: Kind) -> Self {
        let name = format!("thread-{}", java.number());
        Self { java, client, name, kind }
    }

    /// The same thread, for the locks of another kind.
    #[must_use]
    pub fn kind(&self, kind: Kind) -> Self {
        Self { kind, ..self.clone() }
    }

    /// `RLock.lock` or `acquire` of a semaphore; returns the owner, as Redisson writes it on the
    /// wire.
    pub fn acquire(&self, name: &str, lease: Lease) -> Answer<String> {
        self.call("acquire", name, &[&lease.wire()])
    }

    /// `RLock.tryLock` or `tryAcquire` of a semaphore, which wait for at most `wait`.
    pub fn try_acquire(&self, name: &str, wait: Duration, lease: Lease) -> Answer<bool> {
        parsed(self.call("tryAcquire", name, &[&wait.as_millis().to_string(), &lease.wire()]))
    }

    /// `RFencedLock.lockAndGetToken`.
    pub fn acquire_fenced(&self, name: &str) -> Answer<u64> {
        parsed(self.java.call(&self.name, "lockAndGetToken", &[&self.client, name]))
    }

    /// `RLock.unlock`, or `release` of the permit that this thread has acquired last.
    pub fn release(&self, name: &str) -> Answer<()> {
        done(self.call("release", name, &[]))
    }

    /// `RLock.forceUnlock`; returns `true` if the lock was held.
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

    /// `RLock.getHoldCount`: the hold count of this thread.
    pub fn hold_count(&self, name: &str) -> Answer<u32> {
        parsed(self.call("holdCount", name, &[]))
    }

    /// `RLock.remainTimeToLive`: the remaining lease, `None` if the lock is free.
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

    /// Does what a service does at its start: `trySetPermits` of a semaphore, nothing for a lock.
    /// Returns `true` if there was no semaphore yet.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn prepare(&self, name: &str) -> Result<bool, JavaError> {
        match self.kind.limit() {
            Some(permits) => {
                parsed(self.call("trySetPermits", name, &[&permits.to_string()])).await
            }
            None => Ok(false),
        }
    }

    /// `availablePermits` of either semaphore.
    pub fn available_permits(&self, name: &str) -> Answer<i64> {
        parsed(self.call("availablePermits", name, &[]))
    }

    /// `RPermitExpirableSemaphore.getPermits`: the total number, taken or not.
    pub fn permits(&self, name: &str) -> Answer<i64> {
        parsed(self.call("getPermits", name, &[]))
    }

    /// `RPermitExpirableSemaphore.acquiredPermits`.
    pub fn acquired_permits(&self, name: &str) -> Answer<i64> {
        parsed(self.call("acquiredPermits", name, &[]))
    }

    /// `RPermitExpirableSemaphore.setPermits`.
    pub fn set_permits(&self, name: &str, permits: u32) -> Answer<()> {
        done(self.call("setPermits", name, &[&permits.to_string()]))
    }

    /// `RSemaphore.release` of permits that others have taken.
    pub fn release_permits(&self, name: &str, permits: u32) -> Answer<()> {
        done(self.call("releasePermits", name, &[&permits.to_string()]))
    }

    /// `RCountDownLatch.trySetCount`; returns `true` if there was no count.
    pub fn set_count(&self, name: &str, count: u32) -> Answer<bool> {
        parsed(self.of_latch("trySetCount", name, &[&count.to_string()]))
    }

    /// `RCountDownLatch.countDown`, this many times.
    pub fn count_down(&self, name: &str, times: u32) -> Answer<()> {
        done(self.of_latch("countDown", name, &[&times.to_string()]))
    }

    /// `RCountDownLatch.getCount`.
    pub fn count(&self, name: &str) -> Answer<u32> {
        parsed(self.of_latch("getCount", name, &[]))
    }

    /// `RCountDownLatch.await`; returns `true` if it was open in time.
    pub fn wait_for_latch(&self, name: &str, timeout: Duration) -> Answer<bool> {
        parsed(self.of_latch("await", name, &[&timeout.as_millis().to_string()]))
    }

    /// `RCountDownLatch.delete`; returns `true` if there was a count.
    pub fn delete_latch(&self, name: &str) -> Answer<bool> {
        parsed(self.of_latch("deleteLatch", name, &[]))
    }

    /// Acquires the kinds in `holds`, with their weights, in turn, `rounds` times, and does work
    /// inside, under `keys`, that more than `limit` at a time would spoil: see `Contention.java`.
    /// Returns how often it was spoilt, how often the previous hold was the other side's, and the
    /// maximum number inside together.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn contend(
        &self,
        holds: &[(Kind, u32)],
        name: &str,
        keys: &str,
        rounds: u32,
        limit: u32,
    ) -> Result<[u64; 3], JavaError> {
        let holds: Vec<_> =
            holds.iter().map(|(kind, weight)| format!("{}:{weight}", kind.wire())).collect();
        let arguments =
            [&self.client, &holds.join(","), name, keys, &rounds.to_string(), &limit.to_string()];
        let answer = self.java.call(&self.name, "contend", &arguments).await?;
        let numbers: Result<Vec<u64>, _> = answer.split(' ').map(str::parse).collect();
        numbers
            .ok()
            .and_then(|numbers| <[u64; 3]>::try_from(numbers).ok())
            .ok_or(JavaError::Protocol(answer))
    }

    fn call(&self, verb: &str, name: &str, arguments: &[&str]) -> Answer<String> {
        let arguments = [&[self.client.as_str(), self.kind.wire(), name], arguments].concat();
        Box::pin(self.java.call(&self.name, verb, &arguments))
    }

    fn of_latch(&self, verb: &str, name: &str, arguments: &[&str]) -> Answer<String> {
        let arguments = [&[self.client.as_str(), name], arguments].concat();
        Box::pin(self.java.call(&self.name, verb, &arguments))
    }
}

fn parsed<T: FromStr>(
    answer: impl Future<Output = Result<String, JavaError>> + Send + 'static,
) -> Answer<T> {
    Box::pin(async move {
        let answer = answer.await?;
        answer.parse().map_err(|_| JavaError::Protocol(answer))
    })
}

fn done(answer: Answer<String>) -> Answer<()> {
    Box::pin(async move { answer.await.map(drop) })
}
