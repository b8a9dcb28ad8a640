//! Who waits for whom, from the records of all clients.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::shared::Client;
use crate::{
    BackendError, LockError, LockName, LockState,
    backend::Start,
    waits::{Candidate, ClientRecord, Reading, Waits, is_client_id},
};

/// The time between two looks: a client that takes a wait back does so every second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1500);

impl Client {
    /// Who waits for whom. What looks like a cycle is looked at twice.
    pub(crate) async fn waits(&self) -> Result<Waits, LockError> {
        let mut reading = self.read_records().await?;
        let mut cycles = self.still_held(reading.cycles()).await?;
        if !cycles.is_empty() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            reading = self.read_records().await?;
            reading.retain_those_there(&mut cycles);
            cycles = self.still_held(cycles).await?;
        }
        Ok(reading.report(cycles, self.presence.unix(self.clock.now())))
    }

    /// All records, and of this client what is true now.
    async fn read_records(&self) -> Result<Reading, LockError> {
        let Some(directory) = self.backend.directory() else {
            return Err(BackendError::unsupported("records of clients").into());
        };
        let (mut reading, mut start) = (Reading::default(), Start::Beginning);
        loop {
            let page = self.answer(directory.clients(&start)).await?;
            for (id, text) in page.entries {
                if id == self.client_id() {
                    continue;
                }
                let record = ClientRecord::parse(&text).filter(|_| is_client_id(&id));
                reading.add(id, record);
            }
            match page.next {
                Some(next) => start = Start::At(next),
                None => break,
            }
        }
        let scan = self.scan(self.clock.now());
        let own = self.presence.record().with(scan.waits, scan.omitted);
        reading.add(self.client_id().to_owned(), Some(own));
        Ok(reading)
    }

    /// The cycles of which each hold is there, by the store's account.
    async fn still_held(&self, cycles: Vec<Candidate>) -> Result<Vec<Candidate>, LockError> {
        let (mut states, mut held) = (HashMap::new(), Vec::new());
        for cycle in cycles {
            if self.has_its_holds(&cycle, &mut states).await? {
                held.push(cycle);
            }
        }
        Ok(held)
    }

    async fn has_its_holds(
        &self,
        cycle: &Candidate,
        states: &mut HashMap<String, Option<Arc<LockState>>>,
    ) -> Result<bool, LockError> {
        for (_, _, held) in &cycle.links {
            let state = match states.get(&held.lock) {
                Some(state) => state.clone(),
                None => {
                    let state = self.look_at_store(&held.lock).await?.map(Arc::new);
                    states.insert(held.lock.clone(), state.clone());
                    state
                }
            };
            let is_writer = held.mode == "write";
            let is_there = state.is_some_and(|state| {
                state.holders().iter().any(|holder| {
                    let writes = holder.mode() == crate::Mode::Write;
                    holder.owner() == held.wire && writes == is_writer
                })
            });
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The state of a lock. `None` if the store refuses to tell: records come from strangers, and
    /// may name anything.
    async fn look_at_store(&self, lock: &str) -> Result<Option<LockState>, LockError> {
        let Ok(name) = LockName::new(lock) else { return Ok(None) };
        match self.answer(self.backend.inspect(&name)).await {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_retryable() => Err(error.with_lock(&name).into()),
            Err(_) => Ok(None),
        }
    }
}
