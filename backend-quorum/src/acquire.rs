//! Outermost acquisitions.
//!
//! All members are asked at once, with a proposed token. Two rules determine the token of the hold.
//! First, a majority has granted the hold with that token or an earlier one: every earlier hold
//! left its token at one of these members, so the new token is later. Second, a majority knows that
//! token: each of these members has issued exactly that token for the hold, or was told of it while
//! it had the hold, so every later hold will meet one of them. A member that has issued a later
//! token for the hold does not count: another hold may have had the earlier one there.
//!
//! Usually all members issue the proposed token, and one round trip is enough.
//!
//! A repetition of a request may have a later token than the first, if the members had not agreed
//! and others answer this time. The first token is not enough for it: a member that has answered
//! late may have lost the hold before, to another one with a token in between. It never has an
//! earlier one.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken,
    backend::{AcquireOutcome, AcquireRequest, Backend, RenewOutcome, RenewRequest},
};
use tokio::time::{Instant, timeout};

use crate::{
    doubts::Fate,
    failure::Failures,
    member::{Member, MemberSet},
    proposals::last_of,
    quorum::{Inner, Parts},
    round::{Call, Round},
    split,
    subscription::LateGrant,
};

/// How long a majority waits for the others, so that the hold is on all healthy members.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

/// How long to wait for members that were late, so that a release is on its way to them.
pub(crate) const LAST_GRACE: Duration = Duration::from_millis(2);

/// How old the part of a client that asks at the same moment can be. It undoes that part as soon as
/// it is refused itself, whereas a part that somebody has left stays until its lease ends.
const COMPETING: Duration = Duration::from_millis(100);

/// How often members are told of a token. With the request and the undo, a failed attempt takes at
/// most four time-outs, which is less than lockcore waits for an answer.
const TELLINGS: usize = 2;

/// The answers of the members so far.
#[derive(Debug, Default)]
struct Tally {
    grants: Vec<(usize, FencingToken)>,
    /// The members that have granted it but may have lost their data.
    rejoining: MemberSet,
    /// For each member that has refused, the time after which it will be free.
    held: Vec<Option<Duration>>,
    /// The number of members that have refused it because of a client that asks at the same moment.
    competing: usize,
    pending: usize,
    /// The pending members that have answered their last request.
    healthy: usize,
    /// Those of them that did not take long.
    quick: usize,
}

impl Tally {
    /// The answers to a request for a hold with this lease, after so much time.
    fn of(quorum: &Inner, round: &Round<AcquireOutcome>, lease: Duration, taken: Duration) -> Self {
        let (pending, healthy) = (round.pending().len(), round.pending_healthy().len());
        let quick = round.pending_quick(taken).len();
        let mut tally = Self { pending, healthy, quick, ..Self::default() };
        for (at, outcome) in round.replies() {
            match (outcome.token(), outcome) {
                (Some(token), _) if quorum.members[at].rejoins_in().is_none() => {
                    tally.grants.push((at, token));
                }
                (Some(_), _) => tally.rejoining = tally.rejoining.with(MemberSet::of(at)),
                (None, AcquireOutcome::Held { remaining }) => {
                    tally.held.push(*remaining);
                    tally.competing += usize::from(is_new(*remaining, lease));
                }
                (None, _) => {}
            }
        }
        tally.grants.sort_by_key(|(_, token)| *token);
        tally
    }

    fn is_decided(&self, Parts { majority, .. }: Parts) -> bool {
        let (grants, answered) = (self.grants.len(), self.answered());
        // If a refusal is only a part that somebody has left, late members may complete a majority,
        // but waiting for one that fails would be in vain. Clients that split the members keep each
        // other out until they undo their parts. A member that answers soon decides between them.
        // They do not wait for a slow one, since the next attempt may succeed without it. It takes
        // the answers of a majority to tell a refusal from a failure.
        let awaited = match () {
            () if self.held.is_empty() => self.pending,
            () if grants + self.competing >= majority => self.quick,
            () => self.healthy,
        };
        let is_refused = answered >= majority || answered + self.pending < majority;
        grants >= majority || grants + awaited < majority && is_refused
    }

    /// The number of members that have granted or refused it.
    fn answered(&self) -> usize {
        self.granted().len() + self.held.len()
    }

    /// The earliest token that fits the first rule, if a majority has granted the hold.
    fn token(&self, Parts { majority, .. }: Parts) -> Option<FencingToken> {
        self.grants.get(majority - 1).map(|(_, token)| *token)
    }

    /// The members that have issued an earlier token than this.
    fn behind(&self, token: FencingToken) -> MemberSet {
        self.grants.iter().filter(|(_, own)| *own < token).map(|(at, _)| *at).collect()
    }

