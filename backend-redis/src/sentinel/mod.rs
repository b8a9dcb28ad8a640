//! Redis Sentinel: the Sentinels tell where the primary is.
//!
//! - [`group`] knows the Sentinels, and asks one after the other where the primary is. It is asked
//!   for every connection that is opened.
//! - [`answer`] is the answer of a Sentinel.
//! - [`follow`] is told by a Sentinel when there is another primary. Connections to the old one are
//!   then given up, and so are attempts to open one.
//! - [`releases`] are repeated at the new primary.

mod answer;
mod follow;
mod group;
mod releases;
pub(crate) mod url;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockcore::{BackendError, backend::async_trait};
use tokio::sync::watch;

pub(crate) use self::{answer::Answer, group::SentinelGroup, releases::RecentReleases};
use crate::server::address::{Locate, Place};

/// The pauses before all Sentinels are asked again, if they contradict each other: they double up to
/// the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The least time that all Sentinels have to answer.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(400);

/// The primary of one group of Sentinels.
#[derive(Debug)]
pub(crate) struct SentinelAddress {
    group: Arc<SentinelGroup>,
    /// The last answer that the task which follows the primary has received. The task ends with its
    /// runtime or with this receiver. Critical sections are short and do not await.
    followed: Mutex<Option<watch::Receiver<Option<Answer>>>>,
}

impl SentinelAddress {
    pub(crate) fn new(group: SentinelGroup) -> Self {
        Self { group: Arc::new(group), followed: Mutex::default() }
    }

    pub(crate) fn group(&self) -> &Arc<SentinelGroup> {
        &self.group
    }

    /// Returns the receiver of the answers. Starts the task if none runs.
    fn followed(&self) -> watch::Receiver<Option<Answer>> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        match followed.as_ref().filter(|followed| followed.has_changed().is_ok()) {
            Some(followed) => followed.clone(),
            None => {
                let (sender, receiver) = watch::channel(None);
                tokio::spawn(follow::follow(self.group.clone(), sender));
                followed.insert(receiver).clone()
            }
        }
    }

    /// Returns the next answer of this kind by the Sentinel that is followed.
    async fn told(&self, mut is_expected: impl FnMut(&Answer) -> bool) -> Answer {
        loop {
            let mut followed = self.followed();
            let expected = |answer: &Option<Answer>| answer.as_ref().is_some_and(&mut is_expected);
            let told = followed.wait_for(expected).await;
            // Otherwise the task ended with its runtime. The next one runs on this runtime.
            if let Ok(Some(answer)) = told.as_deref() {
                return answer.clone();
            }
        }
    }

    /// Waits until the Sentinels name another primary, although no epoch says which answer is
    /// newer: `SENTINEL MONITOR` begins with the first epoch again, and the user may have no right
    /// to see epochs. It may as well be that the Sentinel that is followed is behind.
    async fn abandoned(&self, place: &Place) {
        // As many as were known when one of them last named this place.
        let mut known = place.sentinels;
        loop {
            let other = self
                .told(|answer| {
                    let names = answer.names(&place.info);
                    if names {
                        known = answer.sentinels();
                    }
                    !names
                })
                .await;
            let has_epochs = other.epoch.and(place.epoch).is_some();
            tokio::select! {
                _ = self.told(|answer| answer.names(&place.info)) => {}
                () = self.left(place, known, has_epochs) => return,
            }
        }
    }

    /// Asks all Sentinels until they have left `place`, more and more rarely, and whenever the one
    /// that is followed has news, for example of another Sentinel.
    ///
    /// With epochs, another server is known to be newer without this, and they have to say so
    /// twice: during a failover, only the one that leads it may know the new primary, and may have
    /// no time to answer. Without, they are asked often at first, because they learn of a failover
    /// one after the other.
    async fn left(&self, place: &Place, known: usize, has_epochs: bool) {
        let shortest = if has_epochs { follow::ASK_EVERY } else { SHORTEST_PAUSE };
        let (mut pause, mut is_enough) = (shortest, !has_epochs);
        loop {
            // The task may have ended with its runtime, and another one run since.
            let mut followed = self.followed();
            followed.mark_unchanged();
            // A Sentinel that is silent, perhaps with the primary on its host, delays the next look
            // no longer than a pause does.
            let patience = pause.max(SHORTEST_PATIENCE);
            let has_left = self.group.has_left(place, known, has_epochs, patience).await;
            if has_left && is_enough {
                return;
            }
            is_enough = has_left || !has_epochs;
            if has_left {
                pause = shortest;
            }
            tokio::time::sleep(shortest).await;
            let rest = pause.saturating_sub(shortest);
            let _ = tokio::time::timeout(rest, followed.changed()).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

#[async_trait]
impl Locate for SentinelAddress {
    async fn locate(&self) -> Result<Place, BackendError> {
        let place = self.group.place(self.group.ask().await?);
        // The Sentinel that has answered may be behind the one that is followed.
        let told = self.followed().borrow().clone();
        let newer = told.filter(|answer| answer.succeeds(&place.info, place.epoch));
        Ok(newer.map_or(place, |answer| self.group.place(answer)))
    }

    async fn moved(&self, place: &Place) {
        tokio::select! {
            biased;
            _ = self.told(|answer| answer.succeeds(&place.info, place.epoch)) => {}
            () = self.abandoned(place) => {}
        }
    }

    fn reject(&self, place: &Place) {
        if let Some(sentinel) = &place.named_by {
            self.group.reject(sentinel, &place.info);
        }
    }
}
