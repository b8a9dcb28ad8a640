//! [`SlotMigration`]: the migration of a slot from one node to another.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use super::{
    super::settle::{Patience, ask, or_panic},
    RedisCluster,
    nodes::view,
};

/// The number of keys per batch.
const BATCH: &str = "100";

/// A migration that has begun. It stays in this state until
/// [`finish_migration`](RedisCluster::finish_migration), however long that takes.
///
/// # Examples
/// ```
/// use lockcore_testkit::RedisCluster;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let cluster = RedisCluster::builder().replicas_each(0).start().await;
/// let slot = cluster.slot_of("invoice").await;
/// let from = cluster.primary_of(slot).await;
/// let to = (from + 1) % 3;
///
/// let migration = cluster.begin_migration(slot, to).await;
/// // Keys that are not there are asked for at the target from now on.
/// let answer = cluster.node(from).try_query::<bool>(&["EXISTS", "invoice"]).await;
/// assert_eq!(answer.unwrap_err().code(), Some("ASK"));
/// cluster.move_keys(&migration).await;
/// cluster.finish_migration(migration).await;
/// assert_eq!(cluster.primary_of(slot).await, to);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a migration that is not finished goes on for ever"]
pub struct SlotMigration {
    slot: u16,
    from: usize,
    to: usize,
}

impl SlotMigration {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The node that the slot leaves.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// The node that gets the slot.
    #[must_use]
    pub fn to(&self) -> usize {
        self.to
    }
}

impl RedisCluster {
    /// Moves a slot with its keys to another primary, and waits until all running nodes agree.
    ///
    /// # Panics
    /// If a node refuses a step, or the nodes do not agree within a minute.
    pub async fn migrate_slot(&self, slot: u16, to: usize) {
        let migration = self.begin_migration(slot, to).await;
        self.move_keys(&migration).await;
        self.finish_migration(migration).await;
    }

    /// Marks a slot as migrating at its primary and as importing at another one. No key is moved.
    /// Waits first until all nodes have heard of the last migration of the slot.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn begin_migration(&self, slot: u16, to: usize) -> SlotMigration {
        let from = self.primary_of(slot).await;
        self.heard_of_last_move(slot, from).await;
        let number = slot.to_string();
        self.set_slot(to, &[&number, "IMPORTING", &self.nodes[from].id]).await;
        self.set_slot(from, &[&number, "MIGRATING", &self.nodes[to].id]).await;
        SlotMigration { slot, from, to }
    }

    /// Moves the keys that are in the slot now, and returns their number.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn move_keys(&self, migration: &SlotMigration) -> usize {
        let slot = migration.slot.to_string();
        let mut moved = 0;
        loop {
            let command = ["CLUSTER", "GETKEYSINSLOT", &slot, BATCH];
            let keys: Vec<String> = self.node(migration.from).query(&command).await;
            if keys.is_empty() {
                return moved;
            }
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            self.move_keys_of(migration, &keys).await;
            moved += keys.len();
        }
    }

    /// Moves some keys of the slot; those that do not exist are left out.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn move_keys_of(&self, migration: &SlotMigration, keys: &[&str]) {
        let target = self.node(migration.to);
        let port = target.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        if let Some(password) = target.password() {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys);
        let source = self.node(migration.from);
        // Not `query`, whose panic message would contain the password.
        source
            .try_query::<String>(&command)
            .await
            .unwrap_or_else(|error| panic!("MIGRATE of slot {}: {error}", migration.slot));
    }

    /// Gives the slot to the target, and waits until all running nodes agree.
    ///
    /// # Panics
    /// If keys of the slot are still at the source, or the nodes do not agree within a minute.
    pub async fn finish_migration(&self, migration: SlotMigration) {
        let slot = migration.slot.to_string();
        let owner = &self.nodes[migration.to].id;
        let source = self.node(migration.from);
        let left: usize = source.query(&["CLUSTER", "COUNTKEYSINSLOT", &slot]).await;
        assert_eq!(left, 0, "keys of slot {slot} are still at node {}", migration.from);
        // The target first: after a failure in between, no node would have the slot otherwise.
        self.set_slot(migration.to, &[&slot, "NODE", owner]).await;
        self.has_moved(migration.slot);
        // Refused if the source has heard of it already and had no other slot, because it is a
        // replica then.
        let _ = ask::<()>(source, &["CLUSTER", "SETSLOT", &slot, "NODE", owner]).await;
        let patience = Patience::new();
        while self.primary_of(migration.slot).await != migration.to {
            or_panic(patience.wait(format!("slot {slot} has not arrived")).await);
        }
        self.settle().await;
    }

    /// Leaves the slot where it was, and moves keys that were moved already back.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn cancel_migration(&self, migration: SlotMigration) {
        let SlotMigration { slot, from, to } = migration;
        let stable = [&slot.to_string(), "STABLE"];
        // The source accepts keys once it is stable; the target gives them up while it is not.
        self.set_slot(from, &stable).await;
        self.move_keys(&SlotMigration { slot, from: to, to: from }).await;
        self.set_slot(to, &stable).await;
    }

    /// Notes that a slot has got to a new primary just now.
    fn has_moved(&self, slot: u16) {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
        self.moves().insert(slot, now.try_into().unwrap_or(u64::MAX));
    }

    /// Waits until each running node has a pong that `primary` sent after it got a slot that has
    /// moved.
    ///
    /// The last message before the move makes a node note that the primary does not claim the slot.
    /// Redis 7.0.13 to 7.2.1 keep that note when the slot moves on to the node itself, which then
    /// leaves the slot to any other node that claims it (redis #12564).
    async fn heard_of_last_move(&self, slot: u16, primary: usize) {
        let Some(moved) = self.moves().get(&slot).copied() else { return };
        let id = &self.nodes[primary].id;
        let patience = Patience::new();
        for observer in self.running().filter(|node| node.id != *id) {
            loop {
                // Whole seconds are what other nodes have said about the primary.
                let is_new = |pong: u64| pong > moved && !pong.is_multiple_of(1000);
                let missing = match view(observer).await {
                    Ok(view) if view.nodes.get(id).is_some_and(|it| is_new(it.last_pong)) => break,
                    Ok(_) => format!("{} has no new pong of {id}", observer.server.address()),
                    Err(missing) => missing,
                };
                or_panic(patience.wait(missing).await);
            }
        }
    }

    fn moves(&self) -> MutexGuard<'_, BTreeMap<u16, u64>> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn set_slot(&self, index: usize, arguments: &[&str]) {
        let command = [&["CLUSTER", "SETSLOT"][..], arguments].concat();
        self.node(index).query::<()>(&command).await;
    }
}
