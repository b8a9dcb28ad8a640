//! The kit's server when its test fails.

use lockcore_testkit::EtcdCluster;

use crate::processes::leaves_nothing;

#[test]
fn a_test_that_panics_leaves_no_server_behind() {
    leaves_nothing(
        || EtcdCluster::start(3),
        |cluster| {
            let ids = (0..3).filter_map(|member| cluster.process_id(member));
            (ids.collect(), cluster.directory().to_owned())
        },
    );
}
