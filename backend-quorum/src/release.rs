//! Releases, by the holder and by force.

use std::{sync::Arc, time::Duration};

use lockcore::{
    BackendError, LockName,
    backend::{Backend, HoldId, ReleaseOutcome, ReleaseRequest},
};
use tokio::time::Instant;

use crate::{
    acquire::{GRACE, LAST_GRACE},
    failure::Failures,
    member::MemberSet,
    quorum::{Inner, Parts},
    round::Round,
};

/// Releases a hold, or lowers its count, at all members. A majority has to answer, so that no
/// majority has the hold any more. At members that do not answer, it ends with its lease.
pub(crate) async fn release(
    quorum: &Inner,
    request: &ReleaseRequest,
) -> Result<ReleaseOutcome, BackendError> {
    let (parts, start) = (quorum.parts(), Instant::now());
    let mut doubtful = MemberSet::default();
    if request.remaining == 0 {
        quorum.doubts.recall(&request.name, &request.hold);
        doubtful = quorum.doubts.of(&request.name, &request.hold, Duration::ZERO);
    }
    let mut round = quorum.ask_each(quorum.all(), |at, member| {
        let mut request = request.clone();
        // An acquisition may be on its way there, although it is not on its way elsewhere.
        request.is_undo |= doubtful.contains(at);
        async move { member.release(&request).await }
    });
    answered(&mut round, parts).await;
    let gone = round.replies().filter(|(_, outcome)| **outcome == ReleaseOutcome::NotHeld).count();
    let is_majority = round.replies().count() >= parts.majority;
    let failures = Failures::of(&round, start.elapsed());
    round.finish();
    if !is_majority {
        return Err(failures.into_error(&quorum.members));
    }
    if request.remaining == 0 {
        quorum.doubts.forget(&request.name, &request.hold);
    }
    Ok(match request.remaining {
        _ if parts.blocks(gone) => ReleaseOutcome::NotHeld,
        0 => ReleaseOutcome::Released,
        _ => ReleaseOutcome::StillHeld,
    })
}

/// Releases what is left of a hold that no majority has any more, in the background: nobody else
/// does, and it keeps others out. The members in `gone` have nothing of it.
pub(crate) fn clear(quorum: &Inner, name: &LockName, hold: &HoldId, gone: MemberSet) {
    // None of its requests may be sent after this.
    quorum.doubts.recall(name, hold);
    // Where one may still arrive, it comes after the answer that the member has nothing.
    let doubtful = quorum.doubts.of(name, hold, Duration::ZERO);
    quorum.doubts.forget(name, hold);
    let mut request = ReleaseRequest::new(name.clone(), hold.clone());
    request.is_undo = true;
    let clear = |member: Arc<dyn Backend>| {
        let request = request.clone();
        async move { member.release(&request).await }
    };
    quorum.ask(quorum.all().without(gone.without(doubtful)), clear).send();
}

/// Frees `name` at all members. Returns `true` if a majority may have had a hold.
pub(crate) async fn force(quorum: &Inner, name: &LockName) -> Result<bool, BackendError> {
    let (parts, start) = (quorum.parts(), Instant::now());
    let mut round = quorum.ask(quorum.all(), |member| {
        let name = name.clone();
        async move { member.force_release(&name).await }
    });
    // A forced release ends any hold that it finds, so none of its requests should arrive after the
    // answer: the next holder would lose its part. At a member that does not answer, one may.
    round.until(|_| false).await;
    let answers = round.replies().count();
    let failures = Failures::of(&round, start.elapsed());
    let held = round.replies().filter(|(_, was_held)| **was_held).count();
    if answers < parts.majority {
        return Err(failures.into_error(&quorum.members));
    }
    Ok(held > 0 && held + parts.members - answers >= parts.majority)
}

/// Waits until a majority has answered, and a little longer for the others: a release that does not
/// reach them keeps the lock from others there.
async fn answered<T: Send + 'static>(round: &mut Round<T>, Parts { majority, .. }: Parts) {
    round.until(|round| round.replies().count() >= majority).await;
    round.wait_for_prompt(GRACE).await;
    round.wait_for_all(LAST_GRACE).await;
}
