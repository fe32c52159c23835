"""How a quorum queue gives messages back: order, `redelivered`, and the counting headers.

The cases are numbers 3, 4, 7 and 8 of the quorum queue acceptance list.
"""

import pika

import scenario
from scenario import QUORUM

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def body(run):
    rejected_messages_count_as_deliveries(run)
    nacked_messages_count_as_acquired(run)
    a_closed_connection_returns_its_messages_in_order(run)
    multiple_nack_returns_in_order(run)


def new_queue(run, stem, node=0):
    channel = run.connect(node).channel()
    channel.confirm_delivery()
    queue = run.name_of(stem)
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    return channel, queue


def publish(channel, queue, numbers):
    for number in numbers:
        channel.basic_publish("", queue, str(number).encode(), PERSISTENT, mandatory=True)


def take(run, channel, queue):
    got = scenario.get_within(channel, queue, 10)
    run.check(f"a message comes from {queue}", got is not None)
    return got


def header(properties, name):
    return (properties.headers or {}).get(name)


def rejected_messages_count_as_deliveries(run):
    channel, queue = new_queue(run, "reject-thrice")
    publish(channel, queue, [1])
    seen = []
    for _ in range(3):
        method, properties, _ = take(run, channel, queue)
        seen.append((method.redelivered, header(properties, "x-delivery-count")))
        channel.basic_reject(method.delivery_tag, requeue=True)
    run.equal("reject: redelivered", [again for again, _ in seen], [False, True, True])
    run.equal("reject: x-delivery-count", [count for _, count in seen], [None, 1, 2])
    channel.queue_delete(queue)


def nacked_messages_count_as_acquired(run):
    channel, queue = new_queue(run, "nack-fifty")
    publish(channel, queue, [1])
    rounds = 10 if run.options.peer else 50
    for _ in range(rounds):
        method, _, _ = take(run, channel, queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
    method, properties, _ = take(run, channel, queue)
    run.check("nack: still delivered, as redelivered", method.redelivered)
    if not run.options.peer:
        run.equal("nack: x-acquired-count", header(properties, "x-acquired-count"), 50)
        run.equal("nack: no x-delivery-count", header(properties, "x-delivery-count"), None)
    channel.basic_ack(method.delivery_tag)
    channel.queue_delete(queue)


def a_closed_connection_returns_its_messages_in_order(run):
    channel, queue = new_queue(run, "closed-connection")
    publish(channel, queue, range(1, 9))
    holder = run.connect(1).channel()
    holder.basic_qos(prefetch_count=5)
    _, held = scenario.consume_within(holder, queue, 5, 10)
    run.equal("prefetch 5 hands out five", [int(text) for _, _, text in held], [1, 2, 3, 4, 5])
    holder.connection.close()
    back = scenario.eventually(lambda: ready(channel, queue) == 8, 10)
    run.check("the five are ready again", back, "they did not come back in 10 s")
    seen = []
    for _ in range(6):
        method, _, text = take(run, channel, queue)
        seen.append(int(text))
        channel.basic_nack(method.delivery_tag, requeue=True)
    run.equal("returned first, then round again", seen, [1, 2, 3, 4, 5, 1])
    channel.queue_delete(queue)


def multiple_nack_returns_in_order(run):
    channel, queue = new_queue(run, "nack-multiple")
    publish(channel, queue, range(1, 11))
    consumer = run.connect(2).channel()
    consumer.basic_qos(prefetch_count=10)
    got = []
    consumer.basic_consume(queue, lambda _c, m, _p, text: got.append((m.delivery_tag, m.redelivered, int(text))))
    scenario.collect(consumer.connection, got, 10, 10)
    run.equal("ten unacknowledged", [n for _, _, n in got], list(range(1, 11)))
    publish(channel, queue, range(11, 16))
    fifth = got[4][0]
    consumer.basic_nack(fifth, multiple=True, requeue=True)
    scenario.collect(consumer.connection, got, 15, 10)
    run.equal("the five come back first, in order", [n for _, _, n in got[10:]], [1, 2, 3, 4, 5])
    run.check("they are marked redelivered", all(again for _, again, _ in got[10:]))
    consumer.basic_ack(got[-1][0], multiple=True)
    scenario.collect(consumer.connection, got, 20, 10)
    run.equal("new messages follow", [n for _, _, n in got[15:]], [11, 12, 13, 14, 15])
    channel.queue_delete(queue)


def ready(channel, queue):
    return channel.queue_declare(queue, durable=True, passive=True).method.message_count


def arguments(parser):
    parser.add_argument("--peer", action="store_true", help="the server is RabbitMQ: skip what only Warren and RabbitMQ 4.3 do")


if __name__ == "__main__":
    scenario.run("redelivery", body, arguments)
