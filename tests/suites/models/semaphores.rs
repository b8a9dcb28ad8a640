//! The model of semaphores.

use lockcore::Mode;
use proptest::strategy::Strategy;

use crate::{
    Answer, Model, State, compare,
    holds::{Id, ModelHold, Request, lapses, requests, send},
};

/// The number of permits is the one that was set, or that the first request said.
#[derive(Debug, Default)]
struct Permits {
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
        if count > total && !(plain && self.total.is_some()) {
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
            Request::Release { id, .. } => {
                let before = self.holds.len();
                self.holds.retain(|held| held.id != id);
                if self.holds.len() < before { Answer::Released } else { Answer::NotHeld }
            }
            Request::Force => Answer::Flag(!std::mem::take(&mut self.holds).is_empty()),
            Request::Inspect => Answer::State(self.inspect()),
            Request::Resize(permits) => {
                self.total = Some(permits);
                Answer::Any
            }
        }
    }

    fn lapse(&mut self) {
        self.holds.retain(|held| held.lease > 0);
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

#[test]
fn semaphores_do_as_their_model() {
    let modes = || (1..5_u32, 1..5_u32).prop_map(|(count, limit)| Mode::permits(count, limit));
    compare::<Permits, _, _>(requests(modes).prop_map(entered_once), send);
}

#[test]
fn plain_semaphores_do_as_their_model() {
    let modes =
        || (1..5_u32, 1..5_u32).prop_map(|(count, limit)| Mode::plain_permits(count, limit));
    let requests = requests(modes).prop_map(|requests| {
        let mut requests = entered_once(requests);
        // Their number is not set here, and is reported without the permits of others.
        requests.retain(|request| !matches!(request, Request::Resize(_) | Request::Inspect));
        requests
    });
    compare::<Permits, _, _>(requests, send);
}
