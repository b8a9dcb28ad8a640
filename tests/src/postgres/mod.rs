//! [`PostgresServer`]: a private PostgreSQL server for tests, as a real process.

mod launch;
mod server;

pub use self::{launch::PostgresStartError, server::PostgresServer};
