//! [`ClientRecord`]: what a client writes of itself, as JSON.
//!
//! Records come from strangers: other versions of this library, and whoever can write to the store.
//! What cannot be read is skipped. Fields that are not known are ignored, so that new ones may
//! come; the version is raised when the meaning of a field changes.

use std::{fmt::Write as _, panic::Location};

use serde::{Deserialize, Serialize};

use crate::LockName;

/// The most bytes of a record.
const LARGEST_RECORD: usize = 64 * 1024;

/// The version of the format.
const VERSION: u32 = 1;

/// The most bytes of a text that is no name of a lock.
const LONGEST_TEXT: usize = 256;

/// The most waits, and holds of a wait, that are read of one record. More do not fit into one that
/// was written by this library.
const MOST_READ: usize = 4096;

/// What a client says of itself.
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
    /// When the client was made, in milliseconds of Unix time.
    pub(crate) since: u64,
    pub(crate) waits: Vec<WaitRecord>,
    /// How many long waits there was no room for.
    pub(crate) omitted: u64,
}

/// An acquisition that has waited for long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WaitRecord {
    /// No other wait of this client has or had it.
    pub(crate) number: u64,
    /// The full name.
    pub(crate) lock: String,
    pub(crate) mode: String,
    /// The name of a named owner, or a text that names it within its client.
    pub(crate) owner: String,
    /// The owner is the same in all clients.
    pub(crate) named: bool,
    pub(crate) site: String,
    /// Milliseconds of Unix time.
    pub(crate) since: u64,
    /// It gives up by itself after a time.
    pub(crate) limited: bool,
    /// What its owner or its task holds meanwhile.
    pub(crate) holds: Vec<HoldRecord>,
    /// How many holds there was no room for.
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
    /// It is renewed: it does not end by itself.
    pub(crate) renewed: bool,
    /// It is of another owner, and was acquired by the task that waits.
    pub(crate) task: bool,
}

impl ClientRecord {
    /// The record of a client that waits for nothing.
    pub(crate) fn new((host, program): (String, String), since: u64) -> Self {
        let (version, pid) = (env!("CARGO_PKG_VERSION").into(), std::process::id());
        let (host, program) = (plain(host), plain(program));
        let (waits, omitted) = (Vec::new(), 0);
        Self { version_of_format: VERSION, host, program, pid, version, since, waits, omitted }
    }

    /// This record with these waits.
    pub(crate) fn with(&self, waits: Vec<WaitRecord>, omitted: u64) -> Self {
        Self { waits, omitted, ..self.clone() }
    }

    /// The text of this record with as many of `waits` as there is room for, the first ones first.
    /// It has no control characters.
    pub(crate) fn text_with(&self, waits: &[WaitRecord], omitted: u64) -> String {
        let mut record = Self { omitted: u64::MAX, ..self.clone() };
        let mut room = LARGEST_RECORD.saturating_sub(record.text().len());
        for wait in waits {
            // Each has a comma behind it.
            let length = text(wait).len() + 1;
            if length > room {
                break;
            }
            room -= length;
            record.waits.push(wait.clone());
        }
        record.omitted = omitted.saturating_add((waits.len() - record.waits.len()) as u64);
        record.text()
    }

    fn text(&self) -> String {
        text(self)
    }

    /// What `text` says, if it is a record of a version that this one understands.
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
        // An empty object is two bytes of text, and a hundred times as much here.
        record.waits.shrink_to_fit();
        Some(record)
    }
}

impl WaitRecord {
    /// Whether it is about a lock that there can be. What is only text is made harmless.
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

/// The JSON of a record or a part of it. JSON leaves some control characters as they are; here,
/// none is.
fn text(record: &impl Serialize) -> String {
    // Only a map with keys that are no text could fail.
    let json = serde_json::to_string(record).unwrap_or_default();
    if !json.contains(char::is_control) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match character.is_control() {
            // Those below U+0020 are escaped already, and the others have four digits.
            true => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            false => escaped.push(character),
        }
    }
    escaped
}

/// `text` without control characters, cut off where it becomes too long.
fn plain(text: String) -> String {
    let is_plain = text.len() <= LONGEST_TEXT && !text.contains(char::is_control);
    if is_plain {
        return text;
    }
    let mut plain = String::new();
    for character in text.chars() {
        let character =
            if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
        if plain.len() + character.len_utf8() > LONGEST_TEXT {
            break;
        }
        plain.push(character);
    }
    plain
}

/// Where something was called, as file and line. Of a long path, the end.
pub(crate) fn site_text(site: &Location<'_>) -> String {
    let text = format!("{}:{}", site.file(), site.line());
    let cut = text.len().saturating_sub(LONGEST_TEXT);
    let cut = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    plain(text[cut..].to_owned())
}

/// Whether a record may have this id: 1 to 64 ASCII letters, digits and hyphens.
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
        let text = record().text_with(&waits, 3);
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
        let text = record().text_with(&waits, 7);
        assert!((60_000..=LARGEST_RECORD).contains(&text.len()), "{}", text.len());
        let read = ClientRecord::parse(&text).unwrap();
        assert_eq!(read.waits.len() as u64 + read.omitted, 10_007);
        assert_eq!(read.waits, waits[..read.waits.len()], "the first ones");
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
        let good = record().text_with(&[wait(1, "a"), wait(2, "b")], 0).into_bytes();
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
                    assert!(!text.contains(char::is_control) && text.len() <= LONGEST_TEXT);
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
