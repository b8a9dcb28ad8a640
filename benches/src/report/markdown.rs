//! The places in a document that belong to the benchmark.

use std::{fs, path::Path};

use crate::error::{Result, failure};

/// The marks around a place.
fn marks(place: &str) -> [String; 2] {
    [
        format!("<!-- lockcore-bench: {place}, written by the benchmark -->"),
        format!("<!-- lockcore-bench: end of {place} -->"),
    ]
}

/// Replaces the text between the marks of a place in the document.
pub(crate) fn replace(document: &Path, place: &str, text: &str) -> Result<()> {
    let old = fs::read_to_string(document)?;
    let new = between_marks(&old, place, text).ok_or_else(|| {
        let ([begin, end], document) = (marks(place), document.display());
        failure(format!("{document} has no place for this: two lines, `{begin}` and `{end}`"))
    })?;
    Ok(fs::write(document, new)?)
}

fn between_marks(document: &str, place: &str, text: &str) -> Option<String> {
    let [begin, end] = marks(place);
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
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
        let ([begin, end], [other, its_end]) = (marks("tables"), marks("the rest"));
        let rest = format!("{other}\nold\n{its_end}\n");
        let document = format!("before\n{begin}\nold\n{end}\nafter\n{rest}");
        let once = between_marks(&document, "tables", "new\n").unwrap();
        assert_eq!(once, format!("before\n{begin}\n\nnew\n\n{end}\nafter\n{rest}"));
        assert_eq!(between_marks(&once, "tables", "new").unwrap(), once);
        assert!(between_marks("nothing", "tables", "new").is_none());
    }

    #[test]
    fn links_begin_at_the_document() {
        assert_eq!(relative(Path::new("docs/A.md"), Path::new("docs/plots/a.svg")), "plots/a.svg");
        assert_eq!(relative(Path::new("A.md"), Path::new("plots/a.svg")), "plots/a.svg");
    }
}