    /// The number of members that have issued exactly this token.
    fn knowing(&self, token: FencingToken) -> usize {
        self.grants.iter().filter(|(_, own)| *own == token).count()
    }

    fn granted(&self) -> MemberSet {
        self.rejoining.with(self.grants.iter().map(|(at, _)| *at).collect())
    }

    /// The time after which a majority can be free again, if members that have refused are needed
    /// for it.
    fn remaining(&self, quorum: &Inner) -> Option<Duration> {
        let rejoins_in = |at: usize| quorum.members[at].rejoins_in().unwrap_or_default();
        let rejoining = self.rejoining.iter().map(|at| Some(rejoins_in(at)));
        let free = self.grants.iter().map(|_| Some(Duration::ZERO));
        let mut times: Vec<_> = free.chain(rejoining).chain(self.held.iter().copied()).collect();
        // Holds without an end come last.
        times.sort_by_key(|time| time.unwrap_or(Duration::MAX));
        times.get(quorum.parts().majority - 1).copied().flatten()
    }
}

/// Returns `true` if a hold with this `remaining` time has just been granted, provided that its
/// client uses the same `lease`.
fn is_new(remaining: Option<Duration>, lease: Duration) -> bool {
    let age = remaining.and_then(|remaining| lease.checked_sub(remaining));
    age.is_some_and(|age| age <= COMPETING.min(lease / 10))
}

pub(crate) async fn acquire(
    quorum: &Inner,
    request: &AcquireRequest,
) -> Result<AcquireOutcome, BackendError> {
    let AcquireRequest { name, hold, lease, tokens, .. } = request;
    let (parts, start) = (quorum.parts(), Instant::now());
    let first = quorum.doubts.token_of(name, hold);
    quorum.doubts.recall_counting(name, hold);
    if let Some(first) = first {
        // At once, because this future may be dropped before it knows more.
        quorum.doubts.note_token(name, hold, *lease, first);
    }
    let (leaving, doubtful) = quorum.doubts.leaving(name, hold);
    let proposal = quorum.proposals.next(*tokens);
    // A late member may answer what was true of another hold.
    let proposing = Arc::new(request.clone().least_token(Some(proposal)).held_for(None));
    let asking = quorum.all().without(doubtful);
    let mut round = quorum.ask(asking, |member| ask(member, proposing.clone()));
    let tally_of = |round: &Round<_>| Tally::of(quorum, round, *lease, start.elapsed());
    let is_decided = |round: &Round<_>| tally_of(round).is_decided(parts);
    let leavers = leaving.members();
    if leaving.is_empty() {
        round.until(is_decided).await;
    } else {
        // Also of members that nothing is awaited of: one may have become doubtful since. A late
        // grant is followed by its release, and each of the two may take as long as an answer.
        round = round.after(|at| leaving.clone().left(at, 2 * quorum.member_timeout));
        let _ = timeout(quorum.member_timeout, round.until(is_decided)).await;
    }
    round.wait_for_prompt(GRACE.min(*lease / 10)).await;
    let (tally, unsure) = (tally_of(&round), round.unsure());
    let failures = Failures::of(&round, start.elapsed());
    for (_, outcome) in round.replies() {
        if let Some(token) = outcome.token() {
            quorum.proposals.learn(token, *tokens);
        }
    }
    let granted = tally.granted();
    let mut attempt = Attempt {
        quorum,
        request,
        first,
        tally,
        granted,
        unsure,
        is_late: false,
        doubtful,
        failures,
    };
    if attempt.tally.token(parts).is_none() {
        attempt.unsure = unsure.without(round.pending());
        quorum.doubts.note(name, hold, Duration::ZERO, attempt.unsure);
        let rest = round.go_on(leaving.members(), |at, member, answer| {
            let grant = LateGrant {
                watches: quorum.watches.clone(),
                name: name.clone(),
                hold: hold.clone(),
                member: at,
                is_late_again: leavers.contains(at),
                is_rejoining: member.rejoins_in().is_some(),
                parts,
            };
            give_back(member, answer, proposing.clone(), grant)
        });
        return attempt.refuse(rest, start.elapsed()).await;
    }
    quorum.doubts.note(name, hold, *lease, doubtful.with(unsure.without(round.pending())));
    // Late members belong to the hold as well.
    quorum.doubts.finish(name, hold, *lease, (round, Fate::Counts));
    attempt.settle().await
}

