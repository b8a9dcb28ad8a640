//! [`together`]: many requests at once, some of which may take too long.

use std::{future::Future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout_at};

/// Polls all of `requests` until `end`, and answers in their order.
///
/// Once there is an answer, the others have to follow: when no answer has come for the time
/// `behind`, the remaining requests are dropped, and answered with `None`. All of them may take
/// until `least`.
pub(crate) async fn together<T>(
    requests: impl IntoIterator<Item = impl Future<Output = T>>,
    behind: Duration,
    least: Instant,
    end: Instant,
) -> Vec<Option<T>> {
    let numbered = requests.into_iter().enumerate();
    let mut waiting: FuturesUnordered<_> =
        numbered.map(|(number, request)| async move { (number, request.await) }).collect();
    let mut answers: Vec<_> = (0..waiting.len()).map(|_| None).collect();
    let mut until = end;
    while let Ok(Some((number, answer))) = timeout_at(until, waiting.next()).await {
        answers[number] = Some(answer);
        until = end.min(least.max(Instant::now() + behind));
    }
    answers
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const BEHIND: Duration = Duration::from_millis(100);
    const END: Duration = Duration::from_secs(3);

    async fn answers(times: &[u64]) -> (Vec<Option<u64>>, Duration) {
        answers_with(times, Duration::ZERO).await
    }

    async fn answers_with(times: &[u64], least: Duration) -> (Vec<Option<u64>>, Duration) {
        let begun = Instant::now();
        let requests = times.iter().map(|time| async move {
            sleep(Duration::from_millis(*time)).await;
            *time
        });
        let answers = together(requests, BEHIND, begun + least, begun + END).await;
        (answers, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_gets_stuck_is_not_waited_for() {
        let (answers, took) = answers(&[1_000, 2_900, 1_050]).await;
        assert_eq!(answers, [Some(1_000), None, Some(1_050)]);
        assert!(took >= Duration::from_millis(1_150) && took < Duration::from_millis(1_200));
    }

    #[tokio::test(start_paused = true)]
    async fn while_answers_come_all_are_waited_for() {
        let times: Vec<_> = (0..20).map(|number| number * 90).collect();
        let (answers, _) = answers(&times).await;
        assert!(answers.iter().all(Option::is_some), "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_time_of_their_own_may_use_it() {
        let least = Duration::from_millis(500);
        let (answers, took) = answers_with(&[0, 450, 540, 700], least).await;
        assert_eq!(answers, [Some(0), Some(450), Some(540), None]);
        assert!(took >= Duration::from_millis(640) && took < Duration::from_millis(690));
    }

    #[tokio::test(start_paused = true)]
    async fn none_is_waited_for_after_the_end() {
        let (answers, took) = answers(&[4_000, 5_000]).await;
        assert_eq!(answers, [None, None]);
        assert!(took < END + BEHIND, "{took:?}");
        assert!(self::answers(&[]).await.0.is_empty());
    }
}
