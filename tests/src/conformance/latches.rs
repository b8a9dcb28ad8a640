//! C30 and C31: the count of a latch.

use lockcore::backend::Backend;

use crate::{
    Fixture,
    conformance::{
        latch::{at_once, latch, new_id},
        names::look_alikes,
        scene::{Scene, nothing_is_left, unique_name},
    },
    poll_times,
};

/// The maximum number of polls of a call. Awaits after that many are not tested.
const POLLS: usize = 64;

/// C30: the count of an open latch can be set, and every client sees it.
pub async fn an_open_latch_takes_a_count<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.has_left(0).await;
    one.sets(3).await;
    two.has_left(3).await;
}

/// C30: a latch that has a count keeps it, whoever tries to set it, and to whatever value.
pub async fn a_latch_that_has_a_count_keeps_it<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(3).await;
    for count in [1, 3, 7] {
        one.cannot_set(count).await;
        two.cannot_set(count).await;
    }
    one.counts_down().await;
    two.cannot_set(3).await;
    two.has_left(2).await;
}

/// C30: of simultaneous requests, exactly one sets its count.
pub async fn of_simultaneous_counts_one_is_set<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, _] = latch(&scene);
    let numbers = std::sync::atomic::AtomicU32::new(1);
    let answers = at_once(fixture, 8, |client| {
        let name = scene.name.clone();
        let count = numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            let latches = client.latches().expect("the backend has latches");
            (latches.set_count(&name, count, &new_id()).await.expect("set_count failed"), count)
        }
    })
    .await;
    let set: Vec<_> = answers.into_iter().filter(|(is_set, _)| *is_set).collect();
    let [(_, count)] = set[..] else { panic!("one should have set it, not {set:?}") };
    one.has_left(count).await;
}

/// C30: a request that arrives twice gets the same answer, and sets the count once.
pub async fn a_count_that_is_set_twice_is_set_once<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let id = new_id();
    assert!(one.asks_to_set(3, &id).await);
    two.counts_down().await;
    for latch in [one, two] {
        assert!(latch.asks_to_set(3, &id).await, "a repetition is answered as the first time");
        latch.has_left(2).await;
    }
}

/// C30: a late repetition does not close a latch that was opened since.
pub async fn a_repeated_count_does_not_close_an_opened_latch<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    for counts in [true, false] {
        let id = new_id();
        assert!(one.asks_to_set(1, &id).await);
        let left = if counts { two.counts_down().await } else { two.opens().await - 1 };
        assert_eq!(left, 0);
        for latch in [one, two] {
            assert!(latch.asks_to_set(1, &id).await, "a repetition is answered as the first time");
            latch.has_left(0).await;
        }
    }
}

/// C30: a refused request stays refused, and closes nothing if it arrives again once the latch is
/// open.
pub async fn a_count_that_was_refused_stays_refused<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let id = new_id();
    one.sets(2).await;
    assert!(!two.asks_to_set(5, &id).await);
    one.opens().await;
    for latch in [two, one] {
        assert!(!latch.asks_to_set(5, &id).await, "a repetition is answered as the first time");
        latch.has_left(0).await;
    }
}

/// C30: a latch can be set again whenever it is open.
pub async fn a_latch_can_be_set_again_once_it_is_open<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    for count in 1..4 {
        one.sets(count).await;
        assert_eq!(two.opens().await, count);
    }
    two.sets(5).await;
}

/// C30: the greatest value of its type is a valid count.
pub async fn the_greatest_count_is_kept<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(u32::MAX).await;
    assert_eq!(two.counts_down().await, u32::MAX - 1);
    one.has_left(u32::MAX - 1).await;
    assert_eq!(two.opens().await, u32::MAX - 1);
}

/// C30: every name has its own latch, whatever characters it contains, even for requests with the
/// same id.
pub async fn every_name_has_a_latch_of_its_own<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let (set, counted) = (new_id(), new_id());
    let (refused, names): (Vec<_>, Vec<_>) =
        look_alikes().into_iter().partition(|name| fixture.refuses_latch(name));
    for name in &refused {
        one.under(name).is_refused().await;
    }
    for (count, name) in (2..).zip(&names) {
        assert!(
            one.under(name).asks_to_set(count, &set).await,
            "the latch of another name is none of {name}"
        );
    }
    for (count, name) in (2..).zip(&names) {
        two.under(name).has_left(count).await;
        assert_eq!(two.under(name).counts_down_as(&counted).await, count - 1);
        assert_eq!(one.under(name).opens().await, count - 1);
        one.under(name).has_left(0).await;
    }
    for name in &names {
        nothing_is_left(fixture, name).await;
    }
}

/// C30 and C17: a dropped request to set a count can be repeated.
pub async fn a_count_whose_setting_was_dropped_can_be_set<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        let id = new_id();
        let ended = poll_times(polls, one.begins_to_set(3, &id)).await;
        assert!(one.asks_to_set(3, &id).await, "nobody else has set it");
        two.has_left(3).await;
        two.opens().await;
        assert!(one.asks_to_set(3, &id).await);
        two.has_left(0).await;
        nothing_is_left(fixture, &scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}

/// C31: each count-down lowers the count by one, and is answered with the rest.
pub async fn each_count_lowers_what_is_left_by_one<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(5).await;
    for (latch, left) in [two, one, one, two, two].into_iter().zip((0..5).rev()) {
        assert_eq!(latch.counts_down().await, left);
        one.has_left(left).await;
        two.has_left(left).await;
    }
}

