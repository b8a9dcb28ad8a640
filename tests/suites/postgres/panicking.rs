//! The kit's server when its test fails.

use std::fs;

use lockcore_testkit::PostgresServer;

use crate::processes::leaves_nothing;

#[test]
fn a_test_that_panics_leaves_no_server_behind() {
    leaves_nothing(PostgresServer::start, |server| {
        let file = server.directory().join("data/postmaster.pid");
        let id = fs::read_to_string(file).unwrap().lines().next().unwrap().parse().unwrap();
        (vec![id], server.directory().to_owned())
    });
}
