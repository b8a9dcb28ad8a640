//! The links in the documents are valid.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Addresses of this repository's files on the web.
const FILES_ON_THE_WEB: [&str; 2] = [
    "https://github.com/lockcore/lockcore/blob/main/",
    "https://github.com/lockcore/lockcore/tree/main/",
];

/// Documents that crates.io or docs.rs also shows, where a relative link is broken.
const PUBLISHED: [&str; 8] = [
    "README.md",
    "backend-etcd/README.md",
    "backend-memory/README.md",
    "backend-postgres/README.md",
    "backend-quorum/README.md",
    "backend-redis/README.md",
    "cli/README.md",
    "tests/README.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The Markdown files in and below `folder`, without builds, hidden folders and symbolic links.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            documents(&path, found);
        } else if kind.is_file() && name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The lines of a document outside of its blocks of code.
fn prose(document: &Path) -> Vec<String> {
    let text = fs::read_to_string(document).unwrap();
    let mut in_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    };
    text.lines().filter(is_prose).map(str::to_owned).collect()
}

/// The lines to search for links: all but code.
fn text(document: &Path) -> Vec<String> {
    prose(document).iter().map(|line| line.split('`').step_by(2).collect()).collect()
}

/// The label and the target of a line such as `[label]: target`.
fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

/// The parts of `line` between `start` and `end`.
fn between<'a>(line: &'a str, start: &str, end: char) -> Vec<&'a str> {
    line.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0)).collect()
}

/// The link targets of the document, direct and by definition.
fn targets(document: &Path) -> Vec<String> {
    let lines = text(document);
    let direct = lines.iter().flat_map(|line| between(line, "](", ')'));
    let defined = lines.iter().filter_map(|line| Some(definition(line)?.1));
    direct.chain(defined).map(str::to_owned).collect()
}

/// The anchors of a document's headings, as GitHub and docs.rs generate them.
fn anchors(document: &Path) -> Vec<String> {
    let headings = prose(document).into_iter().filter(|line| line.starts_with('#'));
    let anchor = |heading: String| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|char| char.is_alphanumeric() || matches!(char, '-' | '_')).collect()
    };
    headings.map(anchor).collect()
}

/// The reason why `target` is broken in `document`.
fn objection(root: &Path, document: &Path, target: &str) -> Option<&'static str> {
    let on_the_web = FILES_ON_THE_WEB.iter().find_map(|prefix| target.strip_prefix(prefix));
    if on_the_web.is_none() && target.contains("://") {
        return None;
    }
    let (folder, target) = match on_the_web {
        Some(path) => (root, path),
        None => (document.parent().unwrap(), target),
    };
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { document.to_owned() } else { folder.join(path) };
    if !file.exists() {
        Some("there is no such file")
    } else if !anchor.is_empty() && !anchors(&file).iter().any(|known| known == anchor) {
        Some("there is no such heading")
    } else {
        None
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let root = root();
    let mut found = Vec::new();
    documents(&root, &mut found);
    let mut count = 0;
    let mut broken = Vec::new();
    for document in &found {
        for target in targets(document) {
            count += 1;
            if let Some(why) = objection(&root, document, &target) {
                broken.push(format!("{}: {target}: {why}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(found.len() >= 15 && count >= 50, "{} documents, {count} links", found.len());
}

#[test]
fn every_label_of_a_link_is_defined() {
    let mut found = Vec::new();
    documents(&root(), &mut found);
    for document in found {
        let lines = text(&document);
        let defined: Vec<&str> =
            lines.iter().filter_map(|line| Some(definition(line)?.0)).collect();
        for label in lines.iter().flat_map(|line| between(line, "][", ']')) {
            assert!(defined.contains(&label), "{}: [{label}]", document.display());
        }
    }
}

#[test]
fn published_readmes_have_no_relative_links() {
    for readme in PUBLISHED {
        let targets = targets(&root().join(readme));
        assert!(!targets.is_empty(), "{readme}");
        for target in targets {
            assert!(target.contains("://"), "{readme}: {target}");
        }
    }
}

#[test]
fn a_broken_link_is_found() {
    let root = root();
    let readme = root.join("README.md");
    let objects = |target: &str| objection(&root, &readme, target).is_some();
    assert!(objects("docs/NOWHERE.md") && objects("#nowhere"));
    assert!(objects("https://github.com/lockcore/lockcore/blob/main/docs/GUIDE.md#nowhere"));
    assert!(!objects("docs/GUIDE.md#lost-locks") && !objects("#quick-start"));
    assert!(!objects("https://example.org/anywhere"));
}
