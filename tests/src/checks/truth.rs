//! C4: a believed hold exists at the server.

use std::collections::HashMap;

use super::{Finding, at};
use crate::{Operations, span};

/// A time during which the server had a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The name of the lock.
    pub name: String,
    /// The owner.
    pub owner: String,
    /// The start of the hold.
    pub from: u64,
    /// The end of the hold, when it was deleted or expired.
    pub to: u64,
}

/// The holds that a Redis server had over time, reconstructed from the commands inside scripts in
/// the output of `MONITOR`.
///
/// It knows the keys of exclusive, fair and read-write locks and of semaphores of `lockcore-redis`.
#[derive(Clone, Debug, Default)]
pub struct ServerTruth {
    ended: Vec<Stored>,
    /// The current holds by key, or by key and permit.
    live: HashMap<String, Live>,
    /// Expiries that came before their permit, or for keys without a hold.
    permits: HashMap<String, String>,
    last_book: Option<(String, String)>,
}

#[derive(Clone, Debug)]
struct Live {
    name: String,
    owners: Vec<(String, u64)>,
    until: u64,
}

/// The end of a hold whose key expires at `until`, and that was seen to end at `t`. By the clock, the
/// key of another hold may have expired just before this one began.
fn end_of(from: u64, until: u64, t: u64) -> u64 {
    until.min(t).max(from)
}

/// The part of a lease key after the field.
const LEASE: &str = ":rwlock_timeout:";
/// The end of a writer's field.
const WRITER: &str = ":lockcore:write";

