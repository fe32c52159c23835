//! Members whose node leaves leading to others.

use super::cluster::Cluster;
use super::{plain, pushes};

#[test]
fn a_node_that_abstains_leads_nothing_while_another_can() {
    for seed in 0..20 {
        let mut c = Cluster::new(3, 3, 4_000 + seed, plain);
        let old = c.wait_leader();
        let abstains = (old + 1) % 3;
        c.driver(abstains).set_abstains(true);
        c.run(500);
        c.crash(old);
        c.run_until(5_000, |c| c.leader().is_some());
        assert_eq!(c.leader(), Some((old + 2) % 3), "seed {seed}");
    }
}

#[test]
fn a_node_that_abstains_leads_where_no_other_can_win() {
    let mut c = Cluster::new(3, 3, 4_100, plain);
    let old = c.wait_leader();
    let (abstains, behind) = ((old + 1) % 3, (old + 2) % 3);
    c.driver(abstains).set_abstains(true);
    c.cut_off(behind);
    c.ask(old, &pushes(0..10));
    c.run(500);
    // What was committed without it keeps the third from winning.
    c.crash(old);
    c.heal();
    c.run_until(20_000, |c| c.leader() == Some(abstains));
    assert_eq!(c.machine(abstains).waiting.len(), 10);
}

#[test]
fn a_node_that_abstains_no_more_stands_as_any_other() {
    let mut c = Cluster::new(3, 3, 4_200, plain);
    let old = c.wait_leader();
    for n in (0..3).filter(|n| *n != old) {
        c.driver(n).set_abstains(true);
        c.driver(n).set_abstains(false);
    }
    c.crash(old);
    c.run_until(1_500, |c| c.leader().is_some());
}
