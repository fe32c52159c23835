"""Priorities and limits of quorum queues: numbers 9, 11, 12, 13 and 14 of their acceptance list."""

import time

import pika

import scenario
from quorum_queue import Queues, deaths, refused


def body(run):
    q = Queues(run)
    the_highest_priority_comes_first(run, q)
    one_too_many_drops_the_head(run, q)
    a_full_queue_refuses(run, q)
    a_full_queue_goes_on_at_four_fifths(run, q)
    one_full_target_makes_one_nack(run, q)
    a_new_channel_is_refused_as_well(run, q)
    bytes_are_limited_too(run, q)
    wrong_arguments_are_named(run)


def the_highest_priority_comes_first(run, q):
    queue = q.new("priorities")
    for priority in (0, 4, None, 9, 5, 31, 200):
        q.publish(queue, priority, priority=priority)
    run.equal("order of priorities", q.drain(queue), ["31", "200", "9", "5", "4", "None", "0"])


def one_too_many_drops_the_head(run, q):
    dlx = q.exchange("dropped-to")
    dead = q.new("dropped")
    q.channel.queue_bind(dead, dlx)
    queue = q.new("drop-head", {"x-max-length": 1, "x-dead-letter-exchange": dlx})
    q.publish(queue, "first")
    q.publish(queue, "second")
    q.becomes("one stays", queue, 1)
    run.equal("the second stays", q.drain(queue), ["second"])
    _, properties, text = q.take(dead)
    run.equal("the first is dead", text, "first")
    run.equal("because of the limit", [d["reason"] for d in deaths(properties)], ["maxlen"])


def a_full_queue_refuses(run, q):
    queue = q.new("reject", {"x-max-length": 1, "x-overflow": "reject-publish"})
    run.equal("ok, ok, nack", [q.publish(queue, n) for n in range(3)], [True, True, False])
    run.equal("one is taken", q.take(queue)[2], "0")
    run.equal("the other", q.take(queue)[2], "1")
    went_on = scenario.eventually(lambda: q.publish(queue, "again"), 10)
    run.check("it takes messages again", went_on)


def a_full_queue_goes_on_at_four_fifths(run, q):
    queue = q.new("four-fifths", {"x-max-length": 10, "x-overflow": "reject-publish"})
    run.equal("eleven are taken", [q.publish(queue, n) for n in range(12)], [True] * 11 + [False])
    q.take(queue), q.take(queue)
    q.becomes("nine are left", queue, 9)
    run.check("nine are too many", not q.publish(queue, "no"))
    q.take(queue)
    q.becomes("eight are left", queue, 8)
    run.check("eight are not", scenario.eventually(lambda: q.publish(queue, "yes"), 10))


def one_full_target_makes_one_nack(run, q):
    exchange = q.exchange("to-both")
    full = q.new("full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    open_ = q.new("open")
    for queue in (full, open_):
        q.channel.queue_bind(queue, exchange)
    outcomes = [q.publish("", n, exchange=exchange) for n in range(4)]
    run.equal("taken until one is full", outcomes, [True, True, False, False])
    run.equal("the other has all", q.drain(open_), ["0", "1", "2", "3"])
    run.equal("the full one has two", q.drain(full), ["0", "1"])


def a_new_channel_is_refused_as_well(run, q):
    queue = q.new("new-channels", {"x-max-length": 1, "x-overflow": "reject-publish"})
    q.publish(queue, 0), q.publish(queue, 1)
    outcomes = []
    for _ in range(5):
        channel = run.connect(1).channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", queue, b"more")
            outcomes.append(True)
        except pika.exceptions.NackError:
            outcomes.append(False)
    run.equal("each new channel's first publish is refused", outcomes, [False] * 5)
    run.equal("nothing was added", q.drain(queue), ["0", "1"])


def bytes_are_limited_too(run, q):
    queue = q.new("bytes", {"x-max-length-bytes": 100})
    for n in range(10):
        q.publish(queue, str(n) * 40)
    time.sleep(0.1)
    run.equal("two of forty bytes fit", [text[0] for text in q.drain(queue)], ["8", "9"])


def wrong_arguments_are_named(run):
    def declare(**arguments):
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        return lambda: Queues(run).new("wrong", named)

    for name, wrong in (
        ("x-max-length", declare(x_max_length=-5)),
        ("x-max-priority", declare(x_max_priority=5)),
        ("x-queue-mode", declare(x_queue_mode="lazy")),
        ("x-overflow", declare(x_overflow="burst")),
        ("x-dead-letter-routing-key", declare(x_dead_letter_routing_key="k")),
        ("x-expires", declare(x_expires=0)),
    ):
        text = refused(run, f"{name} is refused", 406, wrong)
        run.check(f"{name} is named", name in text, text)
    declare(x_foo=1)()


if __name__ == "__main__":
    scenario.run("limits", body)