impl ServerTruth {
    /// Reconstructs the holds from `lines` of `MONITOR`. `to_monotonic` converts nanoseconds of the
    /// wall clock to the clock of the log.
    pub fn replay<'a>(
        lines: impl IntoIterator<Item = &'a str>,
        to_monotonic: impl Fn(u64) -> u64,
    ) -> Self {
        let mut truth = Self::default();
        for line in lines {
            if let Some((wall, words)) = parse(line) {
                truth.apply(to_monotonic(wall), &words, &to_monotonic);
            }
        }
        for key in truth.live.keys().cloned().collect::<Vec<_>>() {
            truth.end(&key, u64::MAX);
        }
        truth
    }

    /// Adds a hold by hand.
    pub fn add(&mut self, name: impl Into<String>, owner: impl Into<String>, from: u64, to: u64) {
        self.ended.push(Stored { name: name.into(), owner: owner.into(), from, to });
    }

    /// All holds that the server had.
    pub fn holds(&self) -> impl Iterator<Item = &Stored> {
        self.ended.iter()
    }

    fn apply(&mut self, t: u64, words: &[String], to_monotonic: &impl Fn(u64) -> u64) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ms = |text: &str| text.parse::<f64>().map_or(0, |ms| (ms * 1e6) as u64);
        match words.as_slice() {
            ["HSET", book, "kind", _, id, entry] if book.starts_with("lockcore_permits:") => {
                let owner = entry.splitn(3, ':').nth(2).unwrap_or_default();
                self.last_book = Some(((*id).into(), owner.into()));
            }
            ["HSET", key, fields @ ..]
                if !key.starts_with("lockcore_") && !fields.contains(&"mode") =>
            {
                self.enter(key, key, fields.first().copied().unwrap_or_default(), t);
            }
            // Failed commands are listed as well: `RESTORE` fails if the key exists.
            ["RESTORE", key, lease, dump] if !self.is_live(key, t) => {
                if let Some(owner) = owner_of(dump) {
                    self.enter(key, key, owner, t);
                    self.extend(key, t, t + ms(lease));
                }
            }
            ["SET", key, _, "PX", lease] if key.contains(LEASE) => {
                if let Some((name, owner)) = lease_of(key) {
                    self.enter(key, &name, &owner, t);
                    self.extend(key, t, t + ms(lease));
                }
            }
            ["PEXPIRE", key, lease] => self.extend(key, t, t + ms(lease)),
            ["PEXPIREAT", key, end] => self.extend(key, t, to_monotonic(ms(end))),
            ["PERSIST", key] => self.extend(key, t, u64::MAX),
            ["ZADD", times, "XX", "GT", leases @ ..] | ["ZADD", times, leases @ ..]
                if times.ends_with(":timeout") =>
            {
                for lease in leases.chunks_exact(2) {
                    self.lease_permit(times, lease[1], t, to_monotonic(ms(lease[0])));
                }
            }
            ["ZREM", times, permits @ ..] => {
                permits.iter().for_each(|permit| self.end(&format!("{times}\n{permit}"), t));
            }
            ["HDEL", key, field] => self.leave(key, field, t),
            ["DEL" | "UNLINK", keys @ ..] => keys.iter().for_each(|key| self.end(key, t)),
            ["FLUSHALL" | "FLUSHDB", ..] => {
                for key in self.live.keys().cloned().collect::<Vec<_>>() {
                    self.end(&key, t);
                }
            }
            _ => {}
        }
    }

    /// Leases a permit until `ends`, unless its lease is longer already.
    fn lease_permit(&mut self, times: &str, permit: &str, t: u64, ends: u64) {
        let key = format!("{times}\n{permit}");
        if !self.permits.contains_key(&key)
            && let Some((_, owner)) = &self.last_book
        {
            let owner = owner.clone();
            self.permits.insert(key.clone(), owner.clone());
            let name = times.trim_end_matches(":timeout").trim_matches(['{', '}']).to_owned();
            self.enter(&key, &name, &owner, t);
        }
        // Scripts never shorten a lease. A hold that has just begun has no end yet.
        let before = self.live.get(&key).map_or(0, |live| live.until);
        let ends = if before == u64::MAX { ends } else { ends.max(before) };
        self.extend(&key, t, ends);
    }

    /// A key has one owner: shared holds each have a lease key of their own. So if another owner
    /// enters, the previous hold has expired, up to a millisecond before its end by `MONITOR`,
    /// because leases begin with the script.
    fn enter(&mut self, key: &str, name: &str, owner: &str, t: u64) {
        let has_left =
            |live: &Live| live.until <= t || live.owners.iter().any(|(known, _)| known != owner);
        if self.live.get(key).is_some_and(has_left) {
            self.end(key, t);
        }
        let live = self.live.entry(key.into()).or_insert_with(|| Live {
            name: name.into(),
            owners: Vec::new(),
            until: u64::MAX,
        });
        if live.owners.iter().all(|(known, _)| known != owner) {
            live.owners.push((owner.into(), t));
        }
    }

    /// A key expires up to a millisecond before its end by `MONITOR`: see [`enter`](Self::enter).
    fn is_live(&self, key: &str, t: u64) -> bool {
        const MILLISECOND: u64 = 1_000_000;
        let is_held = |live: &Live| !live.owners.is_empty() && live.until > t + MILLISECOND;
        self.live.get(key).is_some_and(is_held)
    }

    fn extend(&mut self, key: &str, t: u64, until: u64) {
        if let Some(live) = self.live.get_mut(key) {
            if live.until <= t {
                self.end(key, t);
            } else {
                live.until = until;
            }
        }
    }

    fn leave(&mut self, key: &str, owner: &str, t: u64) {
        let Some(live) = self.live.get_mut(key) else { return };
        if let Some(at) = live.owners.iter().position(|(known, _)| known == owner) {
            let (owner, from) = live.owners.swap_remove(at);
            let (name, to) = (live.name.clone(), end_of(from, live.until, t));
            self.ended.push(Stored { name, owner, from, to });
        }
    }

    fn end(&mut self, key: &str, t: u64) {
        self.permits.remove(key);
        let Some(live) = self.live.remove(key) else { return };
        for (owner, from) in live.owners {
            let (name, to) = (live.name.clone(), end_of(from, live.until, t));
            self.ended.push(Stored { name, owner, from, to });
        }
    }
}