/// C31: the last count-down opens the latch, and none before it does.
pub async fn the_last_count_opens_the_latch<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(3).await;
    for _ in 0..2 {
        two.counts_down().await;
        one.cannot_set(7).await;
    }
    assert_eq!(one.counts_down().await, 0);
    two.sets(7).await;
}

/// C31: simultaneous count-downs all count, and each gets a different answer.
pub async fn simultaneous_counts_all_count<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, _] = latch(&scene);
    one.sets(17).await;
    let mut answers = at_once(fixture, 8, |client| {
        let name = scene.name.clone();
        async move {
            let latches = client.latches().expect("the backend has latches");
            let (first, second) = (new_id(), new_id());
            let counts =
                tokio::join!(latches.count_down(&name, &first), latches.count_down(&name, &second));
            [counts.0.expect("count_down failed"), counts.1.expect("count_down failed")]
        }
    })
    .await
    .concat();
    one.has_left(1).await;
    answers.sort_unstable();
    assert_eq!(answers, (1..17).collect::<Vec<_>>());
}

/// C31: a count-down that arrives twice counts once, whichever client it arrives at.
pub async fn a_count_down_that_arrives_twice_counts_once<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let id = new_id();
    one.sets(3).await;
    assert_eq!(one.counts_down_as(&id).await, 2);
    for latch in [one, two] {
        latch.counts_down_as(&id).await;
        latch.has_left(2).await;
    }
}

/// C31: a count-down that arrives at two clients at once counts once.
pub async fn a_count_down_that_arrives_by_two_ways_counts_once<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, _] = latch(&scene);
    one.sets(9).await;
    let id = new_id();
    at_once(fixture, 4, |client| {
        let (name, id) = (scene.name.clone(), id.clone());
        async move {
            let latches = client.latches().expect("the backend has latches");
            latches.count_down(&name, &id).await.expect("count_down failed");
        }
    })
    .await;
    one.has_left(8).await;
}

/// C31: a late repetition does not count down a latch that was opened and set again since.
pub async fn a_repetition_does_not_count_down_the_next_count<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let ids = [new_id(), new_id()];
    one.sets(2).await;
    two.counts_down_as(&ids[0]).await;
    two.counts_down_as(&ids[1]).await;
    one.sets(3).await;
    for (latch, id) in [(one, &ids[0]), (two, &ids[1])] {
        latch.counts_down_as(id).await;
        latch.has_left(3).await;
    }
    one.opens().await;
    one.sets(4).await;
    two.counts_down_as(&ids[0]).await;
    two.has_left(4).await;
}

/// C31: counting down an open latch does not affect it: the next count is complete.
pub async fn an_open_latch_is_not_counted_down<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    for count in [3, 1] {
        for latch in [one, two, two] {
            assert_eq!(latch.counts_down().await, 0);
            latch.has_left(0).await;
        }
        one.sets(count).await;
        for left in (0..count).rev() {
            assert_eq!(two.counts_down().await, left);
        }
    }
}

/// C31: opening a latch ends its count, whatever it was, and returns the rest.
pub async fn opening_a_latch_ends_its_count<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    assert_eq!(one.opens().await, 0);
    one.sets(9).await;
    one.counts_down().await;
    assert_eq!(two.opens().await, 8);
    one.has_left(0).await;
    assert_eq!(one.opens().await, 0);
    assert_eq!(one.counts_down().await, 0);
    two.sets(2).await;
}

/// C31: reading the count changes nothing.
pub async fn looking_at_a_latch_changes_nothing<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    one.sets(2).await;
    for _ in 0..3 {
        one.has_left(2).await;
        two.has_left(2).await;
    }
}

/// C31: nothing is left of an open latch, however it was opened, nor of one that was never closed.
pub async fn nothing_is_left_of_an_open_latch<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let [one, two] = latch(&scene);
    let [opened, idle] = [unique_name(":opened"), unique_name(":idle")];
    one.sets(2).await;
    one.cannot_set(3).await;
    one.counts_down().await;
    two.counts_down().await;
    one.under(&opened).sets(2).await;
    one.under(&opened).counts_down().await;
    two.under(&opened).opens().await;
    one.under(&idle).has_left(0).await;
    one.under(&idle).counts_down().await;
    two.under(&idle).opens().await;
    for name in [&scene.name, &opened, &idle] {
        nothing_is_left(fixture, name).await;
    }
}

/// C31 and C17: a dropped count-down has either counted or not; once repeated, it has counted once.
pub async fn a_dropped_count_down_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        let id = new_id();
        two.sets(3).await;
        let ended = poll_times(polls, one.begins_to_count_down(&id)).await;
        one.counts_down_as(&id).await;
        two.has_left(2).await;
        assert_eq!(one.counts_down().await, 1);
        if ended.is_some() {
            return;
        }
    }
}

/// C31 and C17: a dropped request to open can be repeated.
pub async fn a_dropped_opening_can_be_repeated<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        two.sets(3).await;
        let ended = poll_times(polls, one.begins_to_open()).await;
        one.opens().await;
        two.has_left(0).await;
        nothing_is_left(fixture, &scene.name).await;
        if ended.is_some() {
            return;
        }
    }
}

/// C31 and C17: a dropped read of the count changes nothing.
pub async fn a_dropped_look_at_a_latch_changes_nothing<F: Fixture>(fixture: &F) {
    for polls in 0..POLLS {
        let scene = Scene::of(fixture).await;
        let [one, two] = latch(&scene);
        two.sets(3).await;
        let ended = poll_times(polls, one.begins_to_look()).await;
        one.has_left(3).await;
        if ended.is_some() {
            return;
        }
    }
}
