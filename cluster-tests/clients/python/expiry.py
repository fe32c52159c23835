"""Messages and quorum queues that expire: numbers 15, 16 and 17 of the acceptance list."""

import time

import scenario
from quorum_queue import Queues, deaths, refused


def body(run):
    q = Queues(run)
    a_message_expires_by_the_shorter_of_both(run, q)
    no_time_at_all(run, q)
    expired_messages_do_not_wait_for_another_priority(run, q)
    an_expiration_must_be_a_number(run)
    an_unused_queue_goes(run, q)
    a_used_queue_stays(run, q)


def dead_letter_queue(q, stem):
    dlx = q.exchange(f"{stem}-x")
    dead = q.new(f"{stem}-dead")
    q.channel.queue_bind(dead, dlx)
    return dlx, dead


def a_message_expires_by_the_shorter_of_both(run, q):
    dlx, dead = dead_letter_queue(q, "ttl")
    queue = q.new("ttl", {"x-message-ttl": 2000, "x-dead-letter-exchange": dlx})
    started = time.monotonic()
    q.publish(queue, "own", expiration="50")
    _, properties, text = q.take(dead)
    run.check("it died by its own time", time.monotonic() - started < 2, "it took 2 s or more")
    run.equal("it is the message", text, "own")
    [death] = deaths(properties)
    run.equal("reason", death["reason"], "expired")
    run.equal("original-expiration", death["original-expiration"], "50")
    run.equal("queue", death["queue"], queue)
    run.equal("no expiration is left", properties.expiration, None)
    run.equal("x-first-death-queue", properties.headers["x-first-death-queue"], queue)
    q.publish(queue, "queue's")
    _, properties, text = q.take(dead)
    run.equal("the queue's time holds for others", (text, deaths(properties)[0].get("original-expiration")), ("queue's", None))


def no_time_at_all(run, q):
    dlx, dead = dead_letter_queue(q, "zero")
    queue = q.new("zero", {"x-dead-letter-exchange": dlx})
    q.publish(queue, "at once", expiration="0")
    run.equal("nobody was there for it", q.take(dead)[2], "at once")
    got = []
    q.channel.basic_consume(queue, lambda _c, _m, _p, text: got.append(text), auto_ack=True)
    q.publish(queue, "for somebody", expiration="0")
    scenario.collect(q.connection, got, 1, 10)
    run.equal("a consumer gets it", got, [b"for somebody"])


def expired_messages_do_not_wait_for_another_priority(run, q):
    dlx, dead = dead_letter_queue(q, "lanes")
    queue = q.new("lanes", {"x-dead-letter-exchange": dlx})
    for text, priority, ttl in (("9 ttl", 9, "100"), ("9", 9, None), ("7 ttl", 7, "100"), ("7", 7, None)):
        q.publish(queue, text, priority=priority, expiration=ttl)
    run.equal("both died", sorted([q.take(dead)[2], q.take(dead)[2]]), ["7 ttl", "9 ttl"])
    run.equal("the others stay", q.drain(queue), ["9", "7"])


def an_expiration_must_be_a_number(run):
    def publish():
        q = Queues(run)
        queue = q.new("abc")
        q.publish(queue, "x", expiration="abc")

    refused(run, "expiration abc", 406, publish)


def an_unused_queue_goes(run, q):
    queue = q.new("expires", {"x-expires": 1000})
    for _ in range(8):
        time.sleep(0.25)
        q.channel.basic_get(queue)
    run.check("basic.get keeps it", q.exists(queue))
    run.check("then it goes", scenario.eventually(lambda: not q.exists(queue), 15))


def a_used_queue_stays(run, q):
    queue = q.new("consumed", {"x-expires": 1000})
    channel = run.connect(1).channel()
    tag = channel.basic_consume(queue, lambda *_: None)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        channel.connection.process_data_events(time_limit=0.2)
    run.check("a consumer keeps it", q.exists(queue))
    channel.basic_cancel(tag)
    run.check("without one it goes", scenario.eventually(lambda: not q.exists(queue), 15))


if __name__ == "__main__":
    scenario.run("expiry", body)
