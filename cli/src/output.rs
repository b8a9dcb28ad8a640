//! Output: tables, JSON and messages, in which no text from outside can control a terminal.

use std::{
    borrow::Cow,
    env,
    fmt::{Display, Write as _},
    io::{self, Write},
    sync::{
        LazyLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::{
    exit::{Exit, Failure},
    store::STORE_VARIABLES,
};

/// Returns `true` for characters that a terminal obeys instead of showing them: control characters,
/// and those that change the direction of text or take no room.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// `text` with escapes instead of characters that a terminal obeys.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => escaped.extend(character.escape_default()),
            _ if is_obeyed(character) => escaped.extend(character.escape_unicode()),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The URLs that this process was given, the longest first, and how they are shown. For these, it
/// is known where they end in a text.
static GIVEN: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let arguments = env::args_os().skip(1);
    let variables = STORE_VARIABLES.iter().filter_map(env::var_os);
    let texts = arguments.chain(variables).map(|text| text.to_string_lossy().into_owned());
    let urls = texts.filter_map(|text| shown_url(&text));
    let mut given: Vec<(String, String)> = urls.flat_map(|url| as_written(&url)).collect();
    given.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
    given
});

/// A URL as given, and as events write it, with escapes.
fn as_written((url, shown): &(String, String)) -> [(String, String); 3] {
    let quoted = format!("{url:?}");
    let quoted = quoted.trim_matches('"').to_owned();
    [url.clone(), url.escape_debug().to_string(), quoted].map(|url| (url, shown.clone()))
}

/// A URL that `text` is or ends with, if it has a login, and how it is shown.
fn shown_url(text: &str) -> Option<(String, String)> {
    let (before, after) = text.split_once("://")?;
    let is_of_scheme =
        |character: char| character.is_ascii_alphanumeric() || "+-.".contains(character);
    let scheme = &before[before.trim_end_matches(is_of_scheme).len()..];
    let public = public_part(after);
    (public != after).then(|| (format!("{scheme}://{after}"), format!("{scheme}://{public}")))
}

/// `text` without the users and passwords of the URLs in it, and without the values of parameters
/// that are called like a password.
pub(crate) fn without_passwords(text: &str) -> String {
    without_passwords_of(text, &GIVEN)
}

fn without_passwords_of(text: &str, given: &[(String, String)]) -> String {
    let mut text = Cow::Borrowed(text);
    for (url, shown) in given {
        if text.contains(url) {
            text = text.replace(url, shown).into();
        }
    }
    let is_end = |character: char| {
        character.is_whitespace() || matches!(character, '`' | '\'' | '"' | '<' | '>')
    };
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown += before;
        let (url, others) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        shown += &public_part(url);
        rest = others;
    }
    shown + rest
}

/// The part of a URL after the scheme that may be shown.
fn public_part(url: &str) -> String {
    // The last one: a password may contain an unescaped `@`, and a host cannot.
    match url.rsplit_once('@') {
        Some((_, public)) => format!("***@{}", without_secret_parameters(public)),
        None => without_secret_parameters(url),
    }
}

fn without_secret_parameters(url: &str) -> String {
    let mut shown = String::with_capacity(url.len());
    for part in url.split_inclusive(['?', '&']) {
        let end = part.len() - usize::from(part.ends_with(['?', '&']));
        let (parameter, separator) = part.split_at(end);
        match parameter.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("pass") => {
                let _ = write!(shown, "{name}=***");
            }
            _ => shown += parameter,
        }
        shown += separator;
    }
    shown
}

/// The most messages that are kept for a stderr that is blocked.
const LONGEST_BACKLOG: usize = 1024;

/// How long the program waits at its end for a stderr that is blocked.
const LONGEST_FLUSH: Duration = Duration::from_secs(1);

/// A request to the thread that writes to stderr.
enum Told {
    Message(String),
    /// Confirms that everything before it was written.
    Flush(SyncSender<()>),
}

/// The queue of a separate thread: a reader of stderr that stops reading must not stop the thread
/// that renews the lease and ends the command. `None` if no thread can be started.
static WRITER: LazyLock<Option<SyncSender<Told>>> = LazyLock::new(|| {
    let (sender, receiver) = sync_channel(LONGEST_BACKLOG);
    let thread = thread::Builder::new().name("stderr".to_owned());
    thread.spawn(move || write_to_stderr(&receiver)).ok().map(|_| sender)
});

