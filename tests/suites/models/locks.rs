//! The model of exclusive and fair locks.

use lockcore::Mode;
use proptest::prelude::{Just, Strategy, prop_oneof};

use crate::{
    Answer, Model, State, compare,
    holds::{Id, ModelHold, Request, lapses, requests, send},
    stores::{Difference, Differences, Store},
};

/// One owner at a time, and the waiters of a fair lock in the order in which they came.
#[derive(Debug)]
struct Lock {
    differences: Differences,
    held: Option<ModelHold>,
    /// Holds, and how long their places are kept.
    queue: Vec<(Id, u64)>,
    grants: usize,
}

impl Lock {
    fn acquire(
        &mut self,
        id: Id,
        mode: Mode,
        lease: u64,
        count: u32,
        queue: Option<u64>,
    ) -> Answer {
        let is_outermost = count == 1;
        match &mut self.held {
            Some(held) if held.id == id => {
                held.count = count;
                held.lease = held.lease.max(lease);
                let grant = held.grant;
                if is_outermost {
                    self.leave(mode, id);
                }
                return Answer::Acquired(grant);
            }
            Some(held) if held.id.owner() == id.owner() => {
                let refuses_older = self.differences.has(Difference::RefusesOlderHolds);
                if refuses_older && id.is_before(held.id) {
                    return Answer::Held(Some(held.lease));
                }
            }
            Some(held) => {
                let left = held.lease;
                self.enqueue(mode, id, queue);
                return Answer::Held(Some(left));
            }
            None => {
                if mode == Mode::Fair
                    && is_outermost
                    && let Some((first, kept)) = self.queue.first().copied()
                    && !self.have_one_place(first, id)
                {
                    self.enqueue(mode, id, queue);
                    return Answer::Held(Some(kept));
                }
            }
        }
        if !is_outermost {
            return Answer::NotHeld;
        }
        self.leave(mode, id);
        self.grants += 1;
        self.held = Some(ModelHold { id, mode, count, lease, grant: self.grants });
        Answer::Acquired(self.grants)
    }

    fn enqueue(&mut self, mode: Mode, id: Id, keep: Option<u64>) {
        let Some(keep) = keep.filter(|_| mode == Mode::Fair) else { return };
        match self.queue.iter().position(|(other, _)| self.have_one_place(*other, id)) {
            Some(at) => self.queue[at].1 = keep,
            None => self.queue.push((id, keep)),
        }
    }

    /// Returns `true` if the place of one is that of the other.
    fn have_one_place(&self, one: Id, other: Id) -> bool {
        match self.differences.has(Difference::RedissonQueue) {
            true => one.owner() == other.owner(),
            false => one == other,
        }
    }

    fn leave(&mut self, mode: Mode, id: Id) {
        if mode == Mode::Fair {
            let mut queue = std::mem::take(&mut self.queue);
            queue.retain(|(other, _)| !self.have_one_place(*other, id));
            self.queue = queue;
        }
    }

    fn release(&mut self, id: Id, mode: Mode, remaining: u32) -> Answer {
        match &mut self.held {
            Some(held) if held.id == id && remaining > 0 => {
                held.count = remaining;
                Answer::StillHeld
            }
            Some(held) if held.id == id => {
                self.held = None;
                Answer::Released
            }
            held => {
                // With one place for all holds of a named owner, one that is inside has none.
                let is_inside = held.as_ref().is_some_and(|held| held.id.owner() == id.owner());
                if !is_inside || !self.differences.has(Difference::RedissonQueue) {
                    self.leave(mode, id);
                }
                Answer::NotHeld
            }
        }
    }

    fn inspect(&self) -> State {
        let mode = |held: &ModelHold| match held.mode {
            Mode::Fair if self.differences.has(Difference::ReportsFairAsExclusive) => {
                Mode::Exclusive
            }
            mode => mode,
        };
        let holder =
            |held: &ModelHold| (held.id.owner().to_owned(), mode(held).to_string(), held.count);
        State {
            holders: self.held.iter().map(holder).collect(),
            remaining: self.held.as_ref().map(|held| held.lease),
            waiters: self.queue.len(),
            permits: None,
        }
    }
}

impl Model for Lock {
    type Request = Request;

    fn new(differences: Differences) -> Self {
        Self { differences, held: None, queue: Vec::new(), grants: 0 }
    }

    /// In the queue of Redisson, a place behind others does not end soon, whatever was requested.
    fn adapt(&self, mut request: Request) -> Request {
        if let Request::Acquire { queue: Some(keep), id, .. } = &mut request
            && self.differences.has(Difference::RedissonQueue)
            && self.queue.iter().any(|(other, _)| !self.have_one_place(*other, *id))
        {
            *keep = 1;
        }
        request
    }

    fn lapses(request: &Request) -> bool {
        lapses(request)
    }

    fn expect(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Acquire { id, mode, lease, count, queue, .. } => {
                self.acquire(id, mode, lease, count, queue)
            }
            Request::Renew { id, lease, .. } => match &mut self.held {
                Some(held) if held.id == id => {
                    held.lease = held.lease.max(lease);
                    Answer::Renewed
                }
                _ => Answer::NotHeld,
            },
            Request::Release { id, mode, remaining } => self.release(id, mode, remaining),
            Request::Force => Answer::Flag(self.held.take().is_some()),
            Request::Inspect => Answer::State(self.inspect()),
            Request::Resize(_) => Answer::Any,
        }
    }

    fn lapse(&mut self) {
        self.held.take_if(|held| held.lease == 0);
        self.queue.retain(|(_, keep)| *keep > 0);
    }
}

/// Semaphores are resized, locks are not.
fn without_resizing(requests: Vec<Request>) -> Vec<Request> {
    requests.into_iter().filter(|request| !matches!(request, Request::Resize(_))).collect()
}

pub(crate) fn exclusive_and_fair_locks_do_as_their_model(store: &Store) {
    let modes = || prop_oneof![Just(Mode::Exclusive), Just(Mode::Fair), Just(Mode::Fair)];
    compare::<Lock, _, _>(store, requests(store, modes).prop_map(without_resizing), send);
}
