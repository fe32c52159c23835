"""Consumers of quorum queues that hold messages too long: number 26 of the acceptance list."""

import pika

import scenario
from quorum_queue import Queues


def body(run):
    q = Queues(run)
    a_consumer_is_cancelled_and_its_message_ready_again(run, q)
    the_queue_may_say_how_long(run, q)
    a_get_that_is_never_answered_closes_its_channel(run, q)


def consume(run, q, queue, arguments):
    channel = run.connect(1).channel()
    cancelled, got = [], []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda _c, m, _p, text: got.append((m.delivery_tag, text)), arguments=arguments)
    scenario.collect(channel.connection, got, 1, 10)
    run.equal("it holds one", [text for _, text in got], [b"held"])
    scenario.collect(channel.connection, cancelled, 1, 15)
    run.equal("it is cancelled", cancelled, [tag])
    q.becomes("the message is ready again", queue, 1)
    gone = scenario.eventually(lambda: q.consumers(queue) == 0, 10)
    run.check("it is no consumer any more", gone)
    run.check("its channel is open", channel.is_open)
    return channel, got


def a_consumer_is_cancelled_and_its_message_ready_again(run, q):
    queue = q.new("timeout")
    q.publish(queue, "held")
    channel, got = consume(run, q, queue, {"x-consumer-timeout": 1000})
    channel.basic_ack(got[0][0])
    q.becomes("a late answer means nothing", queue, 1)
    method, _, text = q.take(queue)
    run.equal("it is redelivered", (text, method.redelivered), ("held", True))
    run.check("the channel can still be used", channel.queue_declare(queue, passive=True) is not None)


def the_queue_may_say_how_long(run, q):
    queue = q.new("queue-timeout", {"x-consumer-timeout": 1000})
    q.publish(queue, "held")
    consume(run, q, queue, None)


def a_get_that_is_never_answered_closes_its_channel(run, q):
    queue = q.new("get-timeout", {"x-consumer-timeout": 1000})
    q.publish(queue, "held")
    channel = run.connect(2).channel()
    method, _, _ = scenario.get_within(channel, queue, 10)
    run.check("it was taken", method is not None)

    def closed():
        try:
            channel.connection.process_data_events(time_limit=0.1)
            return channel.is_closed
        except pika.exceptions.ChannelClosedByBroker as closed:
            run.equal("with 406", closed.reply_code, 406)
            return True

    run.check("the channel is closed", scenario.eventually(closed, 15))
    q.becomes("the message is ready again", queue, 1)


if __name__ == "__main__":
    scenario.run("consumer_timeout", body)