fn write_to_stderr(told: &Receiver<Told>) {
    // While the terminal is lent to the command, this process is in the background, and after `stty
    // tostop` the signal would stop it.
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    let is_blocked = mask.thread_block().is_ok();
    for told in told {
        match told {
            Told::Message(message) if is_blocked => {
                let _ = io::stderr().write_all(message.as_bytes());
            }
            Told::Message(_) => {}
            Told::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// Writes a message to stderr, without passwords, and does not wait for it: see [`flush`]. A
/// message that cannot be written is lost.
pub(crate) fn tell(message: impl Display) {
    let message = escaped(&without_passwords(&message.to_string()));
    if let Some(writer) = &*WRITER {
        let _ = writer.try_send(Told::Message(format!("lockctl: {message}\n")));
    }
}

/// Waits until all messages were written, or the time for that is over.
pub(crate) fn flush() {
    let Some(writer) = &*WRITER else { return };
    let (sender, receiver) = sync_channel(1);
    if writer.try_send(Told::Flush(sender)).is_ok() {
        let _ = receiver.recv_timeout(LONGEST_FLUSH);
    }
}

/// Writes to stdout. A reader that has gone away wants no more, which is no failure.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::NO_OUTPUT, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `value` as JSON, in which control characters are escaped as well.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(Exit::NO_OUTPUT, format!("cannot make JSON: {error}")))?;
    print(json_escaped(&json) + "\n")
}

/// JSON leaves some of the characters as they are that a terminal obeys. These occur in strings
/// only; line feeds occur between values only.
fn json_escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_obeyed(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// A table with aligned columns. The cells are escaped.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(|cell| escaped(cell.as_ref())).collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            // The formatter refuses widths above 65,535, and an owner can be longer.
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                let padding = width.saturating_sub(cell.width());
                format!("{cell}{}", " ".repeat(padding))
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing() {
        let hostile = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}b\r\n\tc\\é";
        let shown = escaped(hostile);
        assert_eq!(shown, "a\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}b\\r\\n\\tc\\é");
        assert!(!shown.chars().any(is_obeyed));
        let json = json_escaped(&serde_json::to_string(&[hostile]).unwrap());
        assert!(!json.chars().any(is_obeyed), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [hostile]);
    }

    #[test]
    fn passwords_disappear_from_urls() {
        for (text, shown) in [
            ("redis://host/0", "redis://host/0"),
            ("at redis://me:p@ss@host/0, etcd://a:b@c", "at redis://***@c"),
            ("'redis://:p/a?s#s@host' 'etcd://u:p@h'", "'redis://***@host' 'etcd://***@h'"),
            ("unix:///s?db=1&pass=x&user=me", "unix:///s?db=1&pass=***&user=me"),
            (
                "postgres://h/d?sslmode=require&Password=x",
                "postgres://h/d?sslmode=require&Password=***",
            ),
        ] {
            assert!(!without_passwords(text).contains("p@ss"), "{text}");
            if !text.starts_with("at ") {
                assert_eq!(without_passwords(text), shown);
            }
        }
    }

    #[test]
    fn a_url_that_was_given_may_contain_anything() {
        let url = "redis://me:pa'ss \"<w> or`d@h/1?pass=x y";
        let given = vec![shown_url(&format!("--url={url}")).unwrap()];
        let shown = without_passwords_of(&format!("no `{url}`, and {url}"), &given);
        assert_eq!(shown, "no `redis://***@h/1?pass=***`, and redis://***@h/1?pass=***");
        let given: Vec<_> = given.iter().flat_map(as_written).collect();
        let events = format!("lock={} name={url:?}", url.escape_debug());
        let shown = "lock=redis://***@h/1?pass=*** name=\"redis://***@h/1?pass=***\"";
        assert_eq!(without_passwords_of(&events, &given), shown);
        assert_eq!(shown_url("redis://host/1"), None);
        assert_eq!(shown_url("me:p@host"), None);
    }

    #[test]
    fn a_cell_may_be_longer_than_the_formatter_takes() {
        let mut table = Table::default();
        table.row(["x".repeat(70_000).as_str(), "read"]);
        table.row(["y", "read"]);
        assert!(table.to_string().lines().all(|line| line.len() == 70_006));
    }

    #[test]
    fn wide_characters_and_accents_do_not_shift_columns() {
        let mut table = Table::default();
        for name in ["NAME", "e\u{301}te\u{301}", "\u{6ce8}\u{6587}", "a\u{202e}\u{2066}"] {
            table.row([name, "|"]);
        }
        let ends: Vec<_> = table.to_string().lines().map(UnicodeWidthStr::width).collect();
        assert_eq!(ends, [20; 4], "{table}");
        assert!(table.to_string().contains("a\\u{202e}\\u{2066}"));
    }

    #[test]
    fn the_columns_of_a_table_are_aligned() {
        let mut table = Table::default();
        table.row(["OWNER", "MODE"]);
        table.row(["a\u{7}", "read"]);
        assert_eq!(table.to_string(), "OWNER   MODE\na\\u{7}  read\n");
    }
}
