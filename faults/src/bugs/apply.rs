//! [`Sources`]: finds anchors and applies edits.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    operators::{Change, Crate, Edit, Function, Part, Spot},
    source::{Kind, Language, Node, Source},
};
use crate::protocol::{Result, failure};

/// The files that can be edited.
#[derive(Debug)]
pub(super) struct Sources {
    files: Vec<(Crate, PathBuf, Source)>,
}

impl Sources {
    /// Reads and parses the files below `root`.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut sources = Self { files: Vec::new() };
        for crate_ in Crate::ALL {
            sources.read_folder(crate_, &root.join(crate_.folder()), root)?;
        }
        Ok(sources)
    }

    fn read_folder(&mut self, crate_: Crate, folder: &Path, root: &Path) -> Result<()> {
        let extension = match crate_.language() {
            Language::Rust => "rs",
            Language::Lua => "lua",
        };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.read_folder(crate_, &path, root)?;
            } else if path.extension().is_some_and(|other| other == extension) {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let parsed = Source::parse(crate_.language(), &name, fs::read_to_string(&path)?);
                let source =
                    parsed.map_err(|error| failure(format!("{}: {error}", path.display())))?;
                self.files.push((crate_, path.strip_prefix(root)?.to_owned(), source));
            }
        }
        Ok(())
    }

    /// The files that `edits` change, with their new text.
    ///
    /// # Errors
    /// If an anchor is not in the source exactly once, or edits overlap.
    pub(super) fn edited(&self, edits: &[Edit]) -> Result<Vec<(&Path, String)>> {
        let mut changes: Vec<(usize, Range<usize>, String)> = Vec::new();
        for edit in edits {
            let (file, at, text) = self.change(edit)?;
            changes.push((file, at, text));
        }
        // From the end of each file, so that the ranges before an edit stay valid.
        changes.sort_by_key(|(file, at, _)| (*file, usize::MAX - at.start));
        let mut edited: Vec<(usize, String)> = Vec::new();
        let mut before: Option<(usize, usize)> = None;
        for (file, at, text) in changes {
            let (_, path, source) = &self.files[file];
            if before.is_some_and(|(other, start)| other == file && at.end > start) {
                return Err(failure(format!("edits of {} overlap", path.display())));
            }
            before = Some((file, at.start));
            if edited.last().is_none_or(|(other, _)| *other != file) {
                edited.push((file, source.text.clone()));
            }
            if let Some((_, whole)) = edited.last_mut() {
                whole.replace_range(at, &text);
            }
        }
        Ok(edited.into_iter().map(|(file, text)| (self.files[file].1.as_path(), text)).collect())
    }

    fn change(&self, edit: &Edit) -> Result<(usize, Range<usize>, String)> {
        let (file, at) = self.find(&edit.spot)?;
        let text = &self.files[file].2.text;
        let old = &text[at.clone()];
        match edit.change {
            Change::Becomes(new) => {
                let new = new.replace("{}", old);
                let is_block =
                    matches!(edit.spot.part, Part::Body | Part::Arm(_)) && self.is_rust(file);
                let new = if is_block { format!("{{ {new} }}") } else { new };
                Ok((file, at, new))
            }
            Change::SwappedWithNext => {
                let next = self.files[file].2.statement_after(&at);
                let next = next.ok_or_else(|| failure("there is no statement to swap with"))?;
                let (between, later) = (&text[at.end..next.start], &text[next.clone()]);
                Ok((file, at.start..next.end, format!("{later}{between}{old}")))
            }
        }
    }

    fn is_rust(&self, file: usize) -> bool {
        self.files[file].2.language == Language::Rust
    }

    /// The file and the range of an anchor.
    fn find(&self, spot: &Spot) -> Result<(usize, Range<usize>)> {
        let Spot { function, part, which } = spot;
        let (file, body) = self.find_function(*function)?;
        let (_, path, source) = &self.files[file];
        let found = parts(source, &body, *part)?;
        let (number, of) = *which;
        match found.get(number - 1) {
            Some(at) if found.len() == of => Ok((file, at.clone())),
            _ => Err(failure(format!(
                "`{}` in {} has {} times the part {part:?}, and should have it {of} times",
                function.path,
                path.display(),
                found.len(),
            ))),
        }
    }

    fn find_function(&self, function: Function) -> Result<(usize, Range<usize>)> {
        let files = self.files.iter().enumerate().filter(|(_, file)| file.0 == function.crate_);
        let functions = files.flat_map(|(number, (.., source))| {
            source.functions(function.path).into_iter().map(move |body| (number, body))
        });
        let mut functions: Vec<_> = functions.collect();
        match (functions.pop(), functions.len()) {
            (Some(function), 0) => Ok(function),
            (found, others) => Err(failure(format!(
                "`{}` is {} times in {}, and should be once",
                function.path,
                others + usize::from(found.is_some()),
                function.crate_.folder(),
            ))),
        }
    }
}

