//! C6 and C10: ids of holds and names of owners that are as long as the contract allows.

use lockcore::{
    LockName, Mode, Owner,
    backend::{Backend, HoldId},
};
use uuid::Uuid;

use crate::{
    Fixture,
    conformance::{
        capabilities::modes,
        scene::{LASTING, Rival, Scene, nothing_is_left, soon, stranger, unique_name},
    },
};

/// The greatest length of an id, in bytes.
const LONGEST_ID: usize = 1024;

/// Two unique texts of `length` bytes, which differ in the last byte only. Most of their characters
/// have a meaning somewhere.
fn twins(length: usize) -> [String; 2] {
    let mut stem = Uuid::new_v4().to_string();
    for character in "é😀'\"\\%{}:/*?[] $;,&#|-_".chars().cycle() {
        if stem.len() + character.len_utf8() >= length {
            break;
        }
        stem.push(character);
    }
    stem.push_str(&"x".repeat(length - 1 - stem.len()));
    ["y", "z"].map(|end| format!("{stem}{end}"))
}

fn longest_name() -> LockName {
    let most = LockName::MAX_LEN - unique_name("").as_str().len();
    unique_name(&"n".repeat(most))
}

/// Everything that a holder does.
async fn lives(holder: Rival<'_>) {
    let token = holder.enters_for(LASTING / 10).await;
    assert_eq!(holder.enters_for(LASTING / 10).await, token, "a repetition is no new hold");
    holder.renews(LASTING / 5).await;
    assert_eq!(holder.grows_to(3, LASTING).await, token, "growth is no new hold");
    holder.lowers_to(2).await;
    let (count, remaining) = holder.holds().await;
    assert!(count == 2 && remaining > LASTING / 2, "{count}, {remaining:?}");
}

/// C10: holds whose ids are as long as possible and differ in the last byte only are told apart in
/// every request, also under a name of the greatest length.
pub async fn ids_of_the_greatest_length_are_told_apart<F: Fixture>(fixture: &F) {
    let (scene, name) = (Scene::of(fixture).await, longest_name());
    let holds = twins(LONGEST_ID).map(HoldId::unique);
    let [holder, twin] = [scene.one(&holds[0]).under(&name), scene.two(&holds[1]).under(&name)];
    lives(holder).await;
    twin.is_refused().await;
    twin.cannot_renew().await;
    twin.cannot_release().await;
    let batch = [&holder, &twin].map(|rival| rival.renew_request(LASTING));
    let outcomes = soon(scene.one.renew(&batch)).await.expect("renew failed");
    assert_eq!(format!("{outcomes:?}"), "[Renewed, NotHeld]");
    assert_eq!(holder.holds().await.0, 2, "a request of the other one was taken for its own");
    let mut wakeups = twin.subscribes().await;
    holder.releases().await;
    soon(wakeups.woken()).await;
    drop(wakeups);
    twin.enters().await;
    holder.cannot_release().await;
    twin.releases().await;
    twin.undoes().await;
    nothing_is_left(fixture, &name).await;
}

/// C10: a hold of any declared mode can have an id of the greatest length, and so can those who
/// wait for it.
pub async fn holds_of_every_mode_can_have_ids_of_the_greatest_length<F: Fixture>(fixture: &F) {
    let scene = Scene::of(fixture).await;
    let holds = twins(LONGEST_ID).map(HoldId::unique);
    for mode in modes().into_iter().filter(|mode| scene.one.capabilities().supports(*mode)) {
        let (name, other) = (longest_name(), stranger());
        let [holder, twin] = [scene.one(&holds[0]), scene.two(&holds[1])]
            .map(|rival| rival.under(&name).in_mode(mode));
        let token = holder.enters_for(LASTING / 10).await;
        assert_eq!(holder.enters_for(LASTING / 10).await, token, "{mode}: this is another hold");
        holder.renews(LASTING).await;
        twin.cannot_renew().await;
        twin.cannot_release().await;
        let waiter = match mode {
            Mode::Read => twin.writing(),
            _ => twin.taking(2),
        };
        let mut wakeups = waiter.subscribes().await;
        waiter.queues().await;
        holder.releases().await;
        soon(wakeups.woken()).await;
        drop(wakeups);
        waiter.enters().await;
        scene.one(&other).under(&name).in_mode(waiter.mode()).is_refused().await;
        waiter.releases().await;
        nothing_is_left(fixture, &name).await;
    }
}

/// C6: named owners whose names are as long as possible and differ in the last byte only exclude
/// each other, and each takes over its own hold only.
pub async fn owners_of_the_greatest_length_are_told_apart<F: Fixture>(fixture: &F) {
    let (scene, name) = (Scene::of(fixture).await, longest_name());
    let owners = twins(Owner::MAX_NAME_LEN);
    let [first, second] = twins(LONGEST_ID).map(|id| HoldId::named(owners[0].as_str(), id));
    let [third, _] = twins(LONGEST_ID).map(|id| HoldId::named(owners[1].as_str(), id));
    let [holder, other] = [scene.one(&first), scene.two(&third)].map(|one| one.under(&name));
    lives(holder).await;
    other.is_refused().await;
    other.cannot_renew().await;
    other.cannot_release().await;
    let successor = scene.two(&second).under(&name);
    successor.enters().await;
    assert_eq!(successor.holds().await.0, 1, "a takeover is a new hold");
    holder.cannot_renew().await;
    holder.cannot_release().await;
    other.is_refused().await;
    successor.releases().await;
    other.enters().await;
    other.releases().await;
    nothing_is_left(fixture, &name).await;
}
