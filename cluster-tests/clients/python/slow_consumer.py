"""Consumers without a prefetch limit that stop reading: they cost the nodes little, and miss nothing when they go on.

Two phases over one queue per node, each declared through the first node: `fill` publishes, `read` consumes.
"""

import os
import time

import pika

import scenario
from scenario import QUORUM

SIZE = 128 << 10
COUNT = 1500


def queue_of(node):
    return f"slow-consumer-{node}"


def resident_megabytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000


def fill(run):
    channel = run.connect(0).channel()
    channel.confirm_delivery()
    rest = os.urandom(SIZE - 12)
    for node in range(len(run.ports)):
        channel.queue_declare(queue_of(node), durable=True, arguments=QUORUM)
        for number in range(COUNT):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", queue_of(node), b"%012d" % number + rest, properties, mandatory=True)


def read(run):
    pids = [int(pid) for pid in run.options.pids.split(",")]
    before = [resident_megabytes(pid) for pid in pids]
    readers = []
    for node in range(len(run.ports)):
        numbers = []
        channel = run.connect(node, heartbeat=0).channel()

        def take(channel, method, _properties, body, numbers=numbers):
            numbers.append((int(body[:12]), len(body), method.redelivered))
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue_of(node), take)
        readers.append((channel, numbers))
    time.sleep(3)
    grown = [resident_megabytes(pid) - base for pid, base in zip(pids, before)]
    run.facts["grown_megabytes"] = [round(megabytes) for megabytes in grown]
    run.check("no node keeps what is not read", max(grown) < 120, f"{grown} of {COUNT * SIZE / 1e6:.0f} MB a queue")
    expected = [(number, SIZE, False) for number in range(COUNT)]
    for node, (channel, numbers) in enumerate(readers):
        deadline = time.monotonic() + 60
        while len(numbers) < COUNT and time.monotonic() < deadline:
            channel.connection.process_data_events(time_limit=0.2)
        run.check(f"reader {node} gets each message once and in order", numbers == expected, f"{len(numbers)} came")


def body(run):
    {"fill": fill, "read": read}[run.options.phase](run)


def arguments(parser):
    parser.add_argument("--phase", choices=["fill", "read"], required=True)
    parser.add_argument("--pids", default="")


if __name__ == "__main__":
    scenario.run("slow_consumer", body, arguments)
