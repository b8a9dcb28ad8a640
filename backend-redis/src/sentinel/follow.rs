//! The task that follows the primary.

use std::{sync::Arc, time::Duration};

use lockcore::BackendError;
use redis::{PushInfo, PushKind};
use tokio::sync::{Notify, watch};

use super::{
    SentinelGroup,
    answer::{self, Answer},
};

/// Published by a Sentinel when there may be another primary. The first two come earlier from the
/// Sentinel that leads the failover.
const EVENTS: [&str; 3] = ["+promoted-slave", "+failover-state-reconf-slaves", "+switch-master"];
/// How often a Sentinel is asked although it has published nothing. A Sentinel that does not answer
/// is abandoned.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(1);
/// The pauses before the next Sentinel: they double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Follows the primary through one Sentinel, or the next one if that is lost. Ends when nobody
/// listens to `answers` any more.
pub(super) async fn follow(group: Arc<SentinelGroup>, answers: watch::Sender<Option<Answer>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut has_answered = false;
        let following = follow_one(&group, |answer| {
            has_answered = true;
            let is_new = |last: &mut Option<Answer>| last.replace(answer.clone()) != Some(answer);
            answers.send_if_modified(is_new);
        });
        tokio::select! {
            () = answers.closed() => return,
            Err(error) = following => {
                tracing::debug!(%error, "a Sentinel does not tell of failovers, asking another");
            }
        }
        pause = if has_answered { FIRST_PAUSE } else { (2 * pause).min(LONGEST_PAUSE) };
        tokio::select! {
            () = answers.closed() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Calls `tell` with each answer of one Sentinel, as long as it answers.
async fn follow_one(
    group: &SentinelGroup,
    mut tell: impl FnMut(Answer),
) -> Result<(), BackendError> {
    let news = Arc::new(Notify::new());
    let on_push = {
        let news = news.clone();
        // After a disconnection, the next question fails.
        move |push: PushInfo| {
            if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
                news.notify_one();
            }
        }
    };
    let (mut connection, address) = group.connect_to_next(on_push).await?;
    // Asked after the subscription, so that no failover is missed in between.
    let subscribed = connection.subscribe(&EVENTS[..]).await;
    let mut failure = subscribed.err().map(|error| answer::failed(error, &address));
    while failure.is_none() {
        match group.ask_again(&mut connection, &address).await {
            Ok(answer) => {
                tell(answer);
                let _ = tokio::time::timeout(ASK_EVERY, news.notified()).await;
            }
            Err(error) => failure = Some(error),
        }
    }
    group.ask_last(&address);
    failure.map_or(Ok(()), Err)
}
