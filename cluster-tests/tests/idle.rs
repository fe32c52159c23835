//! What nodes cost that nobody uses.

use std::time::Duration;

use warren_cluster_tests::Cluster;
use warren_cluster_tests::process::{processor_seconds, resident_megabytes};

#[test]
fn idle_nodes_cost_next_to_nothing() {
    let cluster = Cluster::start(3);
    std::thread::sleep(Duration::from_secs(3));
    let pids: Vec<u32> = cluster.iter().filter_map(|node| node.pid()).collect();
    let used = || pids.iter().map(|pid| processor_seconds(*pid)).sum::<f64>();
    let before = used();
    let watched = Duration::from_secs(20);
    std::thread::sleep(watched);
    let share = (used() - before) / watched.as_secs_f64();
    let megabytes: Vec<f64> = pids.iter().map(|pid| resident_megabytes(*pid)).collect();
    println!("three idle nodes: {share:.4} of a processor, resident MB {megabytes:.0?}");
    let allowed = if cfg!(debug_assertions) { 0.04 } else { 0.01 };
    assert!(share < allowed, "three idle nodes use {share:.4} of a processor");
    for resident in megabytes {
        assert!(resident < 60.0, "an idle node holds {resident:.0} MB");
    }
}
