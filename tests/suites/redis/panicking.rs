//! The kit's server when its test fails.

use lockcore_testkit::RedisServer;

use crate::processes::leaves_nothing;

#[test]
fn a_test_that_panics_leaves_no_server_behind() {
    leaves_nothing(RedisServer::start, |server| {
        (vec![server.pid()], server.directory().to_owned())
    });
}
