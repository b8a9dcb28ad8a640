//! The tests named on the page of promises exist.

use std::{collections::BTreeSet, fs, path::Path};

/// The names of all functions in the Rust files below `folder`.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let after_fn = text.split("fn ").skip(1);
            names.extend(after_fn.map(|rest| {
                rest.chars()
                    .take_while(|char| char.is_ascii_alphanumeric() || *char == '_')
                    .collect::<String>()
            }));
        }
    }
}

#[test]
fn every_test_that_the_promises_name_exists() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    functions(tests, &mut known);
    let page = fs::read_to_string(tests.join("../docs/RELIABILITY.md")).unwrap();
    let promises: Vec<&str> = page.split("\n## G").skip(1).collect();
    assert_eq!(promises.len(), 11);
    for promise in promises {
        let shown = promise.split("Shown by").nth(1).expect("each promise says what shows it");
        let shown = shown.split("\n\n").next().unwrap();
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(named.len() >= 3, "{shown}");
        for name in named {
            assert!(known.contains(name), "no test is called `{name}`");
        }
    }
}
