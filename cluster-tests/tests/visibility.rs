//! What one client has declared, as others see it.

use std::time::Duration;

use warren_cluster_tests::{Cluster, Program, Stop, wait_for};

#[test]
fn a_binding_routes_on_every_node_once_it_is_answered() {
    let mut cluster = Cluster::start(3);
    Program::python("visible.py").arg("--ports", cluster.ports()).pass();
    // Nobody waits for a node that is down.
    cluster[1].stop(Stop::Kill);
    wait_for("the node to be seen as down", Duration::from_secs(30), || {
        let rows = cluster[0].ctl_rows(&["cluster_status"])?;
        (rows.first()?["running_nodes"].as_array()?.len() == 2).then_some(())
    });
    Program::python("visible.py").arg("--ports", cluster.ports()).arg("--rounds", 200).pass();
}
