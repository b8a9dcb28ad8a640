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

use std::sync::{Arc, Mutex, PoisonError};

use lockcore::{BackendError, backend::async_trait};
use tokio::sync::watch;

pub(crate) use self::{answer::Answer, group::SentinelGroup, releases::RecentReleases};
use crate::server::address::{Locate, Place};

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
        let is_past = |answer: &Option<Answer>| {
            answer.as_ref().is_some_and(|answer| answer.succeeds(&place.info, place.epoch))
        };
        // An error means that the task ended with its runtime. The next one runs on this runtime.
        while self.followed().wait_for(is_past).await.is_err() {}
    }

    fn reject(&self, place: &Place) {
        if let Some(sentinel) = &place.named_by {
            self.group.ask_last(sentinel);
        }
    }
}
