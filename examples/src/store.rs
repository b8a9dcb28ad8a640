//! [`Store`].

use std::fmt;

use lockcore::{BackendError, Locks, LocksBuilder};
use lockcore_memory::MemoryBackend;
use lockcore_redis::RedisBackend;

/// The store of the locks of an example: in memory, or in the Redis given with `--redis URL`.
#[derive(Clone)]
pub struct Store(Kind);

#[derive(Clone)]
enum Kind {
    Memory(MemoryBackend),
    /// The URL, which may contain a password.
    Redis(String),
}

impl Store {
    /// A new store in the memory of this process.
    #[must_use]
    pub fn memory() -> Self {
        Self(Kind::Memory(MemoryBackend::new()))
    }

    /// The Redis at `url`. This does no I/O yet.
    #[must_use]
    pub fn redis(url: impl Into<String>) -> Self {
        Self(Kind::Redis(url.into()))
    }

    /// A new client of the store, with its own connection, as if in another process.
    ///
    /// # Errors
    /// The error of the backend, if it cannot be reached.
    pub async fn client(&self) -> Result<LocksBuilder, BackendError> {
        match &self.0 {
            Kind::Memory(backend) => Ok(Locks::builder(backend.clone())),
            Kind::Redis(url) => {
                let backend = RedisBackend::connect(url).await?;
                // Two runs on one Redis must not wait for each other.
                Ok(Locks::builder(backend).namespace(format!("example-{}:", std::process::id())))
            }
        }
    }
}

/// The kind of store, without the URL.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Memory(_) => "in memory",
            Kind::Redis(_) => "in Redis",
        })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({self})")
    }
}
