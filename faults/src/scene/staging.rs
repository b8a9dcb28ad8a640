//! Locks with known holders and waiters, and what happens to them.

use std::time::{Duration, Instant};

use lockcore_testkit::{Event, EventLog, Operations, checks, span};

use super::{
    Scene,
    losses::{Loss, losses},
};
use crate::{
    deployment::name_at_home,
    protocol::{Answer, Order, Place, Result, failure},
};

impl Scene {
    /// A lock of each kind that is used for one purpose only.
    pub(crate) fn staged(&self, purpose: &str) -> Vec<Place> {
        let kinds = self.setup.kinds.iter();
        kinds
            .map(|kind| Place {
                kind: *kind,
                name: name_at_home(&format!("{purpose}-{}", kind.short())),
            })
            .collect()
    }
    /// Makes `holder` hold a lock of each kind, and `waiter` wait for them.
    pub(crate) async fn stage(
        &mut self,
        purpose: &str,
        holder: usize,
        waiter: Option<usize>,
    ) -> Result<Vec<Place>> {
        let places = self.staged(purpose);
        for place in &places {
            self.clients[holder].order(Order::Hold(place.clone())).await?;
            if let Some(waiter) = waiter {
                self.clients[waiter].order(Order::Wait(place.clone())).await?;
            }
        }
        self.sleep(100).await;
        Ok(places)
    }
    /// Releases the staged locks of a client, and returns the failures.
    pub(crate) async fn release(&mut self, index: usize) -> Result<Vec<(String, Option<String>)>> {
        match self.clients[index].order(Order::Release).await? {
            Answer::Released(released) => Ok(released),
            answer => Err(failure(format!("not an answer to a release: {answer:?}"))),
        }
    }

    /// Releases the staged locks of a client, which must succeed.
    pub(crate) async fn release_well(&mut self, index: usize) -> Result<()> {
        for (name, failure) in self.release(index).await? {
            if let Some(failure) = failure {
                self.finding(format!("the release of `{name}` failed: {failure}"));
            }
        }
        Ok(())
    }

    /// The reported losses at these places.
    pub(crate) fn lost(&self, places: &[Place]) -> Result<Vec<Loss>> {
        let mut lost = losses(&Operations::of(&self.events()?));
        lost.retain(|loss| places.iter().any(|place| place.name == loss.name));
        Ok(lost)
    }

    /// Fails if the loss of one of these places was reported, unless the machine caused it.
    pub(crate) fn expect_held(&mut self, places: &[Place]) -> Result<()> {
        let mut lost = self.lost(places)?;
        lost.retain(|loss| !self.stood_still(loss.told));
        if !lost.is_empty() {
            let names: Vec<_> = lost.iter().map(|loss| &loss.name).collect();
            self.finding(format!("I1: holds were lost that should have been kept: {names:?}"));
        }
        self.explain(&lost)
    }

    /// Returns `true` if the machine stood still for so long before a loss that there was no time
    /// for a renewal: one is due after a third of the lease, and may remain unanswered for a
    /// timeout.
    pub(super) fn stood_still(&self, lost: u64) -> bool {
        let lease = self.setup.lease;
        let left = (lease * 2 / 3).saturating_sub(self.setup.response_timeout);
        self.stall.within(lost.saturating_sub(span(lease)), lost) > left
    }

    /// All events that have been logged so far.
    pub(crate) fn events(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                events.extend(EventLog::read(&path)?);
            }
        }
        Ok(events)
    }

    /// The longest time from `t` until one of the places was taken over.
    pub(crate) fn takeover(&self, places: &[Place], t: u64) -> Result<Option<Duration>> {
        let operations = Operations::of(&self.events()?);
        let all: Option<Vec<_>> = places
            .iter()
            .map(|place| checks::takeover_after(&operations, &place.name, t))
            .collect();
        Ok(all.and_then(|all| all.into_iter().max()))
    }

    /// The longest time from `t` until a holder of the places was told of the loss.
    pub(crate) fn loss_notice(&self, places: &[Place], t: u64) -> Result<Option<Duration>> {
        let operations = Operations::of(&self.events()?);
        let told = places.iter().map(|place| {
            let mut of_place =
                operations.granted().filter(|operation| operation.name == place.name);
            of_place
                .find_map(|operation| operation.lost)
                .map(|lost| Duration::from_nanos(lost.saturating_sub(t)))
        });
        Ok(told.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()))
    }

    /// Waits until every holder of the places was told of the loss.
    pub(crate) async fn until_lost(
        &self,
        places: &[Place],
        t: u64,
        at_most: Duration,
    ) -> Result<Option<Duration>> {
        self.until_known(at_most, || self.loss_notice(places, t)).await
    }

    /// Waits until every place was taken over.
    pub(crate) async fn until_taken(
        &self,
        places: &[Place],
        t: u64,
        at_most: Duration,
    ) -> Result<Option<Duration>> {
        self.until_known(at_most, || self.takeover(places, t)).await
    }

    /// Reads the logs until they have the answer.
    pub(crate) async fn until_known(
        &self,
        at_most: Duration,
        look: impl Fn() -> Result<Option<Duration>>,
    ) -> Result<Option<Duration>> {
        let start = Instant::now();
        loop {
            let known = look()?;
            if known.is_some() || start.elapsed() > at_most {
                return Ok(known);
            }
            self.sleep(50).await;
        }
    }
}
