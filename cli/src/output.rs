//! What is printed: tables, JSON and messages, in which nothing from outside can act on a terminal.

use std::{
    fmt::{Display, Write as _},
    io::{self, Write},
};

use serde::Serialize;

use crate::exit::{Exit, Failure};

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

/// `text` without the user and password of the URLs in it, and without the values of parameters
/// that are called like a password.
pub(crate) fn without_passwords(text: &str) -> String {
    let is_end = |character: char| {
        character.is_whitespace() || matches!(character, '`' | '\'' | '"' | '<' | '>')
    };
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown += before;
        let (url, others) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        // The last one: a password may contain an unescaped `@`, and a host cannot.
        let public = match url.rsplit_once('@') {
            Some((_, public)) => {
                shown += "***@";
                public
            }
            None => url,
        };
        shown += &without_secret_parameters(public);
        rest = others;
    }
    shown + rest
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

/// Writes a message to stderr. One that cannot be written is lost.
pub(crate) fn tell(message: impl Display) {
    let _ = writeln!(io::stderr(), "lockctl: {}", escaped(&message.to_string()));
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

/// JSON leaves some of the characters as they are that a terminal obeys. Those stand in strings
/// only; line feeds stand between values only.
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
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
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
    fn the_columns_of_a_table_are_aligned() {
        let mut table = Table::default();
        table.row(["OWNER", "MODE"]);
        table.row(["a\u{7}", "read"]);
        assert_eq!(table.to_string(), "OWNER   MODE\na\\u{7}  read\n");
    }
}
