//! Nested locks, contention, a lost lock and fencing tokens, in a few seconds.
//!
//! ```text
//! cargo run --example quickstart
//! cargo run --example quickstart -- --redis redis://127.0.0.1:6379
//! ```

use std::{process::ExitCode, time::Duration};

use lockcore::{FencingToken, LockError, Locks};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::time::{Instant, sleep};

/// How long a hold outlives a holder that has died. So short only to keep the example short: the default is 30 s.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("quickstart", quickstart).await
}

async fn quickstart(store: Store) -> Result<(), Failure> {
    // Two clients of one store are what two processes would be.
    let ours = store.client().await?.lease(LEASE).build()?;
    let theirs = store.client().await?.lease(LEASE).build()?;

    let story =
        Story::begin(format_args!("lockcore in four short chapters; the locks are kept {store}"));
    nested(&story, &ours, &theirs).await?;
    contention(&story, &ours, &theirs).await?;
    lost_lock(&story, &ours, &theirs).await?;
    fencing_tokens(&story, &ours, &theirs).await?;

    story.line("\nEverything went as told. See next, each with or without `-- --redis URL`:");
    story.line("  cargo run --example oversell     what happens without a lock");
    story.line("  cargo run --example singleton    a worker is killed, another takes over");
    story.line("  cargo run --example lost_lock    what to do when a lock is lost");
    ours.close().await?;
    theirs.close().await?;
    Ok(())
}

async fn nested(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    story.chapter("1. Nested locks: who holds a lock may take it again");
    let refund = ours.lock("account:7").run(async |guard| -> Result<(), Failure> {
        story.tell("refund", format_args!("holds `account:7`, hold count {}", guard.hold_count()));
        book(story, ours).await?;
        story
            .tell("refund", format_args!("`book` has returned, hold count {}", guard.hold_count()));
        let stranger = theirs.lock("account:7").try_acquire().await?;
        story.tell("stranger", "is refused: the lock belongs to `refund`");
        claim(stranger.is_none(), "a stranger is refused while the lock is held")
    });
    refund.await?
}

/// Takes the lock whoever calls it: within `refund` it enters at once, without asking the store.
async fn book(story: &Story, locks: &Locks) -> Result<(), Failure> {
    let guard = locks.lock("account:7").acquire().await?;
    story.tell(
        "book",
        format_args!("called by `refund`, takes it again, hold count {}", guard.hold_count()),
    );
    claim(guard.hold_count() == 2, "the nested acquisition is counted")?;
    Ok(guard.release().await?)
}

async fn contention(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    const WORK: Duration = Duration::from_secs(1);
    const PATIENCE: Duration = Duration::from_millis(100);

    story.chapter("2. Contention: one at a time, and no polling");
    let began = Instant::now();
    let alices = ours.lock("order:42").acquire().await?;
    story.tell(
        "alice",
        format_args!("gets `order:42` with token {}, works for {WORK:?}", alices.token()),
    );
    let alices_token = alices.token();
    let alice = async {
        sleep(WORK).await;
        story.tell("alice", "releases it");
        Ok(alices.release().await?)
    };
    let bob = async {
        story.tell("bob", "wants it too, and waits");
        let guard = theirs.lock("order:42").acquire().await?;
        story.tell(
            "bob",
            format_args!("is woken by the release and gets it with token {}", guard.token()),
        );
        claim(began.elapsed() >= WORK, "bob enters after alice has left")?;
        claim(guard.token() > alices_token, "the later hold has the greater token")?;
        Ok(guard.release().await?)
    };
    let carol = async {
        story.tell("carol", format_args!("wants it within {PATIENCE:?}"));
        match theirs.lock("order:42").acquire_timeout(PATIENCE).await {
            Err(LockError::Timeout { .. }) => {
                story.tell("carol", "gives up");
                Ok(())
            }
            other => claim(other.is_err(), "carol does not get in while alice works"),
        }
    };
    tokio::try_join!(alice, bob, carol).map(|_: ((), (), ())| ())
}

async fn lost_lock(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    story.chapter("3. A lost lock: the work stops by itself");
    let lock = ours.lock("import");
    let import = lock.run(async |_| {
        story.tell(
            "import",
            "holds `import`, and would work for an hour; its lease is renewed meanwhile",
        );
        sleep(Duration::from_secs(3600)).await;
    });
    let operator = async {
        // Past the end of the first lease, and between two renewals.
        sleep(LEASE * 7 / 6).await;
        story.tell("operator", "takes the lock away with `force_release`, in another process");
        theirs.lock("import").force_release().await
    };
    let (imported, forced) = tokio::join!(import, operator);
    claim(forced?, "the renewals kept the lock past its first lease")?;
    match imported {
        Err(error @ LockError::Lost { .. }) => {
            story.tell(
                "import",
                "learns of it with its next renewal; `run` drops the work and returns",
            );
            story.add(error);
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(()) => claim(false, "`run` tells that the lock was lost"),
    }
}

async fn fencing_tokens(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    const SHORT: Duration = Duration::from_secs(1);

    story.chapter("4. Fencing tokens: who comes too late is refused by the resource");
    let mut ledger = Ledger::default();
    let late = ours.lock("ledger").lease(SHORT).acquire().await?;
    story.tell(
        "late",
        format_args!("gets `ledger` with token {} for {SHORT:?}, and stalls", late.token()),
    );

    let next = theirs.lock("ledger").acquire().await?;
    story
        .tell("next", format_args!("gets it with token {} when the lease has ended", next.token()));
    claim(ledger.write(next.token()), "the ledger takes the newer token")?;
    story.tell("next", format_args!("writes with token {}: written", next.token()));

    claim(!ledger.write(late.token()), "the ledger refuses the older token")?;
    story.tell("late", format_args!("goes on, writes with token {}: refused", late.token()));
    claim(
        matches!(late.release().await, Err(LockError::Lost { .. })),
        "`release` tells of the loss",
    )?;
    story.tell("late", "learns from `release` as well that it had lost the lock");
    Ok(next.release().await?)
}

/// What a lock protects: it remembers the greatest token that it has seen and refuses every smaller one.
#[derive(Default)]
struct Ledger {
    greatest: Option<FencingToken>,
}

impl Ledger {
    fn write(&mut self, token: FencingToken) -> bool {
        let is_newest = self.greatest.is_none_or(|greatest| token >= greatest);
        if is_newest {
            self.greatest = Some(token);
        }
        is_newest
    }
}
