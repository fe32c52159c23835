"""Declares a quorum queue on each node with nothing but its type, fills it, and declares it again.

Number 1 of the quorum queue acceptance list, as far as a client sees it: the queues are called `--queue` and the node's
number, for whoever asks the cluster about their members afterwards.
"""

import scenario

MESSAGES = 3


def body(run):
    for node in range(len(run.ports)):
        queue = f"{run.options.queue}-{node}"
        channel = run.connect(node).channel()
        channel.confirm_delivery()
        declared = channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM).method
        run.equal("a new queue", (declared.queue, declared.message_count, declared.consumer_count), (queue, 0, 0))
        for number in range(MESSAGES):
            channel.basic_publish("", queue, str(number))
        consumer = run.connect(node).channel()
        consumer.basic_qos(prefetch_count=1)
        consumer.basic_consume(queue, lambda *_: None)

        # one message is with the consumer, two are ready
        counts = []

        def settled():
            again = channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM).method
            counts.append((again.message_count, again.consumer_count))
            return counts[-1] == (MESSAGES - 1, 1)

        run.check("declared again, it counts messages and consumers", scenario.eventually(settled, 10), counts[-1:])
        for other in range(len(run.ports)):
            far = run.connect(other).channel().queue_declare(queue, durable=True, arguments=scenario.QUORUM).method
            run.equal(f"the same on node {other}", (far.message_count, far.consumer_count), (MESSAGES - 1, 1))


def arguments(parser):
    parser.add_argument("--queue", default="declared", help="what the queues' names begin with")


if __name__ == "__main__":
    scenario.run("declare", body, arguments)
