//! [`PostgresServer`]: a private PostgreSQL server for tests, as a real process, and [`PgBouncer`],
//! a pooler in front of it.

mod launch;
mod pooler;
mod server;

pub use self::{launch::PostgresStartError, pooler::PgBouncer, server::PostgresServer};
