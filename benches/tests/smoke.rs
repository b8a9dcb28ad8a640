//! The program as its users call it.

#![allow(
    clippy::unwrap_used,
    reason = "outside of the test functions as well: this is how a test fails"
)]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockcore-bench")).args(arguments).output().unwrap()
}

/// A directory of its own, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("lockcore-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The figures in a file, one a line.
fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_quick_run_writes_figures_tables_and_plots() {
    let directory = Directory::new("smoke");
    let [json, plots, table] =
        ["figures.json", "plots", "page.md"].map(|name| directory.file(name));
    let page = include_str!("../../docs/PERFORMANCE.md");
    std::fs::write(&table, page).unwrap();
    let files = ["--json", &json, "--plot", &plots, "--table", &table];
    let output = bench(&[&["--quick", "--only", "nested,memory"], &files[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("p50 of a pair") && said.contains("at least 0.30"), "{said}");
    let records = records(Path::new(&json));
    let scenarios: BTreeSet<_> =
        records.iter().filter_map(|record| record["scenario"].as_str()).collect();
    assert_eq!(scenarios, BTreeSet::from(["memory", "nested"]));
    for record in &records {
        assert!(
            record["subject"].is_string()
                && record["metric"].is_string()
                && record["unit"].is_string()
        );
        assert!(record["value"].is_number(), "{record}");
        assert_eq!(record["unit"] == "ratio", record["against"].is_string(), "{record}");
    }
    let commands = records.iter().find(|record| record["metric"] == "commands").unwrap();
    // Of 200,000 pairs. The client writes its record now and then.
    let commands = commands["value"].as_f64().unwrap();
    assert!(commands <= 10.0, "nesting sends nothing, and there were {commands} commands");
    assert!(directory.0.join("plots/memory.svg").is_file());
    let page = std::fs::read_to_string(&table).unwrap();
    assert!(page.contains("### `memory`") && page.contains("](plots/memory.svg)"), "{page}");
}

#[test]
fn a_scenario_that_does_not_exist_is_named() {
    let output = bench(&["--only", "uncontested"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no scenario uncontested; there are uncontended, "), "{said}");
}
