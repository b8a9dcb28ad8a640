//! [`Shim`]: a preloaded library that changes a process's view of its machine.

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::protocol::{Result, failure};

/// A preloaded library, in its own directory, with the file that controls it.
#[derive(Debug)]
pub(crate) struct Shim {
    directory: PathBuf,
    variable: &'static str,
}

impl Shim {
    /// Compiles the library, which reads the path of its file from the environment variable;
    /// `None` where there is no C compiler.
    pub(crate) fn compile(source: &str, variable: &'static str) -> Result<Option<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("lockcore-shim-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let shim = Self { directory, variable };
        std::fs::write(shim.path("shim.c"), source)?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(shim.path("shim.so"))
            .arg(shim.path("shim.c"));
        match compiler.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
            Ok(made) if made.status.success() => Ok(Some(shim)),
            Ok(made) => Err(failure(format!("cc: {}", String::from_utf8_lossy(&made.stderr)))),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// The file that controls the library.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("file")
    }

    /// The environment variables to start a process with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let shown = |path: PathBuf| path.display().to_string();
        vec![
            ("LD_PRELOAD".into(), shown(self.path("shim.so"))),
            (self.variable.into(), shown(self.file())),
        ]
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
