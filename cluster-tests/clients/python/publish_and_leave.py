"""100,000 publishes without confirms, then channel.close and connection.close at once: all of them are in the queue.

Number 40 of the quorum queue acceptance list.
"""

import pika

import scenario
from scenario import QUORUM


def body(run):
    queue = run.name_of("publish-and-leave")
    count = run.options.count
    watcher = run.connect(0).channel()
    watcher.queue_declare(queue, durable=True, arguments=QUORUM)
    for node in range(len(run.ports)):
        publisher = run.connect(node).channel()
        for number in range(count):
            publisher.basic_publish("", queue, b"%012d" % number, pika.BasicProperties(delivery_mode=2))
        publisher.close()
        publisher.connection.close()

        def ready():
            return watcher.queue_declare(queue, durable=True, passive=True).method.message_count

        arrived = scenario.eventually(lambda: ready() >= count, 60)
        run.check(f"all {count} published through node {node} arrived", arrived, f"{ready()} are there")
        run.equal(f"and no more than those, through node {node}", ready(), count)
        watcher.queue_purge(queue)
    watcher.queue_delete(queue)


def arguments(parser):
    parser.add_argument("--count", type=int, default=100_000)


if __name__ == "__main__":
    scenario.run("publish_and_leave", body, arguments)
