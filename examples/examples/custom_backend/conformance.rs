//! The proof: the conformance kit, a test a case.

#![allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use lockcore::{LockName, backend::Backend};
use lockcore_testkit::Fixture;

use crate::store::FileBackend;

/// A file of one test's own.
struct FileFixture {
    directory: PathBuf,
}

impl FileFixture {
    fn file(&self) -> PathBuf {
        self.directory.join("locks")
    }
}

impl Fixture for FileFixture {
    type Backend = FileBackend;

    async fn set_up() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("custom-backend-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Self { directory }
    }

    async fn client(&self) -> FileBackend {
        FileBackend::open(self.file()).unwrap()
    }

    async fn left_behind(&self, name: &LockName) -> Vec<String> {
        let held = self.client().await.inspect(name).await.unwrap().is_held();
        let written = fs::read_to_string(self.file()).unwrap();
        let mut left: Vec<String> = written
            .lines()
            .filter(|line| line.contains(name.as_str()))
            .map(str::to_owned)
            .collect();
        left.extend(held.then(|| "a hold".to_owned()));
        left
    }
}

impl Drop for FileFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

lockcore_testkit::conformance_tests!(FileFixture);
