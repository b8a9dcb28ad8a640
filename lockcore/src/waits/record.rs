//! [`ClientRecord`]: the record that a client writes about itself, as JSON.
//!
//! Records are untrusted: they come from other versions of this library, and from anybody who can
//! write to the store. Unreadable parts are skipped. Unknown fields are ignored, so that new ones
//! can be added; the version is raised when the meaning of a field changes.

use std::{fmt::Write as _, panic::Location};

use serde::{Deserialize, Serialize};

use crate::LockName;

/// The most bytes of a record.
const LARGEST_RECORD: usize = 64 * 1024;

/// The version of the format.
const VERSION: u32 = 1;

/// The most bytes of a text other than the name of a lock.
const LONGEST_TEXT: usize = 256;

/// The most waits, and holds of a wait, that are read from one record. More do not fit into a
/// record that this library has written.
const MOST_READ: usize = 4096;

/// The numbers of holds beside each wait to try: the greatest that leaves room for all waits is
/// used.
const MOST_HOLDS: [usize; 7] = [256, 128, 64, 32, 16, 8, 4];

/// The number of holds if none of these leaves room.
const CROWDED_HOLDS: usize = 32;

/// A client's record of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClientRecord {
    #[serde(rename = "v")]
    version_of_format: u32,
    pub(crate) host: String,
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// The version of the library.
    pub(crate) version: String,
    /// The time when the client was made, in milliseconds of Unix time.
    pub(crate) since: u64,
    pub(crate) waits: Vec<WaitRecord>,
    /// The number of long waits that there was no room for.
    pub(crate) omitted: u64,
    /// While there is a wait that may be in a cycle, one more than the number of records that the
    /// store had confirmed before; otherwise 0. So the record changes with each look, and a reader
    /// can tell that the client still reports the wait.
    pub(crate) looks: u64,
}

/// An acquisition that has waited for long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WaitRecord {
    /// A number that no other wait of this client has or had.
    pub(crate) number: u64,
    /// The full name.
    pub(crate) lock: String,
    pub(crate) mode: String,
    /// The name of a named owner, or a text that names it within its client.
    pub(crate) owner: String,
    /// `true` if the owner is the same in all clients.
    pub(crate) named: bool,
    pub(crate) site: String,
    /// Milliseconds of Unix time.
    pub(crate) since: u64,
    /// `true` if it gives up by itself after a time.
    pub(crate) limited: bool,
    /// The holds of its owner or its task meanwhile.
    pub(crate) holds: Vec<HoldRecord>,
    /// The number of holds that there was no room for.
    pub(crate) omitted: u64,
}

/// A hold of an owner, or of a task, that waits for something else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HoldRecord {
    pub(crate) lock: String,
    pub(crate) mode: String,
    /// The owner of the hold as the store has it.
    pub(crate) wire: String,
    pub(crate) site: String,
    pub(crate) since: u64,
    /// `true` if it is renewed, and so does not end by itself.
    pub(crate) renewed: bool,
    /// `true` if it belongs to another owner, and was acquired by the task that waits.
    pub(crate) task: bool,
}

impl ClientRecord {
    /// The record of a client that waits for nothing.
    pub(crate) fn new((host, program): (String, String), since: u64) -> Self {
        let (version, pid) = (env!("CARGO_PKG_VERSION").into(), std::process::id());
        let (host, program) = (plain(host), plain(program));
        let record = Self { version_of_format: VERSION, host, program, pid, ..Self::default() };
        Self { version, since, ..record }
    }

    /// This record with these waits.
    pub(crate) fn with(&self, waits: Vec<WaitRecord>, omitted: u64) -> Self {
        Self { waits, omitted, ..self.clone() }
    }

    /// Returns `true` if the client has certainly scanned its waits since `before` was read: the
    /// store has confirmed another record in between, and this one was begun after that.
    pub(crate) fn is_later_than(&self, before: &Self) -> bool {
        before.looks > 0 && self.looks >= before.looks.saturating_add(2)
    }

    /// The text of this record with as many of `waits` as there is room for, from the first one on.
    /// It has no control characters.
    ///
    /// Each wait has as many of its holds as leave room for all waits. If there is no room even
    /// with a few holds each, the first waits get more, because waits in a cycle have waited
    /// longest. A wait that does not fit is written with fewer holds, or left out if there is no
    /// room for one either; the next one may still fit.
    pub(crate) fn text_with(&self, waits: &[WaitRecord], omitted: u64, looks: u64) -> String {
        let mut record = Self { omitted: u64::MAX, looks, ..self.clone() };
        let mut room = LARGEST_RECORD.saturating_sub(record.text().len());
        let lengths: Vec<Lengths> = waits.iter().map(Lengths::of).collect();
        let fits =
            |most: &usize| lengths.iter().map(|lengths| lengths.with(*most)).sum::<usize>() <= room;
        let most = MOST_HOLDS.into_iter().find(fits).unwrap_or(CROWDED_HOLDS);
        for (wait, lengths) in waits.iter().zip(&lengths) {
            let fewer = |most: &usize| Some(most / 2).filter(|most| *most > 0);
            let counts = std::iter::successors(Some(wait.holds.len().min(most)), fewer);
            let told = counts.map(|count| (count, lengths.with(count)));
            let Some((count, length)) = told.into_iter().find(|(_, length)| *length <= room) else {
                continue;
            };
            room -= length;
            record.waits.push(wait.with_holds(count));
        }
        record.omitted = omitted.saturating_add((waits.len() - record.waits.len()) as u64);
        record.text()
    }