/// An acquisition that the members have answered.
struct Attempt<'a> {
    quorum: &'a Inner,
    request: &'a AcquireRequest,
    /// The token of the same hold at an earlier acquisition, if it is remembered.
    first: Option<FencingToken>,
    tally: Tally,
    /// The members that have granted it.
    granted: MemberSet,
    /// The members whose request may have an effect later.
    unsure: MemberSet,
    /// Set if what other members grant later is given back in the background.
    is_late: bool,
    /// The members that were not asked.
    doubtful: MemberSet,
    failures: Failures,
}

impl Attempt<'_> {
    /// Makes sure that a majority knows the token. Members that cannot be told of it are left out
    /// from then on, as if they had not answered, because the others may agree on a later token.
    async fn settle(mut self) -> Result<AcquireOutcome, BackendError> {
        let (quorum, request) = (self.quorum, self.request);
        for _ in 0..TELLINGS {
            let Some(token) = self.tally.token(quorum.parts()) else { break };
            // A later token than necessary fits the first rule as well.
            let token = self.first.map_or(token, |first| first.max(token));
            let deaf = self.tell(token).await;
            if deaf.is_empty() {
                self.note(token);
                quorum.watches.answered(&request.name, &request.hold, MemberSet::default(), 0);
                return Ok(AcquireOutcome::Acquired { token });
            }
            self.tally.grants.retain(|(at, _)| !deaf.contains(*at));
        }
        let undone = self.undo().await;
        Err(self.fail(undone))
    }

    /// Notes the token of the hold, unless all members have issued exactly this one, and no other
    /// one is noted. A member that answers later may issue another one.
    fn note(&self, token: FencingToken) {
        let Self { quorum, request, first, tally, .. } = self;
        if first.is_some() || tally.knowing(token) < quorum.parts().members {
            let AcquireRequest { name, hold, lease, .. } = request;
            quorum.doubts.note_token(name, hold, *lease, token);
        }
    }

    /// Tells members of a token, until a majority knows it. Returns the members that could not be
    /// told, if there were too many.
    async fn tell(&mut self, token: FencingToken) -> MemberSet {
        let (quorum, request) = (self.quorum, self.request);
        let missing = quorum.parts().majority.saturating_sub(self.tally.knowing(token));
        if missing == 0 {
            return MemberSet::default();
        }
        let (last, request) = (last_of(token, request.tokens), Arc::new(request.clone()));
        let behind = self.tally.behind(token);
        let mut round = quorum.ask(behind, |member| raise(member, request.clone(), last));
        round.until(|round| round.replies().count() >= missing).await;
        if round.replies().count() >= missing {
            round.finish();
            return MemberSet::default();
        }
        for (at, answer) in round.answers() {
            if let Err(error) = answer {
                self.failures.add(at, error.clone());
            }
        }
        behind.without(round.replies().map(|(at, _)| at).collect())
    }

    /// Undoes the grants, since they are no majority. The `rest` of them is given back.
    async fn refuse(
        mut self,
        rest: Round<AcquireOutcome>,
        took: Duration,
    ) -> Result<AcquireOutcome, BackendError> {
        let (quorum, request) = (self.quorum, self.request);
        let AcquireRequest { name, hold, .. } = request;
        let granted = self.granted;
        self.is_late = !rest.pending().is_empty();
        let is_failure =
            self.tally.held.is_empty() || self.tally.answered() < quorum.parts().majority;
        if !is_failure {
            // Before more is granted.
            quorum.watches.answered(name, hold, granted, self.tally.grants.len());
        }
        quorum.doubts.finish(name, hold, Duration::ZERO, (rest, Fate::IsGivenBack));
        if is_failure {
            self.failures.add_rejoining(self.tally.rejoining, &quorum.members);
            let undone = self.undo().await;
            return Err(self.fail(undone));
        }
        let is_shut_out = self.is_shut_out();
        self.ask_doubtful();
        let undone = self.undo().await;
        // If a part of the hold stays somewhere, the caller has to undo it as well.
        if is_shut_out || undone == Undone::InPart {
            return Err(self.fail(undone));
        }
        if !granted.is_empty() {
            split::pause(took).await;
        }
        Ok(AcquireOutcome::Held { remaining: self.tally.remaining(quorum) })
    }

    /// Returns `true` if members that answer again are no longer asked, because of an old request
    /// for this hold. They would grant another hold, so this one should give way. This is reported
    /// as an error, so it is not done for every attempt while members are slow, each of which might
    /// leave such a request.
    fn is_shut_out(&self) -> bool {
        let Self { quorum, request, doubtful, .. } = self;
        let mut able = doubtful.iter().filter(|at| !quorum.members[*at].is_failing());
        able.next().is_some() && quorum.doubts.is_old(&request.name, &request.hold)
    }

    /// Undoes the old requests once more, in the background. The answers tell which members are
    /// back.
    fn ask_doubtful(&self) {
        let Self { quorum, request, doubtful, .. } = self;
        if !doubtful.is_empty() {
            let ask = |member: Arc<dyn Backend>| {
                let undo = request.undo();
                async move { member.release(&undo).await }
            };
            quorum.ask(*doubtful, ask).send();
        }
    }

    /// The error of an attempt, depending on how far it was undone.
    fn fail(mut self, undone: Undone) -> BackendError {
        self.failures.add_doubtful(self.doubtful);
        let error = std::mem::take(&mut self.failures).into_error(&self.quorum.members);
        // The caller has to ask for another hold if this one cannot count at some members.
        match undone == Undone::Everywhere && self.doubtful.is_empty() {
            true => error.not_applied(),
            false => error,
        }
    }

    /// Releases the hold where it was granted or may have been.
    async fn undo(&mut self) -> Undone {
        let AcquireRequest { name, hold, .. } = self.request;
        self.quorum.doubts.recall_counting(name, hold);
        let granted = self.granted;
        let to = granted.with(self.unsure);
        let is_certain = self.unsure.is_empty() && !self.is_late;
        if to.is_empty() {
            return if is_certain { Undone::Everywhere } else { Undone::WhereGranted };
        }
        let mut round = self.quorum.ask_each(to, |at, member| {
            // Where it was granted, no request is on its way any more, and it may be requested
            // again.
            let release = match granted.contains(at) {
                true => self.request.release(),
                false => self.request.undo(),
            };
            async move { member.release(&release).await }
        });
        round.until(|round| round.pending().without(self.unsure).is_empty()).await;
        round.wait_for_all(LAST_GRACE).await;
        self.quorum.doubts.note(name, hold, Duration::ZERO, round.unsure());
        let undone: MemberSet = round.replies().map(|(at, _)| at).collect();
        for (at, answer) in round.answers().filter(|(at, _)| granted.contains(*at)) {
            if let Err(error) = answer {
                self.failures.add(at, error.clone());
            }
        }
        round.finish();
        match () {
            () if !granted.without(undone).is_empty() => Undone::InPart,
            () if is_certain => Undone::Everywhere,
            () => Undone::WhereGranted,
        }
    }
}

