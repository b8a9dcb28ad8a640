//! The model of semaphores.

use lockcore::Mode;
use proptest::strategy::Strategy;

use crate::{
    Answer, Model, State, compare,
    holds::{Id, ModelHold, Request, lapses, requests, send},
    stores::{Difference, Differences, Store},
};

/// The number of permits is the one that was set, or that the first request said.
#[derive(Debug)]
struct Permits {
    differences: Differences,
    /// The number was set, and does not come from a request.
    is_set: bool,
    total: Option<u32>,
    holds: Vec<ModelHold>,
    grants: usize,
}

fn permits(mode: Mode) -> (u32, u32, bool) {
    match mode {
        Mode::Permit { count, limit, plain, .. } => (count, limit, plain),
        _ => unreachable!("no other mode is asked for"),
    }
}

impl Permits {
    fn taken(&self) -> u32 {
        self.holds.iter().map(|held| permits(held.mode).0).sum()
    }

    fn acquire(&mut self, id: Id, mode: Mode, lease: u64) -> Answer {
        let (count, limit, plain) = permits(mode);
        if let Some(held) = self.holds.iter_mut().find(|held| held.id == id) {
            held.lease = held.lease.max(lease);
            return Answer::Acquired(held.grant);
        }
        let total = self.total.unwrap_or(limit);
        // Where unknown holders may have taken permits, there may be more.
        let is_unknown =
            plain && self.total.is_some() && self.differences.has(Difference::CountsNoPlainPermits);
        if count > total && !is_unknown {
            return Answer::TooMany(total);
        }
        if self.taken() + count > total {
            return Answer::Held(self.holds.iter().map(|held| held.lease).min());
        }
        self.total = Some(total);
        self.grants += 1;
        self.holds.push(ModelHold { id, mode, count: 1, lease, grant: self.grants });
        Answer::Acquired(self.grants)
    }

    /// Forgets the number that a request said, if no hold needs it.
    fn forget(&mut self) {
        let is_kept = self.is_set || self.differences.has(Difference::KeepsIdleSemaphores);
        self.total = self.total.filter(|_| is_kept || !self.holds.is_empty());
    }

    /// Ends the holds of which `goes_on` is not true. Returns `true` if there were any.
    fn end(&mut self, goes_on: impl Fn(&ModelHold) -> bool) -> bool {
        let before = self.holds.len();
        self.holds.retain(goes_on);
        self.forget();
        self.holds.len() < before
    }

    fn inspect(&self) -> State {
        let Some(total) = self.total else { return State::default() };
        let holders = self.holds.iter();
        let mut holders: Vec<_> =
            holders.map(|held| (held.id.owner().to_owned(), held.mode.to_string(), 1)).collect();
        holders.sort();
        let remaining = self.holds.iter().map(|held| held.lease).max();
        let left = total.saturating_sub(self.taken());
        State { holders, remaining, waiters: 0, permits: Some((left, Some(total))) }
    }
}

impl Model for Permits {
    type Request = Request;

    fn new(differences: Differences) -> Self {
        Self { differences, is_set: false, total: None, holds: Vec::new(), grants: 0 }
    }

    fn lapses(request: &Request) -> bool {
        lapses(request)
    }

    fn expect(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Acquire { id, mode, lease, .. } => self.acquire(id, mode, lease),
            Request::Renew { id, lease, .. } => {
                match self.holds.iter_mut().find(|held| held.id == id) {
                    Some(held) => {
                        held.lease = held.lease.max(lease);
                        Answer::Renewed
                    }
                    None => Answer::NotHeld,
                }
            }
            Request::Release { id, .. } => match self.end(|held| held.id != id) {
                true => Answer::Released,
                false => Answer::NotHeld,
            },
            Request::Force => Answer::Flag(self.end(|_| false)),
            Request::Inspect => Answer::State(self.inspect()),
            Request::Resize(permits) => {
                self.is_set = true;
                self.total = Some(permits);
                Answer::Any
            }
        }
    }

    fn lapse(&mut self) {
        self.end(|held| held.lease > 0);
    }
}

/// Each acquisition of permits is a separate hold, which is never entered again.
fn entered_once(requests: Vec<Request>) -> Vec<Request> {
    let mut requests = requests;
    for request in &mut requests {
        match request {
            Request::Acquire { count, .. } => *count = 1,
            Request::Release { remaining, .. } => *remaining = 0,
            _ => {}
        }
    }
    requests
}

pub(crate) fn semaphores_do_as_their_model(store: &Store) {
    let modes = || (1..5_u32, 1..5_u32).prop_map(|(count, limit)| Mode::permits(count, limit));
    compare::<Permits, _, _>(store, requests(store, modes).prop_map(entered_once), send);
}

pub(crate) fn plain_semaphores_do_as_their_model(store: &Store) {
    let modes =
        || (1..5_u32, 1..5_u32).prop_map(|(count, limit)| Mode::plain_permits(count, limit));
    let is_inspected = !store.differences.has(Difference::CountsNoPlainPermits);
    let requests = requests(store, modes).prop_map(move |requests| {
        let mut requests = entered_once(requests);
        // Their number is not set here. A store that does not count them reports it without the
        // permits of others.
        requests.retain(|request| match request {
            Request::Resize(_) => false,
            Request::Inspect => is_inspected,
            _ => true,
        });
        requests
    });
    compare::<Permits, _, _>(store, requests, send);
}
