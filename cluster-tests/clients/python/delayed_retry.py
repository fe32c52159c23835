"""Messages that wait before they are tried again: number 28 of the quorum queue acceptance list, as AMQP 0-9-1 can show it."""

import time

import scenario
from quorum_queue import Queues


def body(run):
    q = Queues(run)
    failures_wait_longer_each_time(run, q)
    only_failures_wait(run, q)
    only_returns_wait(run, q)


def retry(kind, at_least, at_most):
    return {"x-delayed-retry-type": kind, "x-delayed-retry-min": at_least, "x-delayed-retry-max": at_most}


def failures_wait_longer_each_time(run, q):
    queue = q.new("all", retry("all", 400, 1000))
    q.publish(queue, "again")
    method, _, _ = q.take(queue, auto_ack=False)
    for failures, wait in enumerate((0.4, 0.8, 1.0), start=1):
        returned = time.monotonic()
        q.channel.basic_reject(method.delivery_tag, requeue=True)
        run.equal(f"after {failures} failures none is ready", q.ready(queue), 0)
        method, properties, _ = q.take(queue, auto_ack=False)
        waited = time.monotonic() - returned
        run.check(f"after {failures} failures it waits", waited >= wait - 0.02, f"{waited:.3f} s, expected {wait} s")
        run.equal("its failures", properties.headers["x-delivery-count"], failures)


def only_failures_wait(run, q):
    queue = q.new("failed", retry("failed", 60_000, 60_000))
    q.publish(queue, "again")
    method, _, _ = q.take(queue, auto_ack=False)
    q.channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, _ = q.take(queue, auto_ack=False)
    run.check("a nack does not wait", method.redelivered)
    q.channel.basic_reject(method.delivery_tag, requeue=True)
    time.sleep(0.5)
    run.equal("a reject does", q.ready(queue), 0)
    run.equal("and is still there", q.channel.queue_purge(queue).method.message_count, 1)


def only_returns_wait(run, q):
    queue = q.new("returned", retry("returned", 60_000, 60_000))
    q.publish(queue, "again")
    method, _, _ = q.take(queue, auto_ack=False)
    q.channel.basic_reject(method.delivery_tag, requeue=True)
    method, _, _ = q.take(queue, auto_ack=False)
    run.check("a reject does not wait", method.redelivered)
    q.channel.basic_nack(method.delivery_tag, requeue=True)
    time.sleep(0.5)
    run.equal("a nack does", q.ready(queue), 0)


if __name__ == "__main__":
    scenario.run("delayed_retry", body)
