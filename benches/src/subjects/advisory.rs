//! `pg_advisory_lock`, in the usual way: a session for each task, which waits in the server.

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, NoTls, Statement};

use crate::{error::Result, measure::load::Lock};

pub(crate) struct Peer {
    url: String,
}

impl Peer {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned() }
    }

    pub(crate) fn lock(&self, name: &str) -> Handle {
        Handle { url: self.url.clone(), name: name.to_owned(), session: Mutex::default() }
    }
}

/// The lock of a task. Its session is opened with the first acquisition.
pub(crate) struct Handle {
    url: String,
    name: String,
    session: Mutex<Option<Session>>,
}

struct Session {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Session {
    async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock(hashtext($1))").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock(hashtext($1))").await?;
        Ok(Self { client, lock, unlock })
    }
}

impl Handle {
    async fn session(&self) -> Result<MutexGuard<'_, Option<Session>>> {
        let mut session = self.session.lock().await;
        if session.is_none() {
            *session = Some(Session::open(&self.url).await?);
        }
        Ok(session)
    }
}

impl Lock for Handle {
    type Hold = ();

    async fn acquire(&self) -> Result<()> {
        if let Some(Session { client, lock, .. }) = &*self.session().await? {
            client.execute(lock, &[&self.name]).await?;
        }
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        if let Some(Session { client, unlock, .. }) = &*self.session().await? {
            client.execute(unlock, &[&self.name]).await?;
        }
        Ok(())
    }
}
