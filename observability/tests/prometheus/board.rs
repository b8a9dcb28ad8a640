//! The Grafana board and the rules, on a real Prometheus that scrapes the example.

use lockcore_observability::Prometheus;
use lockcore_testkit::RedisServer;
use serde_json::Value;

use crate::{
    example::Example,
    folder::{read, rules_in_seconds, wait_for},
};

/// The title of each panel, and its queries.
fn panels() -> Vec<(String, Vec<String>)> {
    let board: Value = serde_json::from_str(&read("board.json")).unwrap();
    let panels = board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let panels = panels.map(|panel| {
        let queries = panel["targets"].as_array().unwrap().iter();
        let queries = queries.map(|target| target["expr"].as_str().unwrap().to_owned());
        (panel["title"].as_str().unwrap().to_owned(), queries.collect())
    });
    panels.collect()
}

/// The query with values in place of Grafana's variables.
fn filled_in(query: &str) -> String {
    let filled_in = query.replace("$__rate_interval", "10s").replace("$instance", ".*");
    assert!(!filled_in.contains('$'), "a variable that is not known: {query}");
    filled_in
}

#[test]
fn every_query_of_the_board_and_of_the_rules_has_a_result() {
    let redis = RedisServer::start();
    let example = Example::start(&redis.url());
    let server = Prometheus::start(example.address(), &rules_in_seconds()).unwrap();
    let panels = panels();
    assert!(panels.len() > 12, "{}", panels.len());
    for (title, queries) in &panels {
        assert!(!queries.is_empty(), "{title}");
        queries.iter().for_each(|query| drop(wait_for(&server, &filled_in(query))));
    }
    let rules = server.rules().unwrap();
    let count = |kind| rules.iter().filter(|(other, ..)| other == kind).count();
    assert_eq!((count("recording"), count("alerting")), (11, 9));
    for (kind, name, query) in &rules {
        // An alert has no result while all is well, but the compared expression has one.
        let compared = query.split_once(" > ").map_or(query.as_str(), |(compared, _)| compared);
        wait_for(&server, if kind == "alerting" { compared } else { query });
        if kind == "recording" {
            wait_for(&server, name);
        }
    }
}

#[test]
fn each_panel_is_explained() {
    let readme = read("README.md");
    for (title, _) in panels() {
        assert!(readme.contains(&format!("| {title} |")), "{title}");
    }
}
