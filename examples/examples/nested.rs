//! Code in layers, each of which takes the lock it needs, whoever calls it: `run`, `scope`, `owned_by`, hold counts, and
//! who is a stranger.
//!
//! ```text
//! cargo run --example nested
//! cargo run --example nested -- --redis redis://127.0.0.1:6379
//! ```

use std::process::ExitCode;

use lockcore::{LockError, LockGuard, Locks, Owner};
use lockcore_examples::{Failure, Store, Story, claim, with_store};

#[tokio::main]
async fn main() -> ExitCode {
    with_store("nested", nested).await
}

async fn nested(store: Store) -> Result<(), Failure> {
    let locks = store.client().await?.build()?;
    let elsewhere = store.client().await?.build()?;
    let story = Story::begin(format_args!("Nested locks; the locks are kept {store}"));
    layers(&story, &locks).await?;
    scope(&story, &locks).await?;
    explicit_owner(&story, &locks).await?;
    any_order(&story, &locks, &elsewhere).await?;
    strangers(&story, &locks).await?;
    locks.close().await?;
    elsewhere.close().await?;
    Ok(())
}

/// With `run`, whatever the body calls belongs to the hold of the body.
async fn layers(story: &Story, locks: &Locks) -> Result<(), Failure> {
    story.chapter("1. `run`: three layers, each of which locks `order:42`");
    let shop = Shop { story, locks };
    shop.check_out("order:42").await?;
    claim(
        !locks.lock("order:42").state().await?.is_held(),
        "the lock is free when the outermost layer is done",
    )?;
    story.tell("order:42", "is free again");
    Ok(())
}

struct Shop<'a> {
    story: &'a Story,
    locks: &'a Locks,
}

impl Shop<'_> {
    async fn check_out(&self, order: &str) -> Result<(), Failure> {
        let lock = self.locks.lock(order);
        let done = lock.run(async |guard| {
            self.entered("check_out", guard, 1)?;
            self.charge(order).await
        });
        done.await?
    }

    /// Also called on its own, for an order on account: then it is the outermost layer.
    async fn charge(&self, order: &str) -> Result<(), Failure> {
        let lock = self.locks.lock(order);
        let done = lock.run(async |guard| {
            self.entered("charge", guard, 2)?;
            self.write_journal(order).await
        });
        done.await?
    }

    /// With a guard instead of `run`: it is in the scope of its callers all the same.
    async fn write_journal(&self, order: &str) -> Result<(), Failure> {
        let guard = self.locks.lock(order).acquire().await?;
        self.entered("journal", &guard, 3)?;
        Ok(guard.release().await?)
    }

    fn entered(&self, layer: &str, guard: &LockGuard, depth: u32) -> Result<(), Failure> {
        let (count, token) = (guard.hold_count(), guard.token());
        self.story.tell(
            layer,
            format_args!("holds `{}`: hold count {count}, token {token}", guard.name()),
        );
        claim(count == depth, "the hold count is the depth")
    }
}

/// With `scope`, guards that are taken one after the other belong together.
async fn scope(story: &Story, locks: &Locks) -> Result<(), Failure> {
    story.chapter("2. `scope`: everything in it has one owner");
    let work = async {
        let first = locks.lock("stock").acquire().await?;
        let again = locks.lock("stock").try_acquire().await?;
        story.tell(
            "in scope",
            format_args!("takes `stock` twice: hold count {}", first.hold_count()),
        );
        claim(again.is_some() && first.hold_count() == 2, "the second acquisition enters")
    };
    locks.scope(work).await?;

    let _first = locks.lock("stock").acquire().await?;
    let again = locks.lock("stock").try_acquire().await?;
    story.tell("without", "a scope, the second acquisition is a stranger's: refused");
    claim(again.is_none(), "without a scope each acquisition has an owner of its own")
}

/// With `owned_by`, the owner is a value that is handed on, here to a task.
async fn explicit_owner(story: &Story, locks: &Locks) -> Result<(), Failure> {
    story.chapter("3. `owned_by`: an owner for several tasks");
    let owner = Owner::new();
    let outer = locks.lock("report").owned_by(&owner).acquire().await?;
    story.tell("task 1", "holds `report`, and hands its owner to a task that it spawns");
    let inner = tokio::spawn(locks.lock("report").owned_by(&owner).acquire()).await??;
    story.tell(
        "task 2",
        format_args!("enters as the same owner: hold count {}", inner.hold_count()),
    );
    claim(outer.hold_count() == 2 && inner.token() == outer.token(), "both guards are of one hold")
}

/// The lock is free when the last guard is gone, whichever that is.
async fn any_order(story: &Story, locks: &Locks, elsewhere: &Locks) -> Result<(), Failure> {
    story.chapter("4. Guards may go in any order, here the outermost first");
    let owner = Owner::new();
    let lock = locks.lock("cart").owned_by(&owner);
    let guards = [
        ("first", lock.acquire().await?),
        ("second", lock.acquire().await?),
        ("third", lock.acquire().await?),
    ];
    for (name, guard) in guards {
        let is_free = elsewhere.lock("cart").try_acquire().await?.is_some();
        story.tell(
            "cart",
            format_args!("hold count {}; free for others: {is_free}", guard.hold_count()),
        );
        claim(!is_free, "the lock is held while a guard is left")?;
        guard.release().await?;
        story.tell(name, "guard released");
    }
    let is_free = elsewhere.lock("cart").try_acquire().await?.is_some();
    story.tell("cart", format_args!("free for others: {is_free}"));
    claim(is_free, "the lock is free when the last guard is gone")
}

/// Reentrancy is never granted by accident: not by thread, and not by task.
async fn strangers(story: &Story, locks: &Locks) -> Result<(), Failure> {
    story.chapter("5. Strangers: a spawned task, and two branches of one `join!`");
    let lock = locks.lock("account:7");
    let spawned = lock.run(async |_| {
        let try_it = locks.lock("account:7").try_acquire();
        tokio::spawn(try_it).await
    });
    let spawned = spawned.await???;
    story.tell("spawned", "task inside of `run`: refused, it does not inherit the owner");
    claim(spawned.is_none(), "a spawned task is a stranger")?;

    let branch = async |name: &str| {
        let guard = lock.acquire().await?;
        story.tell(name, format_args!("branch is inside, hold count {}", guard.hold_count()));
        tokio::task::yield_now().await;
        let alone = guard.hold_count() == 1;
        story.tell(name, "branch leaves");
        guard.release().await?;
        Ok::<_, LockError>(alone)
    };
    let (left, right) = tokio::try_join!(branch("left"), branch("right"))?;
    claim(left && right, "two branches exclude each other")
}
