//! Requests about holds, for the models of all kinds of locks.

use std::sync::Arc;

use lockcore::{
    BackendError, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Backend, HoldId, ReleaseOutcome, ReleaseRequest,
        RenewOutcome, RenewRequest, ResizeRequest,
    },
};
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::{
    Answer, State, Target, lease,
    stores::{Difference, Store},
    thousands,
};

/// Owner and id: three owners with one hold each, and two named ones with several holds, one after
/// the other.
const HOLDS: [(&str, &str); 7] = [
    ("c:1", "c:1"),
    ("c:2", "c:2"),
    ("c:3", "c:3"),
    ("job", "k:1"),
    ("job", "k:2"),
    ("job", "m:1"),
    ("other", "k:3"),
];

/// The number of tokens of an exclusive hold of each owner without a name: one, as for the first
/// hold of a lock, or as many as a client may hand on, if the store gives that many.
const TOKENS: [(&str, u32); 3] = [("c:1", 1), ("c:2", 100_000), ("c:3", 1)];

/// An index into [`HOLDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(usize);

impl Id {
    pub(crate) fn owner(self) -> &'static str {
        HOLDS[self.0].0
    }

    fn id(self) -> &'static str {
        HOLDS[self.0].1
    }

    /// The number of tokens requested with a hold in this mode. It is the same each time, as a
    /// repetition asks for the same.
    fn tokens(self, mode: Mode) -> u32 {
        let of_owner = TOKENS.iter().find(|(owner, _)| *owner == self.owner());
        of_owner.filter(|_| mode == Mode::Exclusive).map_or(1, |(_, tokens)| *tokens)
    }

    fn hold(self) -> HoldId {
        if self.owner() == self.id() {
            HoldId::unique(self.id())
        } else {
            HoldId::named(self.owner(), self.id())
        }
    }

    /// Returns `true` if this is an earlier hold of the same client than `other`: its requests come
    /// late.
    pub(crate) fn is_before(self, other: Self) -> bool {
        let of = |id: Self| id.id().split_once(':').unwrap();
        let ((client, number), (other_client, other_number)) = (of(self), of(other));
        client == other_client && number < other_number
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire { id: Id, mode: Mode, lease: u64, count: u32, queue: Option<u64>, within: Option<Id> },
    Renew { id: Id, mode: Mode, lease: u64 },
    Release { id: Id, mode: Mode, remaining: u32 },
    Force,
    Inspect,
    Resize(u32),
}

/// Any of the holds.
pub(crate) fn ids() -> impl Strategy<Value = Id> {
    (0..HOLDS.len()).prop_map(Id)
}

/// Requests for locks that can be held in these modes.
pub(crate) fn requests<M>(store: &Store, modes: fn() -> M) -> impl Strategy<Value = Vec<Request>>
where
    M: Strategy<Value = Mode> + 'static,
{
    let shortest = u64::from(!store.ends_leases_soon());
    let has_modes_apart = store.differences.has(Difference::HoldInEachMode);
    let leases = prop_oneof![1 => Just(0), 5 => 1..4_u64];
    let leases = leases.prop_map(move |lease| lease.max(shortest));
    let counts = prop_oneof![4 => Just(1_u32), 1 => 2..4_u32];
    let queues = prop_oneof![Just(None), Just(Some(1)), Just(Some(1)), Just(Some(shortest))];
    let within = prop_oneof![2 => Just(None), 1 => ids().prop_map(Some)];
    let acquire = (ids(), modes(), leases, counts, queues, within).prop_map(
        |(id, mode, lease, count, queue, within)| Request::Acquire {
            id,
            mode,
            lease,
            count,
            // A hold that grows does not wait.
            queue: queue.filter(|_| count == 1),
            within,
        },
    );
    let renew =
        (ids(), modes(), 1..4_u64).prop_map(|(id, mode, lease)| Request::Renew { id, mode, lease });
    let remaining = prop_oneof![3 => Just(0_u32), 1 => 1..3_u32];
    let release = (ids(), modes(), remaining).prop_map(|(id, mode, remaining)| Request::Release {
        id,
        mode,
        remaining,
    });
    let resize = (1..5_u32).prop_map(Request::Resize);
    let request = prop_oneof![
        8 => acquire, 2 => renew, 6 => release, 1 => Just(Request::Force), 2 => Just(Request::Inspect), 1 => resize
    ];
    deliveries(request).prop_map(move |requests| match has_modes_apart {
        true => requests,
        false => in_one_mode_each(requests),
    })
}

