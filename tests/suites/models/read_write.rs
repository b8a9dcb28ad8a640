//! The model of read-write locks.

use lockcore::Mode;
use proptest::{
    prelude::{Just, prop_oneof},
    strategy::Strategy,
};

use crate::{
    Answer, Model, State, compare,
    holds::{Id, ModelHold, Request, lapses, requests, send},
    stores::{Difference, Differences, Store},
};

/// Either readers together, or a writer, with the readers that it let in.
#[derive(Debug)]
struct ReadWrite {
    differences: Differences,
    holds: Vec<ModelHold>,
    /// Writers that keep new readers out, and for how long.
    writers: Vec<(Id, u64)>,
    grants: usize,
}

impl ReadWrite {
    fn writer(&self) -> Option<&ModelHold> {
        self.holds.iter().find(|held| held.mode == Mode::Write)
    }

    /// The hold that the owner of `id` has on this side.
    fn hold_of(&mut self, id: Id, mode: Mode) -> Option<&mut ModelHold> {
        self.holds.iter_mut().find(|held| held.mode == mode && held.id.owner() == id.owner())
    }

    fn acquire(&mut self, request: &Request) -> Answer {
        let Request::Acquire { id, mode, lease, count, queue, within } = *request else {
            unreachable!()
        };
        let refuses_older = self.differences.has(Difference::RefusesOlderHolds);
        if let Some(held) = self.hold_of(id, mode) {
            if held.id == id {
                held.count = count;
                held.lease = held.lease.max(lease);
                let grant = held.grant;
                self.admitted(id, mode);
                return Answer::Acquired(grant);
            }
            if refuses_older && id.is_before(held.id) {
                return Answer::Held(Some(held.lease));
            }
        } else if let Some(left) = self.refused(id, mode, count, queue, within) {
            return Answer::Held(Some(left));
        }
        if count > 1 {
            return Answer::NotHeld;
        }
        self.admitted(id, mode);
        self.holds.retain(|held| held.mode != mode || held.id.owner() != id.owner());
        self.grants += 1;
        self.holds.push(ModelHold { id, mode, count, lease, grant: self.grants });
        Answer::Acquired(self.grants)
    }

    /// How long a request from outside is refused.
    fn refused(
        &mut self,
        id: Id,
        mode: Mode,
        count: u32,
        queue: Option<u64>,
        within: Option<Id>,
    ) -> Option<u64> {
        if mode == Mode::Read {
            return match self.writer() {
                Some(writer) => (within != Some(writer.id)).then_some(writer.lease),
                None => self.writers.iter().map(|(_, keep)| *keep).max().filter(|_| count == 1),
            };
        }
        let last = self.holds.iter().map(|held| held.lease).max()?;
        if self.writer().is_none()
            && let Some(keep) = queue
        {
            self.writers.retain(|(writer, _)| *writer != id);
            self.writers.push((id, keep));
        }
        Some(last)
    }

    /// A writer that has entered no longer keeps anybody out.
    fn admitted(&mut self, id: Id, mode: Mode) {
        if mode == Mode::Write {
            self.writers.retain(|(writer, _)| *writer != id);
        }
    }

    fn release(&mut self, id: Id, mode: Mode, remaining: u32) -> Answer {
        match self.hold_of(id, mode).filter(|held| held.id == id) {
            Some(held) if remaining > 0 => {
                held.count = remaining;
                Answer::StillHeld
            }
            Some(_) => {
                self.holds.retain(|held| held.mode != mode || held.id != id);
                Answer::Released
            }
            None => {
                self.admitted(id, mode);
                Answer::NotHeld
            }
        }
    }

    fn inspect(&self) -> State {
        let holders = self.holds.iter();
        let mut holders: Vec<_> = holders
            .map(|held| (held.id.owner().to_owned(), held.mode.to_string(), held.count))
            .collect();
        holders.sort();
        let remaining = self.holds.iter().map(|held| held.lease).max();
        State { holders, remaining, waiters: self.writers.len(), permits: None }
    }
}

impl Model for ReadWrite {
    type Request = Request;

    fn new(differences: Differences) -> Self {
        Self { differences, holds: Vec::new(), writers: Vec::new(), grants: 0 }
    }

    fn lapses(request: &Request) -> bool {
        lapses(request)
    }

    fn expect(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Acquire { .. } => self.acquire(request),
            Request::Renew { id, mode, lease } => {
                match self.hold_of(id, mode).filter(|held| held.id == id) {
                    Some(held) => {
                        held.lease = held.lease.max(lease);
                        Answer::Renewed
                    }
                    None => Answer::NotHeld,
                }
            }
            Request::Release { id, mode, remaining } => self.release(id, mode, remaining),
            Request::Force => Answer::Flag(!std::mem::take(&mut self.holds).is_empty()),
            Request::Inspect => Answer::State(self.inspect()),
            Request::Resize(_) => Answer::Any,
        }
    }

    fn lapse(&mut self) {
        self.holds.retain(|held| held.lease > 0);
        self.writers.retain(|(_, keep)| *keep > 0);
    }
}

pub(crate) fn read_write_locks_do_as_their_model(store: &Store) {
    let modes = || prop_oneof![Just(Mode::Read), Just(Mode::Read), Just(Mode::Write)];
    let resizes = |request: &Request| matches!(request, Request::Resize(_));
    let requests = requests(store, modes).prop_map(move |mut requests| {
        requests.retain(|request| !resizes(request));
        requests
    });
    compare::<ReadWrite, _, _>(store, requests, send);
}
