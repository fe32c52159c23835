//! What nodes cost that nobody uses.

use std::fs;
use std::time::Duration;

use warren_cluster_tests::Cluster;

/// Clock ticks of a second in `/proc`, the same on every Linux that Warren runs on.
const TICKS: f64 = 100.0;

/// Processor seconds that the process has used.
fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    let fields: Vec<f64> =
        after_name.split_whitespace().skip(11).take(2).map(|field| field.parse().expect("a number")).collect();
    fields.iter().sum::<f64>() / TICKS
}

/// Resident megabytes of the process.
fn resident_megabytes(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.and_then(|number| number.parse::<f64>().ok()).expect("a number") / 1000.0
}

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