/// The ranges in a function that `part` describes.
fn parts(source: &Source, body: &Range<usize>, part: Part) -> Result<Vec<Range<usize>>> {
    let is_meant = |node: &Node| match (part, &node.kind) {
        (Part::Statement(name) | Part::Call(name), Kind::Call(called)) => Ok(called == name),
        (Part::Condition(words), Kind::Condition) | (Part::Operand(words), Kind::Operand) => {
            source.mentions(&node.at, words)
        }
        (Part::Argument(name, words), Kind::Argument(called)) => {
            Ok(called == name && source.reads(&node.at, words)?)
        }
        (Part::Arm(words), Kind::Arm(pattern)) => source.mentions(pattern, words),
        (Part::Value(words), Kind::Value(variable)) => source.reads(variable, words),
        _ => Ok(false),
    };
    let mut found = match part {
        Part::Body => vec![body.clone()],
        _ => source.within(body, is_meant)?,
    };
    if let Part::Statement(_) = part {
        let around = found.iter().filter_map(|call| source.statement_around(call));
        found = around.collect();
        found.dedup();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{
        super::operators::{core, lua, redis},
        *,
    };

    const RUST: &str = "
        impl<T> Drop for Lock<T> {
            fn drop(&mut self) { self.tell(1); }
        }
        impl<T> Lock<T> {
            /// Says `tell(0)`.
            pub(crate) fn drop(&mut self, n: u32) -> u32 {
                let (mut token): u32 = self.next(n , 1);
                if n > 0 && (token == 2 || !self . is_held()) {
                    self.tell(2);
                    // Only now.
                    self.tell(token)
                }
                match n {
                    0 | 1 if token > 3 => self.next(n, 2),
                    _ => { token }
                }
            }
        }
        #[cfg(test)]
        mod tests {
            impl Lock { fn drop(&self) {} }
        }
    ";

    const LUA: &str = "
        local function drop(n)
            redis.call('DEL', n) -- gone
            redis.pcall('PUBLISH', n, '0')
            return n and n > 0 or 1
        end
    ";

    fn edited(edit: Edit) -> Result<String> {
        let source = |language, name: &str, text: &str| {
            let source = Source::parse(language, name, text.into()).unwrap();
            let crate_ = if language == Language::Rust { Crate::Core } else { Crate::Scripts };
            (crate_, name.into(), source)
        };
        let files = vec![source(Language::Rust, "a.rs", RUST), source(Language::Lua, "a.lua", LUA)];
        Sources { files }.edited(&[edit]).map(|mut edited| edited.remove(0).1)
    }

    /// The lines that an edit has changed, with their new text.
    fn changed(edit: Edit) -> String {
        let new = edited(edit).unwrap();
        let is_old = |line: &str| [RUST, LUA].iter().any(|text| text.lines().any(|l| l == line));
        let changed: Vec<_> = new.lines().filter(|line| !is_old(line)).map(str::trim).collect();
        changed.join("|")
    }

    #[test]
    fn each_part_of_a_function_can_be_changed() {
        let drop = core("Lock::drop");
        let table = [
            (core("Drop for Lock::drop").body().becomes("0"), "fn drop(&mut self) { 0 }"),
            (drop.condition("self.is_held").never(), "if false {"),
            (drop.operand("self.is_held()").always(), "if n > 0 && (token == 2 || true) {"),
            (drop.operand("token>3").never(), "0 | 1 if false => self.next(n, 2),"),
            (drop.arm("1").becomes("{} + 1"), "0 | 1 if token > 3 => { self.next(n, 2) + 1 },"),
            (drop.arm("_").becomes("9"), "_ => { 9 }"),
            (drop.value("(mut token)").becomes("9"), "let (mut token): u32 = 9;"),
            (drop.argument("next", "2").becomes("3"), "0 | 1 if token > 3 => self.next(n, 3),"),
            (drop.call("next").which(1, 2).becomes("9"), "let (mut token): u32 = 9;"),
            (drop.statement("is_held").becomes("return 9;"), "return 9;"),
            (drop.statement("tell").which(2, 2).becomes("{};"), "self.tell(token);"),
            (lua("drop").statement("DEL").removed(), "-- gone"),
            (
                lua("drop").argument("PUBLISH", "'0'").becomes("'1'"),
                "redis.pcall('PUBLISH', n, '1')",
            ),
            (lua("a.lua").operand("n > 0").never(), "return n and false or 1"),
        ];
        for (edit, expected) in table {
            assert_eq!(changed(edit), expected, "{edit:?}");
        }
    }

    #[test]
    fn statements_can_be_swapped() {
        let swap = core("Lock::drop").statement("tell").which(1, 2).swapped_with_next();
        let new = edited(swap).unwrap();
        assert!(new.contains("self.tell(token)\n                    // Only now."), "{new}");
        assert!(new.contains("Only now.\n                    self.tell(2);\n"), "{new}");
        let last = core("Lock::drop").statement("tell").which(2, 2).swapped_with_next();
        assert!(edited(last).is_err(), "what follows is in another block");
    }

    #[test]
    fn an_anchor_that_is_not_there_once_is_an_error() {
        let drop = core("Lock::drop");
        let table = [
            (core("drop").body(), "`drop` is 0 times in lockcore/src"),
            (core("Lock::take").body(), "0 times"),
            (redis("Lock::drop").body(), "0 times in backend-redis/src"),
            (drop.statement("take"), "has 0 times the part Statement(\"take\")"),
            (drop.call("tell"), "has 2 times"),
            (drop.call("tell").which(1, 3), "should have it 3 times"),
            (drop.operand("is_lost"), "has 0 times"),
            (drop.operand("("), "no Rust"),
            (drop.operand(" "), "no words"),
        ];
        for (spot, expected) in table {
            let error = edited(spot.removed()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