/// The lock and the owner of a lease key of a read-write lock: `{name}:field:rwlock_timeout:1`.
fn lease_of(key: &str) -> Option<(String, String)> {
    let (front, _) = key.split_once(LEASE)?;
    let (name, field) = front.strip_prefix('{')?.split_once("}:")?;
    Some((name.into(), field.trim_end_matches(WRITER).into()))
}

/// The owner in the `DUMP` of a hash with one hold, escaped as in `MONITOR`: the type, the number
/// of fields, the length of the owner, the owner, the length of the count, and so on.
fn owner_of(dump: &str) -> Option<&str> {
    let (owner, _) = dump.strip_prefix(r"\x04\x01")?.rsplit_once(r"\x011\x06\x00")?;
    let escaped = [r"\x", r"\a", r"\b", r"\t", r"\n", r"\r"];
    match escaped.iter().find(|escape| owner.starts_with(**escape)) {
        // Lengths of 64 and above take four more bytes. No owner in the logs is that long.
        Some(&r"\x") => owner.get(4..),
        Some(_) => owner.get(2..),
        None => owner.get(1..),
    }
}

/// Parses a line of `MONITOR`: `1700000000.123456 [0 lua] "HSET" "a" "b" "1"`. Only commands of
/// scripts, clients and administrators count; the script calls themselves change nothing.
fn parse(line: &str) -> Option<(u64, Vec<String>)> {
    let line = line.trim_start_matches('+');
    let (time, rest) = line.split_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let wall = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1000;
    let (_, rest) = rest.split_once("] ")?;
    let mut words = words(rest);
    words.first_mut()?.make_ascii_uppercase();
    Some((wall, words))
}

/// The quoted words. Escapes are kept, except those of quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, word.as_mut()) {
            ('"', None) => word = Some(String::new()),
            ('"', Some(_)) => words.extend(word.take()),
            ('\\', Some(word)) => {
                if let Some(escaped) = characters.next() {
                    if escaped != '"' {
                        word.push('\\');
                    }
                    word.push(escaped);
                }
            }
            (character, Some(word)) => word.push(character),
            (_, None) => {}
        }
    }
    words
}

