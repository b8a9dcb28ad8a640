//! [`Monitor`]: all commands that a server receives, from its `MONITOR`.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

use lockcore_testkit::{checks::ServerTruth, monotonic, wall_clock};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinHandle,
};

use crate::protocol::Result;

/// A connection on which the server reports the commands that it receives.
#[derive(Debug)]
pub(crate) struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    /// The time from which on everything is known.
    pub(crate) since: u64,
    /// The wall clock minus the monotonic clock.
    offset: u64,
    reading: JoinHandle<()>,
}

impl Monitor {
    pub(crate) async fn start(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"MONITOR\r\n").await?;
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut told = BufReader::new(stream).split(b'\n');
        // The first line says that monitoring has begun.
        told.next_segment().await?;
        let offset = wall_clock() - monotonic();
        let reading = tokio::spawn({
            let lines = lines.clone();
            async move {
                while let Ok(Some(line)) = told.next_segment().await {
                    // Script calls themselves change nothing; only the commands inside do.
                    if line.windows(6).any(|window| window == b" lua] ") || changes_locks(&line) {
                        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                }
            }
        });
        Ok(Self { lines, since: monotonic(), offset, reading })
    }

    /// Returns `true` if it still receives everything.
    pub(crate) fn is_whole(&self) -> bool {
        !self.reading.is_finished()
    }

    pub(crate) fn truth(&self) -> ServerTruth {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        ServerTruth::replay(lines.iter().map(String::as_str), |wall| {
            wall.saturating_sub(self.offset)
        })
    }
}

/// Returns `true` if a client's own command acquires, releases or deletes locks.
fn changes_locks(line: &[u8]) -> bool {
    let commands = [&b"] \"RESTORE\""[..], b"] \"HDEL\"", b"] \"FLUSHALL\""];
    let tells = |command: &&[u8]| {
        line.windows(command.len()).any(|window| window.eq_ignore_ascii_case(command))
    };
    commands.iter().any(tells)
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
