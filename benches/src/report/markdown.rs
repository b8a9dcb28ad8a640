//! The place in a document that belongs to the benchmark.

use std::{fs, path::Path};

use crate::error::{Result, failure};

const BEGIN: &str =
    "<!-- lockcore-bench: from here to the next mark it is written by the benchmark -->";
const END: &str = "<!-- lockcore-bench: end -->";

/// Replaces what stands between the marks of the document.
pub(crate) fn replace(document: &Path, text: &str) -> Result<()> {
    let old = fs::read_to_string(document)?;
    let new = between_marks(&old, text).ok_or_else(|| {
        failure(format!(
            "{} has no place for the tables: two lines, `{BEGIN}` and `{END}`",
            document.display()
        ))
    })?;
    Ok(fs::write(document, new)?)
}

fn between_marks(document: &str, text: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim()))
}

/// The path of a file as a document links to it.
pub(crate) fn relative(document: &Path, file: &Path) -> String {
    let directory = document.parent().unwrap_or(Path::new(""));
    file.strip_prefix(directory).unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = between_marks(&document, "new\n").unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(between_marks(&once, "new").unwrap(), once);
        assert!(between_marks("nothing", "new").is_none());
    }

    #[test]
    fn links_begin_at_the_document() {
        assert_eq!(relative(Path::new("docs/A.md"), Path::new("docs/plots/a.svg")), "plots/a.svg");
        assert_eq!(relative(Path::new("A.md"), Path::new("plots/a.svg")), "plots/a.svg");
    }
}