    fn text(&self) -> String {
        text(self)
    }

    /// Parses `text`, if it is a record of a version that this one understands.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > LARGEST_RECORD {
            return None;
        }
        let mut record: Self = serde_json::from_str(text).ok()?;
        if record.version_of_format != VERSION {
            return None;
        }
        for text in [&mut record.host, &mut record.program, &mut record.version] {
            *text = plain(std::mem::take(text));
        }
        record.waits.truncate(MOST_READ);
        record.waits.retain_mut(WaitRecord::is_readable);
        // An empty object is two bytes of text, but a hundred times as much in memory.
        record.waits.shrink_to_fit();
        Some(record)
    }
}

impl WaitRecord {
    /// The key that distinguishes it from all other waits, if it is one of the client `id`.
    pub(super) fn key<'a>(&'a self, id: &'a str) -> (&'a str, u64, &'a str, &'a str) {
        (id, self.number, &self.lock, &self.mode)
    }

    /// The owner, if it waits in the client `id`. Named owners are the same in all clients.
    pub(super) fn owner_in<'a>(&'a self, id: &'a str) -> (Option<&'a str>, &'a str) {
        ((!self.named).then_some(id), &self.owner)
    }

    /// This wait with its first holds only.
    fn with_holds(&self, most: usize) -> Self {
        let holds = self.holds.iter().take(most).cloned().collect::<Vec<_>>();
        let omitted = self.omitted.saturating_add((self.holds.len() - holds.len()) as u64);
        let Self { number, named, since, limited, .. } = *self;
        let [lock, mode, owner, site] =
            [&self.lock, &self.mode, &self.owner, &self.site].map(String::clone);
        Self { number, lock, mode, owner, named, site, since, limited, holds, omitted }
    }

    /// Returns `true` if its lock can exist. All other text is made harmless.
    fn is_readable(&mut self) -> bool {
        for text in [&mut self.mode, &mut self.owner, &mut self.site] {
            *text = plain(std::mem::take(text));
        }
        self.holds.truncate(MOST_READ);
        self.holds.retain_mut(|hold| {
            for text in [&mut hold.mode, &mut hold.wire, &mut hold.site] {
                *text = plain(std::mem::take(text));
            }
            LockName::new(hold.lock.as_str()).is_ok()
        });
        self.holds.shrink_to_fit();
        LockName::new(self.lock.as_str()).is_ok()
    }
}

impl HoldRecord {
    /// The key that distinguishes it from all other holds, if the client `id` reports it.
    pub(super) fn key<'a>(&'a self, id: &'a str) -> (&'a str, &'a str, &'a str, &'a str, u64) {
        (id, &self.wire, &self.lock, &self.mode, self.since)
    }
}

/// The most bytes that a wait takes in the text of a record.
struct Lengths {
    /// The bytes without holds.
    wait: usize,
    /// The bytes that are added with the first hold, with the first two, and so on.
    holds: Vec<usize>,
}

impl Lengths {
    fn of(wait: &WaitRecord) -> Self {
        let bare = WaitRecord { omitted: u64::MAX, ..wait.with_holds(0) };
        let holds = wait.holds.iter().scan(0, |sum, hold| {
            *sum += text(hold).len() + 1;
            Some(*sum)
        });
        // Each is followed by a comma.
        Self { wait: text(&bare).len() + 1, holds: holds.collect() }
    }

    /// The bytes with at most `most` holds.
    fn with(&self, most: usize) -> usize {
        let last = most.min(self.holds.len()).checked_sub(1);
        self.wait + last.map_or(0, |last| self.holds[last])
    }
}

/// The JSON of a record or a part of it. JSON leaves some characters unescaped that a terminal
/// obeys; here, all of them are escaped.
fn text(record: &impl Serialize) -> String {
    // Only a map with keys that are not text could fail.
    let json = serde_json::to_string(record).unwrap_or_default();
    if !json.contains(is_obeyed) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match is_obeyed(character) {
            // Those below U+0020 are escaped already, and the others have four digits.
            true => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            false => escaped.push(character),
        }
    }
    escaped
}

