"""Dead letters of quorum queues: numbers 5, 29 and 31 of the acceptance list, and what both strategies promise."""

import scenario
from quorum_queue import Queues, deaths

AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def body(run):
    q = Queues(run)
    a_message_dies_of_too_many_deliveries(run, q)
    a_message_keeps_what_it_is(run, q)
    without_a_target_it_is_dropped(run, q)
    at_least_once_keeps_messages_until_they_have_arrived(run, q)
    at_least_once_reaches_a_queue_on_another_node(run, q)
    what_nobody_rejected_does_not_go_round(run, q)
    what_was_rejected_may_come_back(run, q)


def reject(q, queue, requeue=False):
    method, properties, _ = q.take(queue, auto_ack=False)
    q.channel.basic_reject(method.delivery_tag, requeue=requeue)
    return properties


def a_message_dies_of_too_many_deliveries(run, q):
    dead = q.new("limit-dead")
    queue = q.new("limit", {"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    q.publish(queue, "poison")
    deliveries = 0
    while (got := q.take(queue, seconds=1, auto_ack=False)) is not None:
        deliveries += 1
        q.channel.basic_reject(got[0].delivery_tag, requeue=True)
    run.equal("deliveries", deliveries, 4)
    _, properties, text = q.take(dead)
    run.equal("it is dead", text, "poison")
    run.equal("why", [(d["reason"], d["count"]) for d in deaths(properties)], [("delivery_limit", 1)])


def a_message_keeps_what_it_is(run, q):
    dlx = q.exchange("kept-x", "topic")
    dead = q.new("kept-dead")
    q.channel.queue_bind(dead, dlx, "#")
    exchange = q.exchange("kept-from", "topic")
    queue = q.new("kept", {"x-dead-letter-exchange": dlx})
    q.channel.queue_bind(queue, exchange, "a.*")
    q.publish("a.b", "all of it", exchange=exchange, priority=7, headers={"app": 5}, correlation_id="c")
    reject(q, queue)
    method, properties, text = q.take(dead)
    run.equal("body", text, "all of it")
    run.equal("where it comes from", (method.exchange, method.routing_key), (dlx, "a.b"))
    run.equal("properties", (properties.priority, properties.correlation_id, properties.delivery_mode), (7, "c", 2))
    run.equal("headers", properties.headers["app"], 5)
    [death] = deaths(properties)
    told = {name: death[name] for name in ("count", "reason", "queue", "exchange", "routing-keys")}
    expected = {"count": 1, "reason": "rejected", "queue": queue, "exchange": exchange, "routing-keys": ["a.b"]}
    run.equal("x-death", told, expected)
    first = [properties.headers[f"x-first-death-{what}"] for what in ("queue", "reason", "exchange")]
    run.equal("x-first-death", first, [queue, "rejected", exchange])


def without_a_target_it_is_dropped(run, q):
    queue = q.new("nowhere", {"x-dead-letter-exchange": run.name_of("missing")})
    q.publish(queue, "gone")
    reject(q, queue)
    q.publish(queue, "next")
    run.equal("the queue goes on", q.take(queue)[2], "next")


def at_least_once_keeps_messages_until_they_have_arrived(run, q):
    dlx = run.name_of("later-x")
    queue = q.new("later", {**AT_LEAST_ONCE, "x-dead-letter-exchange": dlx})
    for n in range(100):
        q.publish(queue, n)
    for _ in range(100):
        reject(q, queue)
    q.becomes("none is ready", queue, 0)
    dead = q.new("later-dead")
    q.channel.exchange_declare(dlx, "fanout", durable=True)
    q.channel.queue_bind(dead, dlx)
    q.becomes("all arrive", dead, 100, seconds=30)
    run.equal("each once, in their order", q.drain(dead), [str(n) for n in range(100)])


def at_least_once_reaches_a_queue_on_another_node(run, q):
    dead = q.new("far-dead", channel=run.connect(1).channel())
    queue = q.new("far", {**AT_LEAST_ONCE, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for n in range(500):
        q.publish(queue, n)
    for _ in range(500):
        reject(q, queue)
    q.becomes("all arrive", dead, 500, seconds=30)
    run.equal("in their order", q.drain(dead), [str(n) for n in range(500)])


def what_nobody_rejected_does_not_go_round(run, q):
    a, b = run.name_of("round-a"), run.name_of("round-b")
    for queue, other in ((a, b), (b, a)):
        q.new_named(queue, {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other})
    q.publish(a, "round")
    gone = scenario.eventually(lambda: q.ready(a) == 0 and q.ready(b) == 0, 10)
    run.check("it is dropped", gone)


def what_was_rejected_may_come_back(run, q):
    a, b = run.name_of("retry-a"), run.name_of("retry-b")
    q.new_named(a, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": b})
    q.new_named(b, {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": a})
    q.publish(a, "retry")
    for attempt in range(1, 4):
        method, properties, _ = q.take(a, auto_ack=False)
        counts = {(d["queue"], d["reason"]): d["count"] for d in deaths(properties)}
        run.equal(f"attempt {attempt}", counts.get((a, "rejected"), 0), attempt - 1)
        q.channel.basic_reject(method.delivery_tag, requeue=False)


if __name__ == "__main__":
    scenario.run("dead_letters", body)
