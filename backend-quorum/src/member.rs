//! [`Member`]: one store of the quorum, and its known health.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::FutureExt;
use lockcore::{BackendError, BackendErrorKind, backend::Backend};
use tokio::time::{Instant, timeout};

use crate::acquire::GRACE;

/// How long a member that was late or failed is not waited for if a majority is enough.
const LATE: Duration = Duration::from_secs(1);

/// A quick answer takes at most this long, or at most twice as long as the others have taken.
/// Clients that keep each other out do not wait for a slow member.
const QUICK: Duration = Duration::from_millis(50);

/// A set of members, by their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberSet(u64);

impl MemberSet {
    /// The greatest number of members that a set can have.
    pub(crate) const MAX: usize = 63;

    pub(crate) fn of(member: usize) -> Self {
        Self(1 << member)
    }

    pub(crate) fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(crate) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub(crate) fn contains(self, member: usize) -> bool {
        self.0 & (1 << member) != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..=Self::MAX).filter(move |member| self.contains(*member))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl FromIterator<usize> for MemberSet {
    fn from_iter<I: IntoIterator<Item = usize>>(members: I) -> Self {
        members.into_iter().fold(Self::default(), |all, member| all.with(Self::of(member)))
    }
}

/// One store of the quorum.
pub(crate) struct Member {
    /// Its number, and its name if it has one.
    label: String,
    /// Set once the member is connected.
    backend: OnceLock<Arc<dyn Backend>>,
    patience: Duration,
    rejoin_after: Duration,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    late_until: Option<Instant>,
    /// How long its last answer took.
    last_took: Duration,
    /// Since when it has failed, if it has not answered since.
    failing_since: Option<Instant>,
    /// Set if that was reported.
    is_reported: bool,
    /// Set if it has failed with a connection error, and not answered since. This and the next
    /// field are not used for a store that can tell when it was replaced.
    is_away: bool,
    /// When it answered again.
    back_since: Option<Instant>,
    /// When it was connected, if it was down before, since it cannot report its state before that.
    joined: Option<Instant>,
    /// The reason why it is not connected.
    not_connected: Option<BackendError>,
}

impl Health {
    /// How long it has been answering again, if it was ever away.
    fn back_for(&self) -> Option<Duration> {
        match self.is_away {
            true => Some(Duration::ZERO),
            false => self.back_since.map(|since| since.elapsed()),
        }
    }
}

impl Member {
    pub(crate) fn new(label: String, patience: Duration, rejoin_after: Duration) -> Self {
        Self { label, backend: OnceLock::new(), patience, rejoin_after, health: Mutex::default() }
    }

    /// How messages call it.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The store, if it is connected.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, BackendError> {
        self.backend.get().cloned().ok_or_else(|| {
            let error = self.health().not_connected.clone();
            let error = error.unwrap_or_else(|| {
                BackendError::new(BackendErrorKind::Connection, "it is not connected yet")
            });
            error.not_applied()
        })
    }

    /// Notes that the store is connected.
    pub(crate) fn connected(&self, backend: Arc<dyn Backend>) {
        let mut health = self.health();
        health.joined = health.is_away.then(Instant::now);
        let _ = self.backend.set(backend);
    }

    /// Notes that the store could not be connected.
    pub(crate) fn not_connected(&self, error: BackendError) {
        let mut health = self.health();
        // Whatever the reason, it may be another store by the time it is connected.
        health.is_away = true;
        health.not_connected = Some(error);
    }

    /// Waits for an answer about something other than holds, for as long as it may take. It says
    /// nothing about the health of the member: a store may well have the holds and, say, take no
    /// subscriptions. A panic is a failure of this member alone.
    pub(crate) async fn other_answer<T>(
        &self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let call = AssertUnwindSafe(call).catch_unwind();
        match timeout(self.patience, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(panicked()),
            Err(_) => Err(no_answer(self.patience)),
        }
    }

    /// Waits for an answer about holds, for as long as it may take, and notes how well the member
    /// does.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let asked = Instant::now();
        let answer = self.other_answer(call).await;
        match &answer {
            // One that takes no login any more has not come back.
            Err(error) if error.is_retryable() || error.kind() == BackendErrorKind::Auth => {
                self.failed(error);
            }
            // No store was asked.
            _ if self.backend.get().is_none() => {}
            _ => self.answered(asked.elapsed()),
        }
        answer
    }

    fn answered(&self, took: Duration) {
        let mut health = self.health();
        if took <= GRACE {
            health.late_until = None;
        }
        health.last_took = took;
        let failing_since = health.failing_since.take();
        if std::mem::take(&mut health.is_away) {
            health.back_since = Some(Instant::now());
        }
        let is_reported = std::mem::take(&mut health.is_reported);
        drop(health);
        if let Some(since) = failing_since.filter(|_| is_reported) {
            let (member, away_for) = (&self.label, since.elapsed());
            tracing::info!(%member, ?away_for, "a member of the quorum answers again");
        }
    }

    fn failed(&self, error: &BackendError) {
        let (mut health, now) = (self.health(), Instant::now());
        health.late_until = Some(now + LATE);
        health.is_away |= error.kind() == BackendErrorKind::Connection;
        let since = *health.failing_since.get_or_insert(now);
        // One failure may be a broken connection, or a moment of load.
        let is_news = now - since >= LATE && !health.is_reported;
        health.is_reported |= is_news;
        drop(health);
        if is_news {
            let member = &self.label;
            tracing::warn!(%member, %error, "a member of the quorum does not answer");
        }
    }

    /// Notes that the member took longer than a majority.
    pub(crate) fn note_late(&self) {
        self.health().late_until = Some(Instant::now() + LATE);
    }

    /// Returns `true` if the member is worth waiting for.
    pub(crate) fn is_prompt(&self) -> bool {
        self.health().late_until.is_none_or(|until| until <= Instant::now())
    }

    /// Returns `true` if the last answer of the member took long, compared with the time that others
    /// have `taken`.
    pub(crate) fn is_slow(&self, taken: Duration) -> bool {
        self.health().last_took > QUICK.max(2 * taken)
    }

    /// Returns `true` if the member has failed, and not answered since.
    pub(crate) fn is_failing(&self) -> bool {
        self.health().failing_since.is_some()
    }

    /// How much longer its grants do not count because it may have been restarted without its data.
    /// `None` if they count.
    pub(crate) fn rejoins_in(&self) -> Option<Duration> {
        let known = self.backend.get().and_then(|backend| backend.intact_for());
        let health = self.health();
        let since = match known {
            Some(intact_for) => health.joined.map_or(intact_for, |at| at.elapsed().min(intact_for)),
            None => health.back_for()?,
        };
        let left = self.rejoin_after.saturating_sub(since);
        (!left.is_zero()).then_some(left)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The backend may have much to show, so it is left out.
impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("label", &self.label)
            .field("is_connected", &self.backend.get().is_some())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

pub(crate) fn panicked() -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, "its backend panicked").maybe_applied()
}

pub(crate) fn no_answer(after: Duration) -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, format!("no answer within {after:?}"))
}
