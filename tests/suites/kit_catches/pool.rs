//! The pool of connections of a [`Flawed`] client, for the flaw that lends any of them.

use std::time::Duration;

use tokio::time::Instant;

use super::store::Flawed;

/// The most connections of a client.
const MOST: usize = 4;

/// Between two requests on one connection.
const MILLISECOND: Duration = Duration::from_millis(1);

/// Connections that are lent in turn, and opened when all others are busy. The store carries out
/// the requests of each connection in order.
#[derive(Debug, Default)]
pub(super) struct Pool {
    connections: Vec<Connection>,
    last: usize,
}

#[derive(Debug)]
struct Connection {
    is_lent: bool,
    /// The arrival of its last request.
    last: Instant,
}

impl Pool {
    /// Lends a connection, and returns its number and the arrival of a request that takes `time`.
    fn lend(&mut self, time: Duration) -> (usize, Instant) {
        let (now, open) = (Instant::now(), self.connections.len());
        let mut in_turn = (1..=open).map(|step| (self.last + step) % open);
        let idle = in_turn.find(|number| !self.connections[*number].is_lent);
        let number = match idle {
            Some(number) => number,
            None if open < MOST => {
                self.connections.push(Connection { is_lent: false, last: now });
                open
            }
            None => (self.last + 1) % open,
        };
        self.last = number;
        let connection = &mut self.connections[number];
        connection.is_lent = true;
        connection.last = (now + time).max(connection.last + MILLISECOND);
        (number, connection.last)
    }
}

/// Returns a connection when the call ends or is dropped, whatever is still on its way.
struct Lent<'a>(&'a Flawed, usize);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.pool.lock().unwrap().connections[self.1].is_lent = false;
    }
}

impl Flawed {
    /// Carries out a request over some connection, even if the caller is dropped. It takes `time`
    /// to arrive.
    pub(super) async fn over_any_connection<T: Send + 'static>(
        &self,
        time: Duration,
        request: impl FnOnce(Self) -> T + Send + 'static,
    ) -> T {
        let (number, arrival) = self.pool.lock().unwrap().lend(time);
        let _lent = Lent(self, number);
        let client = self.clone();
        let answer = tokio::spawn(async move {
            tokio::time::sleep_until(arrival).await;
            request(client)
        });
        answer.await.unwrap()
    }
}