/// How far an attempt was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undone {
    Everywhere,
    /// Undone where it was granted, but not certainly where it may have been granted.
    WhereGranted,
    /// Not undone everywhere that it was granted.
    InPart,
}

async fn ask(
    member: Arc<dyn Backend>,
    request: Arc<AcquireRequest>,
) -> Result<AcquireOutcome, BackendError> {
    let outcome = member.acquire(&request).await?;
    match outcome {
        AcquireOutcome::Held { .. } => Ok(outcome),
        _ if outcome.token().is_some() => Ok(outcome),
        _ => {
            let message = "an outermost acquisition was answered as another one";
            Err(BackendError::new(BackendErrorKind::Protocol, message))
        }
    }
}

/// Waits for the answer to a refused request, and releases what it has granted, so that the hold
/// can be asked for again. After an error, the member is in doubt unless it had no effect.
async fn give_back(
    member: Arc<Member>,
    answer: Call<AcquireOutcome>,
    request: Arc<AcquireRequest>,
    grant: LateGrant,
) -> Result<AcquireOutcome, BackendError> {
    let answer = answer.await;
    let release = match &answer {
        Ok(outcome) if outcome.token().is_some() => {
            grant.granted();
            request.release()
        }
        Err(error) if error.is_outcome_unknown() => request.undo(),
        _ => return answer,
    };
    let releasing = async { member.backend()?.release(&release).await };
    match (member.answer(releasing).await, answer) {
        (Ok(_), Ok(_)) => {
            grant.gave_back();
            Ok(AcquireOutcome::Held { remaining: None })
        }
        (_, Err(error)) | (Err(error), _) => Err(error.maybe_applied()),
    }
}

/// Makes the member issue no token up to `last` any more, and proves that the hold was there until
/// then, so that every later hold has a later token.
async fn raise(
    member: Arc<dyn Backend>,
    request: Arc<AcquireRequest>,
    last: FencingToken,
) -> Result<(), BackendError> {
    let AcquireRequest { name, hold, lease, .. } = &*request;
    member.raise_token(name, last).await?;
    let renewal = RenewRequest::new(name.clone(), hold.clone(), *lease);
    match member.renew(&[renewal]).await?.as_slice() {
        [RenewOutcome::Renewed] => Ok(()),
        [RenewOutcome::Failed(error)] => Err(error.clone()),
        _ => {
            let message = "the hold ended before its token was known to a majority";
            Err(BackendError::new(BackendErrorKind::Unavailable, message))
        }
    }
}
