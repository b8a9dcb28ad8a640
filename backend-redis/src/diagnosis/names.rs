//! Keys of locks that nobody cleans up.

use std::time::{Duration, Instant};

use lockcore::{BackendError, Diagnosis, Finding, Severity};

use super::{
    Scope,
    session::{Answer, Session},
};

/// The time limit for the look at the keys of one server, for both checks together.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Keys for each step, which takes the server less than a millisecond.
const STEP: usize = 500;
/// After each step, the scan pauses for at least this many times as long as the step took.
const REST: u32 = 4;
const LEAST_REST: Duration = Duration::from_millis(2);
/// The most names that are listed.
const MOST_NAMES: usize = 5;
/// A place that ended longer ago than this belongs to no live waiter, whatever may have delayed it.
const DEAD_FOR: Duration = Duration::from_secs(10);

const TIMEOUTS: &str = "redisson_lock_timeout:";

pub(super) async fn examine(
    session: &mut Session,
    scope: Scope<'_>,
    diagnosis: &mut Diagnosis,
) -> Result<(), BackendError> {
    let began = Instant::now();
    let mut endless = Found::default();
    let of_locks = format!("{}*", glob_escaped(scope.key_prefix));
    let mut scan = KeyScan::new(&["MATCH", &of_locks, "TYPE", "hash"], began);
    while let Some(keys) = scan.next(session).await? {
        for key in endless_locks(session, keys).await? {
            endless.add(key);
        }
    }
    report_end(&scan, session.address(), diagnosis);
    endless.report(diagnosis, session.address(), |names| {
        Finding::new("endless", Severity::Problem, names)
            .because(
                "these locks have no time to live: if their holder has died, nobody ever gets in",
            )
            .to_do(
                "find out who holds each (lockctl show), and free it if its holder is gone \
                 (lockctl release --force)",
            )
    });

    let mut dead = Found::default();
    let of_queues = format!("{TIMEOUTS}*");
    let mut scan = KeyScan::new(&["MATCH", &of_queues, "TYPE", "zset"], began);
    while let Some(keys) = scan.next(session).await? {
        for key in dead_queues(session, keys).await? {
            dead.add(name_of(&key).to_owned());
        }
    }
    report_end(&scan, session.address(), diagnosis);
    dead.report(diagnosis, session.address(), |names| {
        Finding::new("dead-places", Severity::Advice, names)
            .because(
                "all places in the queues of these fair locks have lapsed, and nobody holds them: \
                 their waiters have died, or could not reach the server",
            )
            .to_do(
                "look at these processes; the next one that asks for the lock removes the places",
            )
    });
    Ok(())
}

/// A count of names, of which a few are kept.
#[derive(Debug, Default)]
struct Found {
    names: Vec<String>,
    count: u64,
}

impl Found {
    fn add(&mut self, name: String) {
        self.count += 1;
        if self.names.len() < MOST_NAMES {
            self.names.push(name);
        }
    }

    fn report(self, diagnosis: &mut Diagnosis, address: &str, finding: impl Fn(String) -> Finding) {
        if self.count > 0 {
            let listed: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
            let others = self.count - listed.len() as u64;
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            diagnosis.add(finding(format!("{address} has {}{others}", listed.join(", "))));
        }
    }
}

/// A walk over the keys, in small steps.
#[derive(Debug)]
struct KeyScan {
    options: Vec<String>,
    /// `None` at the end.
    cursor: Option<String>,
    ends_at: Instant,
    /// The duration of the last step.
    step: Duration,
    end: Option<&'static str>,
}

impl KeyScan {
    fn new(options: &[&str], began: Instant) -> Self {
        Self {
            options: options.iter().map(|&option| option.to_owned()).collect(),
            cursor: Some("0".to_owned()),
            ends_at: began + LIMIT,
            step: Duration::ZERO,
            end: None,
        }
    }

    /// The next keys, possibly none in this step. `None` at the end.
    async fn next(&mut self, session: &mut Session) -> Result<Option<Vec<String>>, BackendError> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        if Instant::now() >= self.ends_at {
            self.end = Some("not all keys could be looked at in 5 s");
            return Ok(None);
        }
        tokio::time::sleep((self.step * REST).clamp(LEAST_REST, LIMIT)).await;
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("COUNT").arg(STEP).arg(&self.options);
        let asked = Instant::now();
        match session.ask::<(String, Vec<Vec<u8>>)>(&command, "SCAN").await? {
            Ok((next, keys)) => {
                self.step = asked.elapsed();
                self.cursor = Some(next).filter(|next| next != "0");
                // Names of locks are always text.
                Ok(Some(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()))
            }
            Err(_) => {
                self.end = Some("SCAN is refused");
                Ok(None)
            }
        }
    }
}

