//! [`Calls`]: the statements that call the functions of the store.

use std::time::Duration;

use crate::schema::Schema;

/// 100 years. Longer leases are cut, so that the end is a valid date.
const LONGEST: i64 = 100 * 365 * 86_400 * 1_000_000;

/// The live rows of a name: their kind, the part that identifies them, their number, and their
/// remaining time in microseconds. This is not a function, so that it needs no new version of the
/// schema.
const STORAGE: &str = "
    SELECT 'hold', id, token, lockcore.microseconds(until - clock_timestamp())
        FROM lockcore.hold WHERE name = $1 AND until > clock_timestamp()
    UNION ALL
    SELECT 'place', '', count(*), lockcore.microseconds(max(until) - clock_timestamp())
        FROM lockcore.place WHERE name = $1 AND until > clock_timestamp() HAVING count(*) > 0
    UNION ALL
    SELECT 'semaphore', '', permits, NULL FROM lockcore.semaphore WHERE name = $1
    UNION ALL
    SELECT 'latch', '', count, NULL FROM lockcore.latch WHERE name = $1
    UNION ALL
    SELECT 'waiter', condition, count(*), lockcore.microseconds(max(until) - clock_timestamp())
        FROM lockcore.waiter WHERE name = $1 AND until > clock_timestamp() GROUP BY condition
    UNION ALL
    SELECT 'undone', '', NULL, lockcore.microseconds(max(until) - clock_timestamp())
        FROM lockcore.undone WHERE name = $1 AND until > clock_timestamp() HAVING count(*) > 0
    UNION ALL
    SELECT 'reply', '', NULL, lockcore.microseconds(max(until) - clock_timestamp())
        FROM lockcore.reply WHERE name = $1 AND until > clock_timestamp() HAVING count(*) > 0
    UNION ALL
    SELECT 'fence', '', token, NULL FROM lockcore.fence WHERE name = $1
    UNION ALL
    SELECT 'proposed', '', token, NULL FROM lockcore.proposed WHERE name = $1";

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
    pub(crate) storage: String,
    pub(crate) sweep: String,
    pub(crate) raise_tokens_to_clock: String,
}

impl Calls {
    pub(crate) fn new(schema: &Schema) -> Self {
        let rows = |function: &str, count: usize| {
            let numbers: Vec<_> = (1..=count).map(|number| format!("${number}")).collect();
            schema.sql(&format!("SELECT * FROM lockcore.{function}({})", numbers.join(", ")))
        };
        Self {
            acquire: rows("acquire", 15),
            renew: rows("renew", 3),
            renew_many: rows("renew_many", 3),
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
            storage: schema.sql(STORAGE),
            sweep: rows("sweep", 2),
            raise_tokens_to_clock: rows("raise_tokens_to_clock", 0),
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
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_cut() {
        assert_eq!(microseconds(Duration::from_nanos(1)), 1);
        assert_eq!(microseconds(Duration::from_millis(3)), 3_000);
        assert_eq!(microseconds(Duration::MAX), LONGEST);
    }
}
