"""Priorities of a quorum queue that an older node holds at machine version 1: number 10 of the acceptance list."""

import scenario
from quorum_queue import Queues


def body(run):
    q = Queues(run)
    queue = q.new("share")
    for n in range(6):
        q.publish(queue, f"n{n}", priority=4 if n % 2 else None)
    for n in range(6):
        q.publish(queue, f"h{n}", priority=(5, 9, 31)[n % 3])
    expected = ["h0", "h1", "n0", "h2", "h3", "n1", "h4", "h5", "n2", "n3", "n4", "n5"]
    run.equal("two high ones for a normal one", q.drain(queue), expected)
    for n in range(6):
        q.publish(queue, f"h{n}", priority=9)
    for n in range(3):
        q.publish(queue, f"n{n}")
    run.equal("no older high one waits for a normal one", q.drain(queue), [f"h{n}" for n in range(6)] + ["n0", "n1", "n2"])


if __name__ == "__main__":
    scenario.run("fair_share", body)