fn report_end(scan: &KeyScan, address: &str, diagnosis: &mut Diagnosis) {
    if let Some(reason) = scan.end {
        diagnosis.add(
            Finding::new("names", Severity::Unknown, format!("{address}: {reason}"))
                .because("there may be locks without a time to live, and places of the dead")
                .to_do("grant +scan for this, or keep locks and other data on different servers"),
        );
    }
}

/// The hashes without a time to live that look like locks.
async fn endless_locks(
    session: &mut Session,
    keys: Vec<String>,
) -> Result<Vec<String>, BackendError> {
    let mut asking = redis::pipe();
    for key in &keys {
        asking.cmd("PTTL").arg(key);
    }
    let times = session.all::<i64>(&asking, "PTTL").await?;
    let endless = keys.into_iter().zip(times).filter(|(_, time)| matches!(time, Ok(-1)));
    let endless: Vec<String> = endless.map(|(key, _)| key).collect();
    let mut asking = redis::pipe();
    for key in &endless {
        asking.cmd("HSCAN").arg(key).arg(0);
    }
    let begins = session.all::<(String, Vec<(String, String)>)>(&asking, "HSCAN").await?;
    let locks = endless.into_iter().zip(begins);
    let locks = locks.filter(|(_, begin)| begin.as_ref().is_ok_and(|(_, fields)| is_lock(fields)));
    Ok(locks.map(|(key, _)| key).collect())
}

/// Returns `true` if the fields are those of a lock. Hashes of other applications have other
/// fields.
fn is_lock(fields: &[(String, String)]) -> bool {
    !fields.is_empty()
        && fields.iter().all(|(field, value)| match field.as_str() {
            "mode" => matches!(value.as_str(), "read" | "write"),
            owner => is_owner(owner) && value.parse::<u32>().is_ok(),
        })
}

/// Returns `true` for `UUID:NUMBER`, with or without the suffix of a read-write lock.
fn is_owner(field: &str) -> bool {
    let owner = field.trim_end_matches(":write").trim_end_matches(":lockcore");
    let Some((uuid, number)) = owner.split_once(':') else { return false };
    uuid.len() == 36
        && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && number.parse::<u64>().is_ok()
}

/// The queues whose places have all lapsed, and whose locks nobody holds.
async fn dead_queues(
    session: &mut Session,
    keys: Vec<String>,
) -> Result<Vec<String>, BackendError> {
    let Ok((seconds, _)) = session.words::<(u64, u64)>(&["TIME"]).await? else {
        return Ok(Vec::new());
    };
    // In milliseconds, as the scores are.
    let dead_until = seconds.saturating_sub(DEAD_FOR.as_secs()) * 1000;
    let mut asking = redis::pipe();
    for key in &keys {
        asking.cmd("ZCARD").arg(key);
        asking.cmd("ZCOUNT").arg(key).arg(dead_until).arg("+inf");
        asking.cmd("EXISTS").arg(name_of(key));
    }
    let answers = session.all::<i64>(&asking, "ZCOUNT").await?;
    let is_dead = |told: &[Answer<i64>]| matches!(told, [Ok(places), Ok(0), Ok(0)] if *places > 0);
    let dead = keys.into_iter().zip(answers.chunks(3)).filter(|(_, told)| is_dead(told));
    Ok(dead.map(|(key, _)| key).collect())
}

/// The name of the fair lock that a queue belongs to.
fn name_of(key: &str) -> &str {
    let rest = key.strip_prefix(TIMEOUTS).unwrap_or(key);
    let inner = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inner.filter(|inner| !inner.contains('{')).unwrap_or(rest)
}

fn glob_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_told_from_other_hashes() {
        let uuid = "0123abcd-0000-4000-8000-0123456789ab";
        let is_lock = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(f, v)| ((*f).to_owned(), (*v).to_owned()));
            is_lock(&fields.collect::<Vec<_>>())
        };
        let owner = format!("{uuid}:17");
        assert!(is_lock(&[(&owner, "2")]));
        assert!(is_lock(&[("mode", "write"), (&format!("{owner}:lockcore:write"), "1")]));
        assert!(is_lock(&[("mode", "write"), (&format!("{owner}:write"), "1")]));
        for other in [
            &[][..],
            &[("name", "Ada")],
            &[("page:1", "7")],
            &[(&owner, "x")],
            &[("mode", "fast")],
            &[(&owner, "1"), ("color", "red")],
        ] {
            assert!(!is_lock(other), "{other:?}");
        }
    }

    #[test]
    fn the_name_of_a_queue_is_that_of_its_lock() {
        assert_eq!(name_of("redisson_lock_timeout:{a:b}"), "a:b");
        assert_eq!(name_of("redisson_lock_timeout:{a}:b"), "{a}:b");
        assert_eq!(glob_escaped("a*[b]"), "a\\*\\[b\\]");
    }
}
