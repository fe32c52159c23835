"""Publish with confirms, consume and acknowledge one quorum queue through every node of the cluster."""

import pika

import scenario
from scenario import QUORUM

MESSAGES = 200


def body(run):
    queue = run.name_of("each-node")
    nodes = range(len(run.ports))
    first = run.connect(0).channel()
    first.queue_declare(queue, durable=True, arguments=QUORUM)

    for publisher in nodes:
        for consumer in nodes:
            round_trip(run, queue, publisher, consumer)

    left = first.queue_declare(queue, durable=True, passive=True).method.message_count
    run.equal("nothing is left after everything was acknowledged", left, 0)
    first.queue_delete(queue)
    for node in nodes:
        channel = run.connect(node).channel()
        try:
            channel.queue_declare(queue, passive=True)
            run.check(f"the deleted queue is gone on node {node}", False, "it is still there")
        except pika.exceptions.ChannelClosedByBroker as closed:
            run.equal(f"the deleted queue is gone on node {node}", closed.reply_code, 404)


def round_trip(run, queue, publisher, consumer):
    """A batch of confirmed messages from one node to another, in order, each acknowledged."""
    label = f"published on node {publisher}, consumed on node {consumer}"
    out = run.connect(publisher).channel()
    out.confirm_delivery()
    bodies = [f"{publisher}-{consumer}-{n}".encode() for n in range(MESSAGES)]
    for text in bodies:
        out.basic_publish("", queue, text, pika.BasicProperties(delivery_mode=2), mandatory=True)

    into = run.connect(consumer).channel()
    into.basic_qos(prefetch_count=50)
    got = []

    def on_message(channel, method, _properties, text):
        got.append((text, method.redelivered))
        channel.basic_ack(method.delivery_tag)

    tag = into.basic_consume(queue, on_message)
    scenario.collect(into.connection, got, MESSAGES, 20)
    run.equal(f"{label}: bodies and their order", [text for text, _ in got], bodies)
    run.check(f"{label}: first deliveries", not any(again for _, again in got), "a first delivery was marked redelivered")
    into.basic_cancel(tag)
    out.connection.close()
    into.connection.close()


if __name__ == "__main__":
    scenario.run("each_node", body)
