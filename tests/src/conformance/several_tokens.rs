//! C37: a grant of several tokens uses up all of them. Tokens rise from task to task with and
//! without such grants.

use std::{sync::Arc, time::Duration};

use lockcore::{FencingToken, Locks, backend::Backend};
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    Fixture,
    conformance::scene::{LASTING, Scene, force, soon, stranger, unique_name},
};

/// The number of tokens to ask for at once, if the backend grants several: larger than the
/// microseconds between two grants, for stores whose tokens follow a clock.
const SEVERAL: u32 = 100_000;

fn several(client: &impl Backend) -> u32 {
    client.limits().most_tokens.min(SEVERAL)
}

/// Shows that `later` is greater than all tokens of a grant whose first is `first`.
fn assert_beyond(first: FencingToken, several: u32, later: FencingToken) {
    let last = u64::from(first) + u64::from(several) - 1;
    assert!(
        u64::from(later) > last,
        "{later} was given away with {first} already, whose last is {last}"
    );
}

/// C37: the token of the next hold is greater than all of them.
pub async fn later_tokens_are_greater_than_all_that_were_granted<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    // Where tokens follow a clock, the first of several is then the time, not one more than the
    // last.
    let earlier = stranger();
    scene.one(&earlier).enters().await;
    scene.one(&earlier).releases().await;
    let (mut granted, several) = (Vec::new(), several(&scene.one));
    for round in 0..6 {
        let hold = stranger();
        let holder = if round % 2 == 0 { scene.one(&hold) } else { scene.two(&hold) };
        granted.push(holder.with_tokens(several).enters().await);
        holder.releases().await;
    }
    for pair in granted.windows(2) {
        assert_beyond(pair[0], several, pair[1]);
    }
    let single = stranger();
    assert_beyond(granted[5], several, scene.one(&single).enters().await);
}

/// C37: the tokens stay used up if the hold ended in another way than by its release.
pub async fn tokens_are_not_given_away_again_after_a_hold_that_ended_otherwise<F: Fixture>(
    fixture: &F,
) {
    let scene = Scene::of(fixture).await;
    let (first, second, third) = (stranger(), stranger(), stranger());
    let (several, brief) = (several(&scene.one), scene.brief());
    let expired = scene.one(&first).with_tokens(several).enters_for(brief).await;
    fixture.pass(brief + Duration::from_millis(5)).await;
    let forced = scene.two(&second).with_tokens(several).enters().await;
    assert_beyond(expired, several, forced);
    assert!(force(&scene.one, &scene.name).await);
    assert_beyond(forced, several, scene.two(&third).enters().await);
}

/// C37: a request that arrives twice gets the same first token.
pub async fn a_repetition_is_answered_with_the_first_of_its_tokens<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let (hold, next, several) = (stranger(), stranger(), several(&scene.one));
    let first = scene.one(&hold).with_tokens(several).enters().await;
    assert_eq!(scene.one(&hold).with_tokens(several).enters().await, first);
    assert_eq!(scene.two(&hold).with_tokens(several).enters().await, first, "by another way");
    scene.one(&hold).releases().await;
    assert_beyond(first, several, scene.two(&next).enters().await);
}

/// C4 and C37: contending tasks of two clients have rising tokens, whether they got the lock from
/// the backend or from the previous task.
pub async fn tokens_rise_from_task_to_task<F: Fixture>(fixture: &F) {
    const TASKS: usize = 6;
    const TURNS: usize = 5;
    let name = unique_name("").as_str().to_owned();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for client in [fixture.client().await, fixture.client().await] {
        let locks = Locks::builder(client).lease(LASTING).build().expect("a valid lease");
        for _ in 0..TASKS {
            let (lock, tokens) = (locks.lock(&name), tokens.clone());
            tasks.spawn(async move {
                for _ in 0..TURNS {
                    let guard = lock.acquire().await.expect("acquire failed");
                    tokens.try_lock().expect("two hold the lock at once").push(guard.token());
                    guard.release().await.expect("release failed");
                }
            });
        }
    }
    soon(tasks.join_all()).await;
    let tokens = tokens.lock().await;
    assert_eq!(tokens.len(), 2 * TASKS * TURNS);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens do not rise: {tokens:?}");
}
