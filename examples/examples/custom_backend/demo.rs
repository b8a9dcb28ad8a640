//! What a lock in a file can do.

use std::{path::PathBuf, time::Duration};

use lockcore::{LockError, Locks};
use lockcore_examples::{Failure, Story, claim};
use tokio::time::{Instant, sleep};

use crate::store::FileBackend;

pub(crate) async fn demo() -> Result<(), Failure> {
    let directory = Directory::new()?;
    let file = directory.0.join("locks");
    let story =
        Story::begin(format_args!("Locks in `{}`, for all processes of this host", file.display()));
    // Each opens the file for itself, as two processes would.
    let ours = Locks::new(FileBackend::open(file.clone())?);
    let theirs = Locks::new(FileBackend::open(file)?);
    nested(&story, &ours).await?;
    contention(&story, &ours, &theirs).await?;
    dead_holder(&story, &ours, &theirs).await?;
    ours.close().await?;
    theirs.close().await?;
    Ok(())
}

async fn nested(story: &Story, locks: &Locks) -> Result<(), Failure> {
    story.chapter("1. Nesting: the core counts, the backend need not know");
    let lock = locks.lock("backup");
    let count = lock.run(async |_| lock.run(async |inner| inner.hold_count()).await).await??;
    story.tell("backup", format_args!("is inside its own lock twice: hold count {count}"));
    claim(count == 2, "a nested acquisition is counted")
}

async fn contention(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    story.chapter("2. Contention: the waiter looks at the file now and then");
    let guard = ours.lock("backup").acquire().await?;
    story.tell("first", format_args!("has the lock, with token {}", guard.token()));
    let token = guard.token();
    let first = async {
        sleep(Duration::from_millis(200)).await;
        story.tell("first", "releases it");
        guard.release().await
    };
    let second = async {
        story.tell("second", "waits");
        let guard = theirs.lock("backup").acquire().await?;
        story.tell("second", format_args!("has the lock, with token {}", guard.token()));
        let later = guard.token();
        guard.release().await?;
        Ok(later)
    };
    let ((), later) = tokio::try_join!(first, second)?;
    claim(later > token, "the later hold has the greater token")
}

async fn dead_holder(story: &Story, ours: &Locks, theirs: &Locks) -> Result<(), Failure> {
    const LEASE: Duration = Duration::from_millis(300);

    story.chapter("3. A lease that ends");
    let began = Instant::now();
    let guard = ours.lock("backup").lease(LEASE).acquire().await?;
    story.tell("first", format_args!("has the lock for {LEASE:?}, and never releases it"));
    let next = theirs.lock("backup").acquire().await?;
    story.tell("second", "has the lock");
    claim(began.elapsed() >= LEASE, "a lease does not end early")?;
    claim(
        !guard.is_held() && next.token() > guard.token(),
        "the hold is lost, its token is outdated",
    )?;
    next.release().await?;
    match guard.release().await {
        Err(error @ LockError::Lost { .. }) => {
            story.tell("first", "is told so when it releases:");
            story.add(error);
            Ok(())
        }
        _ => claim(false, "`release` tells that the hold was lost"),
    }
}

/// A directory that is removed when the example ends, however it does.
struct Directory(PathBuf);

impl Directory {
    fn new() -> std::io::Result<Self> {
        let path =
            std::env::temp_dir().join(format!("lockcore-custom-backend-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
