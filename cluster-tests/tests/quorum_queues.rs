//! What quorum queues promise beyond keeping messages, as client programs see it.

use warren_cluster_tests::{Cluster, Program};

fn passes(program: &str) {
    let cluster = Cluster::start(3);
    Program::python(program).arg("--ports", cluster.ports()).pass();
}

#[test]
fn priorities_and_limits() {
    passes("limits.py");
}

#[test]
fn messages_and_queues_expire() {
    passes("expiry.py");
}

#[test]
fn one_consumer_is_active_and_priorities_decide_which() {
    passes("single_active.py");
}

#[test]
fn dead_letters_reach_their_queues() {
    passes("dead_letters.py");
}

#[test]
fn consumers_that_hold_messages_too_long_lose_them() {
    passes("consumer_timeout.py");
}

#[test]
fn a_celery_worker_retries_acknowledges_late_and_heeds_priorities() {
    passes("celery_worker.py");
}
