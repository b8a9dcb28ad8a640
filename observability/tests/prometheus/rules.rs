//! The alert rules, as `promtool` sees them.

use std::{fs, process::Output};

use lockcore_observability::promtool;

use crate::folder::{folder, read};

fn alerts() -> Vec<String> {
    let rules = read("rules.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    alerts.map(str::to_owned).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_in_its_fault() {
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]] {
        let output = promtool(&folder(), &arguments).unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn the_tests_of_the_rules_notice_each_alert_that_does_not_fire() {
    let directory = std::env::temp_dir().join(format!("lockcore-rules-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("rules_test.yml"), read("rules_test.yml")).unwrap();
    let noticed = alerts().into_iter().map(|alert| {
        let rules = read("rules.yml");
        let (before, rule) = rules.split_once(&format!("- alert: {alert}\n")).unwrap();
        let (expression, after) = rule.split_once("        labels:").unwrap();
        let silent = format!("{before}- alert: {alert}\n        expr: vector(0) > 1\n");
        let silent = format!("{silent}        labels:{after}");
        assert!(expression.contains("expr:"));
        fs::write(directory.join("rules.yml"), silent).unwrap();
        let output = promtool(&directory, &["test", "rules", "rules_test.yml"]).unwrap();
        let is_noticed = !output.status.success() && said(&output).contains(&alert);
        (alert, is_noticed)
    });
    let noticed: Vec<_> = noticed.collect();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(noticed.len(), 9);
    assert!(noticed.iter().all(|(_, is_noticed)| *is_noticed), "{noticed:?}");
}

#[test]
fn each_alert_is_explained() {
    let documented = read("../docs/METRICS.md");
    for alert in alerts() {
        assert!(documented.contains(&format!("| `{alert}` |")), "{alert}");
    }
}
