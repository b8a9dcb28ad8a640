//! The shape of `lockcore/src`: imports point down only, the engine is pure, and every file and
//! function stays small enough to keep in mind.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The layers, from the bottom up. A file may import from its own layer and from those below, but
/// `engine`, `backend` and `waits` know nothing of each other.
const LAYERS: [&[&str]; 5] = [
    &["diagnosis", "error", "loss", "mode", "name", "owner", "state", "task", "token"],
    &["time"],
    &["backend", "engine", "waits"],
    &["client"],
    &["sync"],
];

/// Names that the engine must not use, because it decides and does nothing.
const IMPURE: [&str; 9] =
    ["async ", ".await", "tokio", "Backend", "Clock", "tracing", "Mutex", "RwLock", "Instant"];

const MOST_LINES_OF_CODE: usize = 400;
const MOST_LINES_OF_A_FUNCTION: usize = 60;
const MOST_COLUMNS: usize = 100;

/// A source file of the core.
struct Source {
    /// Below `lockcore/src`.
    path: String,
    text: String,
}

impl Source {
    /// The folder or file directly below `lockcore/src`.
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    /// The lines of code that are built without tests: no comments, no blank lines.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let until_tests = self.text.lines().enumerate().take_while(|(_, line)| {
            *line != "#[cfg(test)]" || !self.text.contains("#[cfg(test)]\nmod tests {")
        });
        until_tests
            .map(|(number, line)| (number + 1, line))
            .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
    }
}

fn sources() -> Vec<Source> {
    fn visit(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                visit(&path, root, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path, text });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lockcore/src");
    let mut sources = Vec::new();
    visit(&root, &root, &mut sources);
    assert!(sources.len() > 30, "only {} files in {}", sources.len(), root.display());
    sources
}

/// The first names of the paths after `crate::`, in a `use` or in the code.
fn imports(text: &str) -> BTreeSet<String> {
    let mut imports = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            imports.insert(first_name(rest));
            continue;
        };
        let (mut depth, mut is_start) = (0, true);
        for (at, character) in list.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_start = true,
                _ if character.is_whitespace() => {}
                _ if is_start && depth == 0 => {
                    imports.insert(first_name(&list[at..]));
                    is_start = false;
                }
                _ => {}
            }
        }
    }
    imports.retain(|name| !name.is_empty());
    imports
}

fn first_name(path: &str) -> String {
    path.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

/// The origin of the items that `lib.rs` re-exports.
fn reexports(lib: &str) -> BTreeMap<String, String> {
    let list = &lib[lib.find("pub use crate::{").expect("lib.rs re-exports")..];
    let mut homes = BTreeMap::new();
    let mut module = String::new();
    for word in list.split(|character: char| !character.is_alphanumeric() && character != '_') {
        match word.chars().next() {
            Some(first) if first.is_lowercase() => module = word.to_owned(),
            Some(_) => {
                homes.insert(word.to_owned(), module.clone());
            }
            None => {}
        }
    }
    homes
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn imports_point_down_only() {
    let sources = sources();
    let lib = sources.iter().find(|source| source.path == "lib.rs").unwrap();
    let homes = reexports(&lib.text);
    let mut upward = Vec::new();
    for source in sources.iter().filter(|source| source.path != "lib.rs") {
        let from = source.module();
        let Some(own) = layer(from) else { panic!("{} is in no layer", source.path) };
        let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
        for name in imports(&code) {
            let to = homes.get(&name).map_or(name.as_str(), String::as_str);
            let Some(other) = layer(to) else { panic!("{}: `{name}` is in no layer", source.path) };
            // Values are one layer of single files; elsewhere the folders of a layer are
            // independent.
            let is_down = other < own || (other == own && (from == to || own == 0));
            if !is_down {
                upward.push(format!("{} imports `{name}` of {to}", source.path));
            }
        }
    }
    assert!(upward.is_empty(), "these imports point up:\n{}", upward.join("\n"));
}

#[test]
fn the_engine_knows_no_runtime_no_backend_and_no_clock() {
    let mut impure = Vec::new();
    for source in sources().iter().filter(|source| source.module() == "engine") {
        if source.path.starts_with("engine/exploration") {
            continue;
        }
        for (number, line) in source.code() {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                impure.push(format!("{}:{number} says `{}`: {line}", source.path, word.trim()));
            }
        }
    }
    assert!(impure.is_empty(), "the engine is pure:\n{}", impure.join("\n"));
}

#[test]
fn no_file_function_or_line_is_too_long_to_read() {
    let mut long = Vec::new();
    for source in &sources() {
        let lines = source.code().count();
        if lines > MOST_LINES_OF_CODE {
            long.push(format!("{} has {lines} lines of code", source.path));
        }
        for (number, line) in source.text.lines().enumerate() {
            if line.chars().count() > MOST_COLUMNS {
                long.push(format!("{}:{} is too wide", source.path, number + 1));
            }
        }
        for (name, lines) in functions(&source.text) {
            if lines > MOST_LINES_OF_A_FUNCTION {
                long.push(format!("{}: `{name}` has {lines} lines", source.path));
            }
        }
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

/// Each function, with the number of lines from its name to its closing brace, as rustfmt formats
/// it.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_function = !code.starts_with("//")
            && (code.starts_with("fn ") || code.contains(" fn "))
            && !code.ends_with(';')
            && code.contains('(')
            || code.starts_with("fn ") && !code.ends_with(';');
        if !is_function {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let Some(length) = lines[start..].iter().position(|line| **line == end) else { continue };
        let name = code.split("fn ").nth(1).map(first_name).unwrap_or_default();
        functions.push((name, length + 1));
    }
    functions
}

#[test]
fn these_checks_can_fail() {
    let found =
        imports("use crate::{\n    Lock, client::{Held, x::Y},\n};\nuse crate::time::Moment;");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["Lock", "client", "time"]);
    let homes = reexports("pub use crate::{\n    sync::{Lock, Locks},\n    time::Clock,\n};");
    assert_eq!((homes["Locks"].as_str(), homes["Clock"].as_str()), ("sync", "time"));
    let long = format!("impl A {{\n    fn long() {{\n{}    }}\n}}\n", "        x();\n".repeat(70));
    assert_eq!(functions(&long), [("long".to_owned(), 72)]);
}
