//! [`RecentReleases`]: releases that a failover may have undone.
//!
//! A failover by hand promotes the replica first. For a second or two, the old primary goes on
//! answering, and what it answers is lost: a lock that was released there is still held at the new
//! primary. So the releases of the last seconds are repeated there. A release names its hold, so it
//! does no harm to the next one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use lockcore::backend::ReleaseRequest;
use tokio::{sync::watch, time::Instant};

use crate::{
    dispatch::release_call,
    keys::LockKeys,
    server::{CommandConnection, Identity, Server},
};

/// How much older than the last one a release may be.
const KEPT: Duration = Duration::from_secs(3);
/// How long the next primary is looked for. After that, most leases have ended.
const SOUGHT: Duration = Duration::from_secs(60);
/// How many are remembered at most: some 3 MB.
const MOST: usize = 10_000;

/// The last releases that the primary has answered.
#[derive(Debug, Default)]
pub(crate) struct RecentReleases {
    /// Critical sections are short and do not await, so this is not tokio's mutex.
    releases: Mutex<VecDeque<(Instant, ReleaseRequest)>>,
}

impl RecentReleases {
    /// Remembers the releases of `server`, and repeats them wherever it moves.
    pub(crate) fn of(server: &Arc<Server>, key_prefix: &Arc<str>) -> Arc<Self> {
        let releases = Arc::new(Self::default());
        let repeating = Repeater {
            server: Arc::downgrade(server),
            releases: releases.clone(),
            key_prefix: key_prefix.clone(),
        };
        let identity = server.current().map(|connection| connection.identity.clone());
        tokio::spawn(repeating.follow(server.changes(), identity));
        releases
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, ReleaseRequest)>> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a release that was answered.
    pub(crate) fn note(&self, request: &ReleaseRequest) {
        if request.remaining > 0 {
            // Repeated later, it would undo what has been acquired or released since.
            return;
        }
        let now = Instant::now();
        let mut releases = self.lock();
        while let Some((answered, _)) = releases.front()
            && (now - *answered > KEPT || releases.len() >= MOST)
        {
            releases.pop_front();
        }
        releases.push_back((now, request.clone()));
    }

    /// Whether there are any, and not only old ones.
    fn are_recent(&self) -> bool {
        self.lock().back().is_some_and(|(answered, _)| answered.elapsed() <= SOUGHT)
    }

    /// Takes the last ones before the primary failed, however long ago that is.
    fn take(&self) -> Vec<ReleaseRequest> {
        let releases = std::mem::take(&mut *self.lock());
        releases.into_iter().map(|(_, request)| request).collect()
    }
}

/// Repeats the releases. Ends with the server.
struct Repeater {
    server: Weak<Server>,
    releases: Arc<RecentReleases>,
    key_prefix: Arc<str>,
}

impl Repeater {
    async fn follow(self, mut changes: watch::Receiver<()>, mut last: Option<Identity>) {
        while changes.changed().await.is_ok() {
            let Some(server) = self.server.upgrade() else { return };
            // A client that is idle would not connect before its next renewal. After a failed
            // attempt, the next change is at hand.
            let connection = match server.current() {
                None if self.releases.are_recent() => server.connection().await.ok(),
                current => current,
            };
            let Some(connection) = connection else { continue };
            let identity = connection.identity.clone();
            if last.replace(identity).is_some_and(|last| last.contradicts(&connection.identity)) {
                self.repeat(&connection).await;
            }
        }
    }

    async fn repeat(&self, connection: &CommandConnection) {
        let releases = self.releases.take();
        let repeating = releases.iter().map(async |request| {
            let keys = LockKeys::new(&self.key_prefix, &request.name)?;
            connection.call(&release_call(&keys, request)?).await
        });
        let failed = join_all(repeating).await.iter().filter(|outcome| outcome.is_err()).count();
        tracing::debug!(releases = releases.len(), failed, "repeated the last releases");
    }
}
