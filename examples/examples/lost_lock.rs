//! What happens when a lock is lost while its holder works: `run` drops its body, `lost()` resolves, `release()` says so,
//! and the resource refuses the token of a holder that noticed too late.
//!
//! ```text
//! cargo run --example lost_lock
//! cargo run --example lost_lock -- --redis redis://127.0.0.1:6379
//! ```

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use lockcore::{FencingToken, LockError, Locks, LossReason};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

/// How long a hold outlives a holder that has died. So short only to keep the example short: the default is 30 s.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("lost_lock", lost_lock).await
}

async fn lost_lock(store: Store) -> Result<(), Failure> {
    let ours = store.client().await?.lease(LEASE).build()?;
    let theirs = store.client().await?.lease(LEASE).build()?;
    let story = Arc::new(Story::begin(format_args!("Lost locks; the locks are kept {store}")));
    lease_ends(&story, &ours).await?;
    forced_out(&story, &ours, &theirs).await?;
    stopped(&story, store, &theirs).await?;
    story.line(
        "\nIn short: let `run` stop the work, or watch `lost()`; and have whatever must not happen twice check the token.",
    );
    ours.close().await?;
    theirs.close().await?;
    Ok(())
}

/// A fixed lease is not renewed. When it ends, `run` drops its body.
async fn lease_ends(story: &Story, locks: &Locks) -> Result<(), Failure> {
    const FIXED: Duration = Duration::from_secs(1);

    story.chapter("1. The lease ends while `run` works");
    let began = Instant::now();
    let lock = locks.lock("import").lease(FIXED);
    let work = lock.run(async |guard| {
        let _told_when_dropped = Farewell(story);
        let left = guard.remaining().as_millis();
        story.tell("worker", format_args!("holds `import` for {left} ms more, and needs an hour"));
        sleep(Duration::from_secs(3600)).await;
    });
    let error = work.await.err().ok_or("`run` should tell that the lease ended")?;
    claim(began.elapsed() < FIXED * 3, "the body is dropped when the lease ends")?;
    claim(is_lost(&error, LossReason::LeaseEnded), "`run` says why")?;
    story.tell("worker", "`run` returns:");
    story.add(&error);
    Ok(())
}

/// Tells that the body was dropped, as any other destructor in it would run.
struct Farewell<'a>(&'a Story);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.tell("worker", "the body is dropped, before anybody else gets in");
    }
}

/// An operator frees the lock. The holder, elsewhere, learns of it with its next renewal.
async fn forced_out(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    story.chapter("2. An operator frees the lock with `force_release`");
    let guard = ours.lock("export").acquire().await?;
    story.tell(
        "worker",
        format_args!("holds `export` with token {}, watches `lost()`", guard.token()),
    );
    let operator = async {
        sleep(LEASE / 2).await;
        let state = theirs.lock("export").state().await?;
        story.tell(
            "operator",
            format_args!("sees {} holder, frees the lock", state.holders().len()),
        );
        theirs.lock("export").force_release().await
    };
    let work = async {
        tokio::select! {
            loss = guard.lost() => Err(loss.reason()),
            () = sleep(Duration::from_secs(3600)) => Ok(()),
        }
    };
    let (work, forced) = tokio::join!(work, operator);
    claim(forced?, "the operator found the lock held")?;
    claim(
        work == Err(LossReason::Gone) && !guard.is_held(),
        "`lost()` resolves and says how the hold was lost",
    )?;
    story.tell("worker", "`lost()` resolves with the next renewal, which is refused; stops");
    let error =
        guard.release().await.err().ok_or("`release()` should tell that the hold was lost")?;
    claim(is_lost(&error, LossReason::Gone), "`release()` says the same")?;
    story.tell("worker", "`release()` returns:");
    story.add(&error);
    Ok(())
}

/// A process that is stopped, as by a long garbage collection, a suspended machine or a debugger, cannot notice anything.
/// The resource protects itself: it refuses the token.
async fn stopped(story: &Arc<Story>, store: Store, theirs: &Locks) -> Result<(), Failure> {
    story.chapter(
        "3. A process is stopped for longer than its lease, and goes on as if nothing had happened",
    );
    let ledger = Arc::new(Ledger::default());
    let (holds, has_begun) = oneshot::channel();
    let (wake, wakes) = mpsc::channel();
    let process = tokio::task::spawn_blocking({
        let (story, ledger) = (story.clone(), ledger.clone());
        move || process_that_stops(&story, store, &ledger, holds, &wakes)
    });

    if has_begun.await.is_ok() {
        let guard = theirs.lock("ledger").acquire().await?;
        story.tell(
            "next",
            format_args!("gets the lock with token {} when the lease has ended", guard.token()),
        );
        claim(ledger.write(guard.token()), "the ledger takes the newer token")?;
        story.tell("next", format_args!("writes with token {}: written", guard.token()));
        wake.send(())?;
        process.await??;
        guard.release().await?;
    } else {
        process.await??;
    }
    claim(ledger.written() == 2, "both wrote once while they held the lock, and nobody after that")
}

/// A process of its own, as far as locks can tell: its client runs on a runtime of its own, which stands still while its
/// only thread is blocked, so that nothing renews the lease either.
fn process_that_stops(
    story: &Story,
    store: Store,
    ledger: &Ledger,
    holds: oneshot::Sender<()>,
    wakes: &mpsc::Receiver<()>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = store.client().await?.lease(LEASE).build()?;
        let guard = locks.lock("ledger").acquire().await?;
        claim(ledger.write(guard.token()), "a holder may write")?;
        story.tell(
            "stopped",
            format_args!("writes with token {}: written; is stopped", guard.token()),
        );
        holds.send(()).map_err(|()| "nobody waits for the lock")?;
        wakes.recv()?;

        claim(!ledger.write(guard.token()), "the ledger refuses the older token")?;
        story
            .tell("stopped", format_args!("goes on, writes with token {}: refused", guard.token()));
        claim(!guard.is_held(), "the hold is known to be lost as soon as anybody looks")?;
        story.tell("stopped", "`is_held()` is false: had it looked first, it would not have tried");
        let lost = guard.release().await;
        claim(
            matches!(lost, Err(LockError::Lost { .. })),
            "`release()` says that the hold was lost",
        )
    })
}

/// What the lock protects: it remembers the greatest token that it has seen and refuses every smaller one.
#[derive(Default)]
struct Ledger(Mutex<(Option<FencingToken>, u32)>);

impl Ledger {
    fn write(&self, token: FencingToken) -> bool {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (greatest, written) = &mut *ledger;
        let is_newest = greatest.is_none_or(|greatest| token >= greatest);
        if is_newest {
            *greatest = Some(token);
            *written += 1;
        }
        is_newest
    }

    fn written(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

fn is_lost(error: &LockError, expected: LossReason) -> bool {
    matches!(error, LockError::Lost { reason, .. } if *reason == expected)
}