/// Gives all requests for a hold the mode of the first one.
fn in_one_mode_each(mut requests: Vec<Request>) -> Vec<Request> {
    let mut modes = [None; HOLDS.len()];
    for request in &mut requests {
        if let Request::Acquire { id, mode, .. }
        | Request::Renew { id, mode, .. }
        | Request::Release { id, mode, .. } = request
        {
            *mode = *modes[id.0].get_or_insert(*mode);
        }
    }
    requests
}

/// Some requests, each delivered any number of times, in any order.
pub(crate) fn deliveries<T: Clone + std::fmt::Debug>(
    request: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<T>> {
    let pool = proptest::collection::vec(request, 1..16);
    let order = proptest::collection::vec(any::<proptest::sample::Index>(), 1..40);
    (pool, order).prop_map(|(pool, order)| order.iter().map(|at| at.get(&pool).clone()).collect())
}

/// Sends one request.
pub(crate) async fn send(
    backend: Arc<dyn Backend>,
    target: Target,
    request: Request,
) -> Result<Answer, BackendError> {
    let name = target.name.clone();
    Ok(match request {
        Request::Acquire { id, mode, lease: time, count, queue, within } => {
            let tokens = id.tokens(mode).min(backend.limits().most_tokens);
            let request = AcquireRequest::new(name, id.hold(), lease(time))
                .tokens(tokens)
                .mode(mode)
                .count(count)
                .queue(queue.map(lease))
                .within(within.map(Id::hold));
            match backend.acquire(&request).await? {
                AcquireOutcome::Acquired { token } => {
                    Answer::Acquired(target.tokens.grant(token, tokens))
                }
                AcquireOutcome::Held { remaining } => Answer::Held(remaining.map(thousands)),
                AcquireOutcome::NotHeld => Answer::NotHeld,
                AcquireOutcome::TooMany { limit } => Answer::TooMany(limit),
                other => panic!("{other:?}"),
            }
        }
        Request::Renew { id, mode, lease: time } => {
            let request = RenewRequest::new(name, id.hold(), lease(time)).mode(mode);
            match &backend.renew(&[request]).await?[..] {
                [RenewOutcome::Renewed] => Answer::Renewed,
                [RenewOutcome::NotHeld] => Answer::NotHeld,
                other => panic!("{other:?}"),
            }
        }
        Request::Release { id, mode, remaining } => {
            let request = ReleaseRequest::new(name, id.hold()).mode(mode).remaining(remaining);
            match backend.release(&request).await? {
                ReleaseOutcome::Released => Answer::Released,
                ReleaseOutcome::StillHeld => Answer::StillHeld,
                ReleaseOutcome::NotHeld => Answer::NotHeld,
                other => panic!("{other:?}"),
            }
        }
        Request::Force => Answer::Flag(backend.force_release(&name).await?),
        Request::Inspect => Answer::State(state(&backend.inspect(&name).await?)),
        Request::Resize(permits) => {
            backend.resize(&ResizeRequest::new(name.clone(), permits)).await?;
            Answer::Any
        }
    })
}

fn state(state: &LockState) -> State {
    let holders = state.holders().iter();
    let mut holders: Vec<_> = holders
        .map(|holder| (holder.owner().to_owned(), holder.mode().to_string(), holder.hold_count()))
        .collect();
    holders.sort();
    State {
        holders,
        remaining: state.remaining().map(thousands),
        waiters: state.waiters().len(),
        permits: state.available().map(|available| (available, state.limit())),
    }
}

/// Returns `true` if a lease or a place ends soon after this request.
pub(crate) fn lapses(request: &Request) -> bool {
    matches!(request, Request::Acquire { lease, queue, .. } if *lease == 0 || *queue == Some(0))
}

/// A hold in a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelHold {
    pub(crate) id: Id,
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) lease: u64,
    pub(crate) grant: usize,
}
