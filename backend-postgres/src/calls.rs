//! [`Calls`]: the statements that call the functions of the store.

use std::time::Duration;

use crate::schema::Schema;

/// 100 years. Longer leases are cut, so that the end is a valid date.
const LONGEST: i64 = 100 * 365 * 86_400 * 1_000_000;

/// The longest that all waits of a request together may take at the server, which is the limit of
/// its functions.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The statements, for one schema.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    pub(crate) acquire: String,
    pub(crate) renew: String,
    pub(crate) renew_many: String,
    pub(crate) release: String,
    pub(crate) force_release: String,
    pub(crate) inspect: String,
    pub(crate) resize: String,
    pub(crate) raise_token: String,
    pub(crate) change_latch: String,
    pub(crate) read_latch: String,
    pub(crate) join: String,
    pub(crate) stay: String,
    pub(crate) leave: String,
    pub(crate) notify: String,
    pub(crate) names_in_use: String,
    pub(crate) put_client: String,
    pub(crate) remove_client: String,
    pub(crate) clients: String,
    pub(crate) stored: String,
    pub(crate) sweep: String,
    pub(crate) raise_tokens_to_clock: String,
}

impl Calls {
    /// The statements for requests whose answers are waited for so long.
    pub(crate) fn new(schema: &Schema, response_timeout: Duration) -> Self {
        // An answer that comes too late ends the connection, if no other one comes meanwhile.
        let patience = response_timeout * 2 / 3;
        let patience = (patience < LONGEST_WAIT).then_some(patience.as_millis());
        let typed = |function: &str, kind: &str, count: usize| {
            let first = match patience {
                Some(limit) => format!("lockcore.with_patience($1::{kind}, {limit})"),
                None => "$1".to_owned(),
            };
            let rest = (2..=count).map(|number| format!("${number}"));
            let parameters: Vec<_> = [first].into_iter().chain(rest).collect();
            schema.sql(&format!("SELECT * FROM lockcore.{function}({})", parameters.join(", ")))
        };
        let rows = |function: &str, count: usize| typed(function, "text", count);
        Self {
            acquire: rows("acquire", 15),
            renew: rows("renew", 3),
            renew_many: typed("renew_many", "text[]", 3),
            release: rows("release", 5),
            force_release: rows("force_release", 2),
            inspect: rows("inspect", 1),
            resize: rows("resize", 4),
            raise_token: rows("raise_token", 2),
            change_latch: rows("change_latch", 5),
            read_latch: rows("read_latch", 3),
            join: rows("join_condition", 5),
            stay: rows("stay_in_condition", 4),
            leave: rows("leave_condition", 5),
            notify: rows("notify_condition", 4),
            names_in_use: rows("names_in_use", 2),
            put_client: rows("put_client", 3),
            remove_client: rows("remove_client", 1),
            clients: rows("clients", 2),
            stored: rows("stored", 1),
            sweep: schema.sql("SELECT * FROM lockcore.sweep($1, $2)"),
            raise_tokens_to_clock: schema.sql("SELECT * FROM lockcore.raise_tokens_to_clock()"),
        }
    }
}

impl Calls {
    /// The statements that are worth preparing.
    pub(crate) fn often(&self) -> Vec<String> {
        let often = [&self.acquire, &self.renew, &self.renew_many, &self.release];
        often.into_iter().cloned().collect()
    }
}

/// A time in microseconds, rounded up.
pub(crate) fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_less_than_their_clients() {
        let schema = Schema::new("shop").unwrap();
        let calls = |millis| Calls::new(&schema, Duration::from_millis(millis));
        assert_eq!(calls(3_000).inspect, r#"SELECT * FROM "shop".inspect($1)"#);
        let inspect = r#"SELECT * FROM "shop".inspect("shop".with_patience($1::text, 6))"#;
        assert_eq!(calls(10).inspect, inspect);
        assert!(calls(10).renew_many.contains("$1::text[], 6), $2, $3)"));
    }

    #[test]
    fn times_are_rounded_up_and_cut() {
        assert_eq!(microseconds(Duration::from_nanos(1)), 1);
        assert_eq!(microseconds(Duration::from_millis(3)), 3_000);
        assert_eq!(microseconds(Duration::MAX), LONGEST);
    }
}