/// Returns `true` if a terminal obeys the character instead of showing it: a control character, or
/// one that changes the direction of text or takes no room.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// `text` without such characters, cut off where it becomes too long.
fn plain(text: String) -> String {
    if text.len() <= LONGEST_TEXT && !text.contains(is_obeyed) {
        return text;
    }
    let mut plain = String::new();
    for character in text.chars() {
        let character = if is_obeyed(character) { char::REPLACEMENT_CHARACTER } else { character };
        if plain.len() + character.len_utf8() > LONGEST_TEXT {
            break;
        }
        plain.push(character);
    }
    plain
}

/// A call site as file and line. A long path is cut to its end.
pub(crate) fn site_text(site: &Location<'_>) -> String {
    let text = format!("{}:{}", site.file(), site.line());
    let cut = text.len().saturating_sub(LONGEST_TEXT);
    let cut = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    plain(text[cut..].to_owned())
}

/// Returns `true` if a record may have this id: 1 to 64 ASCII letters, digits and hyphens.
pub(crate) fn is_client_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use arbtest::arbtest;

    use super::*;

    fn record() -> ClientRecord {
        ClientRecord::new(("host\n1".into(), "p\u{9b}".into()), 17)
    }

    fn wait(number: u64, lock: &str) -> WaitRecord {
        let hold = HoldRecord { lock: "held\u{7f}".into(), renewed: true, ..Default::default() };
        let (lock, holds) = (lock.into(), vec![hold]);
        WaitRecord { number, lock, mode: "write".into(), holds, ..Default::default() }
    }

    #[test]
    fn a_record_reads_as_it_was_written_and_has_no_control_characters() {
        let waits = [wait(1, "a\u{1b}[2Jb\u{85}"), wait(2, "\"quoted\\")];
        let text = record().text_with(&waits, 3, 0);
        assert!(!text.contains(char::is_control), "{text:?}");
        let read = ClientRecord::parse(&text).unwrap();
        assert_eq!((read.waits.as_slice(), read.omitted), (waits.as_slice(), 3));
        assert_eq!((read.host.as_str(), read.program.as_str()), ("host\u{fffd}1", "p\u{fffd}"));
        assert_eq!(read.pid, std::process::id());
    }

    #[test]
    fn a_record_never_outgrows_its_limit_and_says_what_is_left_out() {
        let name = "\"".repeat(LockName::MAX_LEN);
        let waits: Vec<WaitRecord> = (0..10_000).map(|number| wait(number, &name)).collect();
        let text = record().text_with(&waits, 7, 0);
        assert!((60_000..=LARGEST_RECORD).contains(&text.len()), "{}", text.len());
        let read = ClientRecord::parse(&text).unwrap();
        assert_eq!(read.waits.len() as u64 + read.omitted, 10_007);
        assert_eq!(read.waits, waits[..read.waits.len()], "the first ones");
    }

    fn with_holds(number: u64, lock: &str, count: usize) -> WaitRecord {
        let wait = wait(number, lock);
        WaitRecord { holds: vec![wait.holds[0].clone(); count], ..wait }
    }

    fn told(waits: &[WaitRecord]) -> (Vec<(u64, usize, u64)>, u64) {
        let text = record().text_with(waits, 0, 1);
        assert!(text.len() <= LARGEST_RECORD, "{}", text.len());
        let read = ClientRecord::parse(&text).unwrap();
        let waits = read.waits.iter().map(|wait| (wait.number, wait.holds.len(), wait.omitted));
        (waits.collect(), read.omitted)
    }

    #[test]
    fn a_wait_too_large_is_told_with_fewer_holds_and_keeps_no_other_one_out() {
        assert_eq!(told(&[with_holds(1, "a", 200)]), (vec![(1, 200, 0)], 0), "there is room");
        let long = "\"".repeat(LockName::MAX_LEN);
        let huge = |number| {
            let mut wait = with_holds(number, &long, 40);
            wait.holds.iter_mut().for_each(|hold| hold.lock.clone_from(&long));
            wait
        };
        let (waits, omitted) = told(&[huge(1), huge(2), huge(3), wait(4, "a")]);
        assert_eq!(waits, [(1, 16, 24), (2, 16, 24), (3, 16, 24), (4, 1, 0)], "room for all");
        assert_eq!(omitted, 0);
        let crowd: Vec<WaitRecord> = (0..60).map(huge).collect();
        let (waits, omitted) = told(&crowd);
        assert!(waits[0].1 == 32 && waits.len() as u64 + omitted == 60, "{waits:?}");
        let one_hold =
            |number| WaitRecord { holds: huge(number).holds[..1].to_vec(), ..huge(number) };
        let full: Vec<WaitRecord> = (0..60).map(one_hold).chain([wait(60, "a")]).collect();
        let (waits, omitted) = told(&full);
        assert_eq!(waits.last(), Some(&(60, 1, 0)), "it fits although others before it do not");
        assert!(omitted > 10 && waits.len() as u64 + omitted == 61, "{omitted}");
    }

    #[test]
    fn characters_that_change_or_hide_text_are_neither_written_nor_read() {
        for hostile in ["\u{202e}", "\u{2066}", "\u{2069}", "\u{200b}", "\u{200f}", "\u{feff}"] {
            let text = format!("a{hostile}b");
            let record = ClientRecord::new((text.clone(), String::new()), 0);
            assert_eq!(record.host, "a\u{fffd}b");
            let wait = WaitRecord { site: text.clone(), ..wait(1, &text) };
            let written = record.text_with(&[wait], 0, 0);
            assert!(!written.contains(hostile), "{written:?}");
            let read = ClientRecord::parse(&written).unwrap();
            assert_eq!(
                (read.waits[0].lock.as_str(), read.waits[0].site.as_str()),
                (text.as_str(), "a\u{fffd}b"),
                "a name is as it is"
            );
        }
    }

    #[test]
    fn a_record_is_later_only_if_another_one_was_confirmed_in_between() {
        let at = |looks| ClientRecord { looks, ..record() };
        assert!(!at(5).is_later_than(&at(5)) && !at(6).is_later_than(&at(5)));
        assert!(at(7).is_later_than(&at(5)));
        assert!(!at(7).is_later_than(&at(0)) && !at(0).is_later_than(&at(5)));
    }

    #[test]
    fn what_a_later_version_adds_is_ignored_and_what_it_changes_is_skipped() {
        let later = r#"{"v":1,"host":"h","new":{"x":[1]},"waits":[{"lock":"a","more":null}]}"#;
        let read = ClientRecord::parse(later).unwrap();
        assert_eq!((read.host.as_str(), read.waits[0].lock.as_str()), ("h", "a"));
        assert_eq!(ClientRecord::parse(r#"{"v":2,"host":"h"}"#), None);
        assert_eq!(ClientRecord::parse(r#"{"host":"h"}"#), None);
    }

    #[test]
    fn a_wait_for_a_name_that_there_cannot_be_is_skipped_alone() {
        let text =
            r#"{"v":1,"waits":[{"lock":""},{"lock":"a{"},{"lock":"b","holds":[{"lock":""}]}]}"#;
        let read = ClientRecord::parse(text).unwrap();
        assert_eq!(read.waits.len(), 1);
        assert_eq!((read.waits[0].lock.as_str(), read.waits[0].holds.len()), ("b", 0));
    }

    #[test]
    fn garbage_and_hostile_sizes_are_skipped() {
        let deep = format!("{{\"v\":1,\"new\":{}", "[".repeat(60_000));
        let huge = format!("{{\"v\":1,\"host\":\"{}\"}}", "x".repeat(LARGEST_RECORD));
        let big = r#"{"v":1,"pid":99999999999999999999}"#;
        for text in ["", "{", "null", "[]", "\u{0}", r#"{"v":"1"}"#, big, &deep, &huge] {
            assert_eq!(ClientRecord::parse(text), None);
        }
        let long = format!(r#"{{"v":1,"host":"{}"}}"#, "ä".repeat(1000));
        assert_eq!(ClientRecord::parse(&long).unwrap().host.len(), LONGEST_TEXT);
    }

    #[test]
    fn no_mutation_of_a_record_makes_reading_panic_or_lets_control_characters_through() {
        let good = record().text_with(&[wait(1, "a"), wait(2, "b")], 0, 5).into_bytes();
        arbtest(|u| {
            let mut bytes = good.clone();
            for _ in 0..u.int_in_range(0..=8)? {
                let at = u.choose_index(bytes.len())?;
                match u.int_in_range(0..=2)? {
                    0 => bytes[at] = u.arbitrary()?,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, u.arbitrary()?),
                }
            }
            if let Some(read) = ClientRecord::parse(&String::from_utf8_lossy(&bytes)) {
                let waits = read.waits.iter();
                let texts = waits.flat_map(|wait| [&wait.owner, &wait.site, &wait.mode]);
                for text in texts.chain([&read.host, &read.program, &read.version]) {
                    assert!(!text.contains(is_obeyed) && text.len() <= LONGEST_TEXT);
                }
            }
            Ok(())
        });
    }

    #[test]
    fn of_a_long_path_the_end_is_kept() {
        let site = site_text(Location::caller());
        assert!(site.contains("record.rs:"), "{site}");
    }

    #[test]
    fn ids_are_short_and_plain() {
        assert!(is_client_id("d5f7a3f0-0000-4000-8000-000000000000"));
        for id in ["", "a:b", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_client_id(id), "{id:?}");
        }
    }
}
