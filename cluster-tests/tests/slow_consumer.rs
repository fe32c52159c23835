//! Clients that consume without a limit and do not read.

use warren_cluster_tests::{Cluster, Program, Stop};

#[test]
fn consumers_that_stop_reading_cost_little_and_miss_nothing() {
    let mut cluster = Cluster::start(3);
    let phase = |cluster: &Cluster, phase: &str, pids: &str| {
        let program = Program::python("slow_consumer.py").arg("--ports", cluster.ports());
        program.arg("--phase", phase).arg("--pids", pids).pass();
    };
    phase(&cluster, "fill", "");
    // What the nodes still have in memory of the publishing is not to be counted.
    for index in 0..3 {
        cluster[index].stop(Stop::Terminate);
    }
    cluster.start_all();
    let pids: Vec<String> = cluster.iter().filter_map(|node| node.pid()).map(|pid| pid.to_string()).collect();
    phase(&cluster, "read", &pids.join(","));
}
