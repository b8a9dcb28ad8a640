//! A writer that is stopped for longer than its lease, and a database that turns it away when it goes on: the lock and the
//! data are in the same PostgreSQL database, which checks the fencing token in the transaction that writes.
//!
//! ```text
//! cargo run --example fenced_writer
//! cargo run --example fenced_writer -- --postgres postgresql://user:password@127.0.0.1:5432/database
//! ```
//!
//! Without a URL, it starts a PostgreSQL of its own, and needs the programs of one.

use std::{process::ExitCode, time::Duration};

use lockcore::{FencingToken, LockName, Locks};
use lockcore_examples::{Failure, Story, claim, run_with};
use lockcore_postgres::{Fence, PostgresBackend, is_stale_token};
use lockcore_testkit::PostgresServer;
use tokio_postgres::{Client, NoTls};

/// How long a hold outlives a holder that was stopped. So short only to keep the example short.
const LEASE: Duration = Duration::from_millis(400);

#[tokio::main]
async fn main() -> ExitCode {
    run_with("fenced_writer", "--postgres", "postgresql://127.0.0.1:5432/database", async |url| {
        match url {
            Some(url) => fenced_writer(url).await,
            None => fenced_writer(&PostgresServer::start().url()).await,
        }
    })
    .await
}

/// A process of the shop: its locks, and its connection to the data.
struct Process {
    locks: Locks,
    client: Client,
}

impl Process {
    async fn start(url: &str) -> Result<Self, Failure> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let locks = Locks::new(PostgresBackend::connect(url).await?);
        Ok(Self { locks, client })
    }

    /// Sets the balance, unless somebody else has held the lock since the holder of `token`.
    async fn write(&mut self, balance: i32, token: FencingToken) -> Result<(), Failure> {
        let (fence, name) = (Fence::new("lockcore")?, LockName::new("account:7")?);
        let transaction = self.client.transaction().await?;
        fence.check(&transaction, &name, token).await?;
        transaction.execute("UPDATE fenced_account SET balance = $1", &[&balance]).await?;
        Ok(transaction.commit().await?)
    }

    async fn balance(&self) -> Result<i32, Failure> {
        Ok(self.client.query_one("SELECT balance FROM fenced_account", &[]).await?.try_get(0)?)
    }
}

async fn fenced_writer(url: &str) -> Result<(), Failure> {
    let story = Story::begin("A writer that is stopped for too long, and a database that knows");
    let (mut slow, mut quick) = (Process::start(url).await?, Process::start(url).await?);
    let table = "CREATE TABLE IF NOT EXISTS fenced_account (balance int); DELETE FROM \
                 fenced_account; INSERT INTO fenced_account VALUES (100)";
    slow.client.batch_execute(table).await?;

    story.chapter("1. The slow process has the lock, reads the balance, and is stopped");
    let guard = slow.locks.lock("account:7").lease(LEASE).acquire().await?;
    let (read, old) = (slow.balance().await?, guard.token());
    story.tell("slow", format_args!("reads {read}, with token {old}, and hears nothing from here"));

    story.chapter("2. Its lease ends, and the quick one pays 30 out");
    let guard = quick.locks.lock("account:7").acquire().await?;
    let (balance, new) = (quick.balance().await?, guard.token());
    quick.write(balance - 30, new).await?;
    story.tell("quick", format_args!("writes {}, with token {new}", balance - 30));
    guard.release().await?;

    story.chapter("3. The slow one goes on, and pays 20 out of what it has read");
    let turned_away = match slow.write(read - 20, old).await {
        Ok(()) => return Err("the old token was taken".into()),
        Err(error) => error,
    };
    let said = turned_away.downcast_ref::<tokio_postgres::Error>();
    claim(said.is_some_and(is_stale_token), "the database says that the token is old")?;
    let said = said.and_then(|error| error.as_db_error()).map_or("", |error| error.message());
    story.tell("database", said);
    claim(slow.balance().await? == 70, "what the quick one has written is still there")?;
    story.tell("slow", "stops, acquires the lock again, and reads 70");
    let guard = slow.locks.lock("account:7").acquire().await?;
    let balance = slow.balance().await?;
    slow.write(balance - 20, guard.token()).await?;
    guard.release().await?;
    claim(slow.balance().await? == 50, "both payments are in the balance")?;
    story.line(
        "\nIn short: check the token in the transaction that writes, and nothing is overwritten.",
    );
    slow.client.batch_execute("DROP TABLE fenced_account").await?;
    slow.locks.close().await?;
    quick.locks.close().await?;
    Ok(())
}