/// Finds beliefs after `after` without a hold at the server. Differences of up to `tolerance` are
/// allowed.
#[must_use]
pub fn truth(
    operations: &Operations,
    truth: &ServerTruth,
    after: u64,
    tolerance: std::time::Duration,
) -> Vec<Finding> {
    let mut stored: HashMap<(&str, &str), Vec<&Stored>> = HashMap::new();
    for hold in truth.holds() {
        stored.entry((&hold.name, &hold.owner)).or_default().push(hold);
    }
    let slack = span(tolerance);
    let mut findings = Vec::new();
    for operation in operations.granted() {
        let holds = stored.get(&(operation.name.as_str(), operation.owner.as_str()));
        let mut beliefs = operation.beliefs();
        beliefs.retain(|belief| belief.from >= after);
        for belief in beliefs {
            let is_true = holds.is_some_and(|holds| {
                holds.iter().any(|hold| {
                    hold.from <= belief.from + slack && belief.to <= hold.to.saturating_add(slack)
                })
            });
            if !is_true {
                let had = holds.map_or_else(
                    || "never had it".into(),
                    |holds| {
                        let spans = holds
                            .iter()
                            .map(|hold| format!("{} to {}", at(hold.from), at(hold.to)));
                        format!("had it {}", spans.collect::<Vec<_>>().join(", "))
                    },
                );
                findings.push(Finding::new(
                    "C4 server truth",
                    format!(
                        "`{}`: {} believed to hold it {} to {}, the server {had}",
                        operation.name,
                        operation.owner,
                        at(belief.from),
                        at(belief.to)
                    ),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Share,
        checks::script::{MS, Script},
    };

    fn replay(lines: &[&str]) -> ServerTruth {
        ServerTruth::replay(lines.iter().copied(), |wall| wall - 100_000_000_000)
    }

    fn stored(lines: &[&str]) -> Vec<(String, String, u64, u64)> {
        let truth = replay(lines);
        let mut all: Vec<_> = truth
            .holds()
            .map(|hold| (hold.name.clone(), hold.owner.clone(), hold.from / MS, hold.to / MS))
            .collect();
        all.sort();
        all
    }

    fn held(name: &str, owner: &str, from: u64, to: u64) -> (String, String, u64, u64) {
        (name.into(), owner.into(), from, to)
    }

    #[test]
    fn a_lock_is_held_until_it_is_deleted_or_expires() {
        let lines = [
            r#"+100.000000 [0 lua] "HSET" "a" "x:1" "1""#,
            r#"+100.000000 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+100.500000 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+101.000000 [0 lua] "DEL" "a""#,
            r#"+101.000000 [0 lua] "HSET" "a" "y:1" "1""#,
            r#"+101.000000 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+109.000000 [0 lua] "HSET" "a" "z:1" "1""#,
            r#"+109.000000 [0 lua] "PEXPIRE" "a" "2000""#,
        ];
        let expected = [
            held("a", "x:1", 0, 1000),
            held("a", "y:1", 1000, 3000),
            held("a", "z:1", 9000, 11000),
        ];
        assert_eq!(stored(&lines), expected);
    }

    #[test]
    fn a_hold_ends_with_its_field_or_when_another_one_enters() {
        let lines = [
            r#"+100.000000 [0 lua] "HSET" "a" "x:1" "1""#,
            r#"+100.000500 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+102.000100 [0 lua] "HSET" "a" "y:1" "1""#,
            r#"+102.000100 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+103.000000 [0 127.0.0.1:40000] "HDEL" "a" "y:1""#,
        ];
        let expected = [held("a", "x:1", 0, 2000), held("a", "y:1", 2000, 3000)];
        assert_eq!(stored(&lines), expected);
    }

    #[test]
    fn a_hold_whose_end_is_before_its_beginning_by_the_clock_lasts_no_time() {
        let lines = [
            r#"+100.500000 [0 lua] "HSET" "a" "x:1" "1""#,
            r#"+100.500000 [0 lua] "PEXPIREAT" "a" "100200""#,
            r#"+101.000000 [0 lua] "DEL" "a""#,
            r#"+102.500000 [0 lua] "HSET" "a" "y:1" "1""#,
            r#"+102.500000 [0 lua] "PEXPIREAT" "a" "102200""#,
            r#"+102.600000 [0 lua] "HDEL" "a" "y:1""#,
        ];
        assert_eq!(stored(&lines), [held("a", "x:1", 500, 500), held("a", "y:1", 2500, 2500)]);
    }

    #[test]
    fn a_hold_that_is_restored_begins_if_there_was_none() {
        let lines = [
            r#"+100.000000 [0 127.0.0.1:40000] "RESTORE" "a" "2000" "\x04\x01\x03x:1\x011\x06\x00\xf8\"1""#,
            // This `RESTORE` is refused, because the key exists.
            r#"+100.100000 [0 127.0.0.1:40001] "RESTORE" "a" "2000" "\x04\x01\x03y:1\x011\x06\x00\xf81""#,
            r#"+100.500000 [0 lua] "PEXPIRE" "a" "2000""#,
            r#"+101.000000 [0 127.0.0.1:40000] "HDEL" "a" "x:1""#,
            r#"+101.000000 [0 127.0.0.1:40001] "RESTORE" "a" "2000" "\x04\x01\ny:34567890\x011\x06\x00\xf81""#,
            r#"+102.999500 [0 127.0.0.1:40001] "RESTORE" "a" "2000" "\x04\x01(z:345678901234567890123456789012345678901\x011\x06\x00\xf81""#,
        ];
        let last = "z:345678901234567890123456789012345678901";
        let expected = [
            held("a", "x:1", 0, 1000),
            held("a", "y:34567890", 1000, 2999),
            held("a", last, 2999, 4999),
        ];
        assert_eq!(stored(&lines), expected);
    }

    #[test]
    fn each_reader_has_a_lease_of_its_own() {
        let lines = [
            r#"+100.000000 [0 lua] "HSET" "a" "mode" "read" "x:1" "1""#,
            r#"+100.000000 [0 lua] "SET" "{a}:x:1:rwlock_timeout:1" "7:id" "PX" "2000""#,
            r#"+100.100000 [0 lua] "SET" "{a}:y:1:rwlock_timeout:1" "8:id" "PX" "2000""#,
            r#"+100.200000 [0 lua] "DEL" "{a}:x:1:rwlock_timeout:1""#,
            r#"+103.000000 [0 lua] "SET" "{a}:z:1:lockcore:write:rwlock_timeout:1" "9:id" "PX" "2000""#,
        ];
        let expected =
            [held("a", "x:1", 0, 200), held("a", "y:1", 100, 2100), held("a", "z:1", 3000, 5000)];
        assert_eq!(stored(&lines), expected);
    }

    #[test]
    fn permits_are_told_apart_by_their_ids() {
        let lines = [
            r#"+100.000000 [0 lua] "HSET" "lockcore_permits:{a}" "kind" "leased" "x:1" "1:7:x:1""#,
            r#"+100.000000 [0 lua] "ZADD" "{a}:timeout" "102000" "p\x01\"""#,
            r#"+100.500000 [0 lua] "HSET" "lockcore_permits:{a}" "kind" "leased" "y:1" "1:8:y:1""#,
            r#"+100.500000 [0 lua] "ZADD" "{a}:timeout" "102500" "q""#,
            r#"+101.000000 [0 lua] "ZADD" "{a}:timeout" "103000" "p\x01\"""#,
            r#"+101.500000 [0 lua] "ZREM" "{a}:timeout" "q""#,
        ];
        assert_eq!(stored(&lines), [held("a", "x:1", 0, 3000), held("a", "y:1", 500, 1500)]);
    }

    #[test]
    fn permits_of_one_command_are_told_apart_as_well() {
        let lines = [
            r#"+100.000000 [0 lua] "HSET" "lockcore_permits:{a}" "kind" "leased" "x:1" "2:7:x:1""#,
            r#"+100.000000 [0 lua] "ZADD" "{a}:timeout" "102000" "p" "102000" "q""#,
            r#"+101.000000 [0 lua] "ZADD" "{a}:timeout" "XX" "GT" "103000" "p" "103000" "q""#,
            r#"+101.500000 [0 lua] "ZREM" "{a}:timeout" "p" "q""#,
        ];
        assert_eq!(stored(&lines), [held("a", "x:1", 0, 1500), held("a", "x:1", 0, 1500)]);
    }

    #[test]
    fn a_belief_that_the_server_does_not_share_is_found_even_without_a_rival() {
        let server = replay(&[
            r#"+100.000000 [0 lua] "HSET" "a" "x:1" "1""#,
            r#"+100.000000 [0 lua] "PEXPIRE" "a" "2000""#,
        ]);
        let believes =
            |to| Operations::of(&Script::default().hold("x", 1, Share::Alone, 1, 5, to).events());
        let check = |to| truth(&believes(to), &server, 0, Duration::from_millis(2));
        // The belief in the script ends when the owner leaves.
        assert!(check(1990).is_empty());
        assert_eq!(check(2010).len(), 1);
        let nobody =
            Operations::of(&Script::default().hold("y", 1, Share::Alone, 1, 5, 9).events());
        assert_eq!(truth(&nobody, &server, 0, Duration::ZERO).len(), 1);
        assert!(
            truth(&nobody, &server, 6 * MS, Duration::ZERO).is_empty(),
            "nothing is known of earlier times"
        );
    }
}
