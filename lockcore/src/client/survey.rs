//! The graph of who waits for whom, from the records of all clients.

use std::{collections::BTreeSet, time::Duration};

use super::shared::Client;
use crate::{
    BackendError, LockError, LockName, LockState,
    backend::Start,
    waits::{Account, Candidate, ClientRecord, Reading, Waits, is_client_id},
};

/// The time before the second look at a possible cycle, and between further looks. A client in a
/// cycle looks at itself every second, and begins a second such look after the first one was
/// answered.
const SECOND_LOOK: Duration = Duration::from_millis(1500);
const FURTHER_LOOK: Duration = Duration::from_millis(250);

/// The most looks after the first one. Together they take 3 s.
const MOST_LOOKS: usize = 7;

/// The limits on the records, bytes and pages that are read, since anybody who can write to the
/// store could write more.
const MOST_RECORDS: usize = 10_000;
const MOST_BYTES: usize = 64 * 1024 * 1024;
const MOST_PAGES: usize = 20_000;

/// The limits on the locks that the store is asked about at one look, and on the searches.
const MOST_LOCKS: usize = 1000;
const MOST_SEARCHES: usize = 100;

impl Client {
    /// Reads who waits for whom. A possible cycle is looked at again, until all clients in it have
    /// reported it once more, or have had the time to do so.
    pub(crate) async fn waits(&self) -> Result<Waits, LockError> {
        let mut first = self.read_records().await?;
        let mut cycles = self.true_cycles(&mut first, &mut Account::default()).await?;
        if cycles.is_empty() {
            return Ok(self.report(first, cycles));
        }
        let (mut reading, mut may_be, mut pause) = (Reading::default(), 0, SECOND_LOOK);
        for _ in 0..MOST_LOOKS {
            tokio::time::sleep(std::mem::replace(&mut pause, FURTHER_LOOK)).await;
            reading = self.read_records().await?;
            let (mut there, mut account) = (reading.also_in(&first), Account::default());
            may_be = self.true_cycles(&mut there, &mut account).await?.len();
            there.retain_confirmed(&first);
            cycles = self.true_cycles(&mut there, &mut account).await?;
            reading.is_partial |= first.is_partial || there.is_partial;
            if cycles.len() >= may_be {
                break;
            }
        }
        // Dropped are the cycles with a client that did not report them again, perhaps because of a
        // slow store.
        reading.is_partial |= cycles.len() < may_be;
        Ok(self.report(reading, cycles))
    }

    fn report(&self, reading: Reading, cycles: Vec<Candidate>) -> Waits {
        reading.report(cycles, self.presence.unix(self.clock.now()))
    }

    /// The records of all clients, up to the limits, and the current state of this client.
    async fn read_records(&self) -> Result<Reading, LockError> {
        let Some(directory) = self.backend.directory() else {
            return Err(BackendError::unsupported("records of clients").into());
        };
        let (mut reading, mut start) = (Reading::default(), Start::Beginning);
        let (mut pages, mut bytes) = (0, 0);
        'pages: loop {
            let page = self.answer(directory.clients(&start)).await?;
            for (id, text) in page.entries {
                if id == self.client_id() {
                    continue;
                }
                bytes += text.len();
                if reading.len() >= MOST_RECORDS || bytes > MOST_BYTES {
                    reading.is_partial = true;
                    break 'pages;
                }
                let record = ClientRecord::parse(&text).filter(|_| is_client_id(&id));
                reading.add(id, record);
            }
            pages += 1;
            match page.next {
                Some(next) if pages < MOST_PAGES => start = Start::At(next),
                Some(_) => {
                    reading.is_partial = true;
                    break;
                }
                None => break,
            }
        }
        let scan = self.scan(self.clock.now());
        reading.add_own(self.client_id(), self.presence.record().with(scan.waits, scan.omitted));
        Ok(reading)
    }

    /// The cycles that the store does not refute. A refuted wait or hold is taken out before the
    /// next search, so that it hides no other cycle. `account` collects the store's answers of this
    /// look.
    async fn true_cycles(
        &self,
        reading: &mut Reading,
        account: &mut Account,
    ) -> Result<Vec<Candidate>, LockError> {
        let mut cycles = Vec::new();
        for _ in 0..MOST_SEARCHES {
            cycles = reading.cycles(account);
            let locks: BTreeSet<String> =
                cycles.iter().flat_map(Candidate::locks).map(str::to_owned).collect();
            let mut is_settled = true;
            for lock in locks.into_iter().filter(|lock| !account.knows(lock)).collect::<Vec<_>>() {
                if account.len() >= MOST_LOCKS {
                    break;
                }
                let state = self.look_at_store(&lock).await?;
                account.add(lock, state);
                is_settled = false;
            }
            if is_settled {
                break;
            }
        }
        let found = cycles.len();
        cycles.retain(|cycle| cycle.is_confirmed(account));
        reading.is_partial |= cycles.len() < found;
        Ok(cycles)
    }

    /// The state of a lock. `None` if the store refuses to tell: records are untrusted, and may
    /// name anything.
    async fn look_at_store(&self, lock: &str) -> Result<Option<LockState>, LockError> {
        let Ok(name) = LockName::new(lock) else { return Ok(None) };
        match self.answer(self.backend.inspect(&name)).await {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_retryable() => Err(error.with_lock(&name).into()),
            Err(_) => Ok(None),
        }
    }
}
