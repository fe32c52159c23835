"""A continuous load that lives through node deaths, and the check of what it saw.

Publishers keep a window of unconfirmed messages; consumers acknowledge; both reconnect to the next node when a
connection dies. After `--seconds`, once `--messages` are confirmed, or when `--stop-file` appears, publishing stops, the
consumers drain the queue, and the recorded history is checked (see history.py).
"""

import collections
import json
import os
import random
import threading
import time

import pika

import history
import scenario
from scenario import QUORUM

RETRY = 0.1  # seconds between attempts to connect


class Recorder:
    """Appends events to the history file, one JSON line each; safe to share between threads."""

    def __init__(self, path):
        self.events = []
        self._file = open(path, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def add(self, kind, **fields):
        event = {"e": kind, "t": round(time.time(), 4), **fields}
        with self._lock:
            self.events.append(event)
            self._file.write(json.dumps(event) + "\n")

    def close(self):
        with self._lock:
            self._file.close()


class Client(threading.Thread):
    """A thread with one connection at a time, to the next node each time that one is lost."""

    def __init__(self, run, name, node):
        super().__init__(daemon=True)
        self.name = name
        self.session = -1
        self.reconnects = 0
        self._run_of = run
        self._node = node
        self.stopping = threading.Event()
        self._connection = None

    def parameters(self):
        settings = self._run_of.parameters(self._node, socket_timeout=5, stack_timeout=10, heartbeat=10)
        self._node += 1
        return settings

    def run(self):
        while not self.finished():
            self.session += 1
            connection = pika.SelectConnection(
                self.parameters(),
                on_open_callback=self._opened,
                on_open_error_callback=self._ended,
                on_close_callback=self._ended,
            )
            self._connection = connection
            connection.ioloop.call_later(0.05, self._look)
            connection.ioloop.start()
            connection.ioloop.close()
            if not self.finished():
                self.reconnects += 1
                time.sleep(RETRY)

    def _look(self):
        """Ten times a second or so: is there something to do that no frame announced?"""
        if self.finished():
            if self._connection.is_open:
                self._connection.close()
            elif not self._connection.is_closing:
                self._connection.ioloop.stop()
        else:
            self.on_look()
        self._connection.ioloop.call_later(0.05, self._look)

    def _opened(self, connection):
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel):
        channel.add_on_close_callback(self._channel_closed)
        self.on_channel(channel)

    def _channel_closed(self, _channel, _reason):
        if self._connection.is_open:
            self._connection.close()

    def _ended(self, connection, _reason):
        connection.ioloop.stop()

    def finished(self):
        return self.stopping.is_set()

    def on_look(self):
        pass


class Publisher(Client):
    """Publishes numbered messages with a window of unconfirmed ones; ends when nothing is outstanding."""

    def __init__(self, run, recorder, index, queue):
        super().__init__(run, f"p{index}", index)
        self.confirmed = 0
        self._recorder = recorder
        self._queue = queue
        self._window = run.options.window
        self._next = 0
        self._tag = 0
        self._outstanding = collections.OrderedDict()
        self._channel = None
        self._pad = "." * run.options.size
        self._done_publishing = threading.Event()

    def stop_publishing(self):
        """No new messages; the thread ends once all that it sent on its last connection is answered."""
        self._done_publishing.set()

    def finished(self):
        return self.stopping.is_set() or (self._done_publishing.is_set() and not self._outstanding)

    def on_channel(self, channel):
        self._channel = channel
        self._tag = 0
        # what the lost connection left unanswered stays so: see history.py
        self._outstanding.clear()
        channel.confirm_delivery(self._answered, callback=lambda _frame: self._fill())

    def on_look(self):
        if self._channel is not None and self._channel.is_open:
            self._fill()

    def _ended(self, connection, reason):
        self._outstanding.clear()
        self._channel = None
        super()._ended(connection, reason)

    def _fill(self):
        rate = self._run_of.options.rate
        budget = self._window if rate == 0 else max(1, int(rate * 0.05))
        while len(self._outstanding) < self._window and budget > 0 and not self._done_publishing.is_set():
            budget -= 1
            number = self._next
            self._next += 1
            self._tag += 1
            self._outstanding[self._tag] = number
            self._recorder.add("publish", p=self.name, s=self.session, n=number)
            self._channel.basic_publish(
                "",
                self._queue,
                f"{self.name} {self.session} {number} {self._pad}".encode(),
                pika.BasicProperties(delivery_mode=2),
            )

    def _answered(self, frame):
        method = frame.method
        kind = "confirm" if isinstance(method, pika.spec.Basic.Ack) else "refuse"
        if method.multiple:
            tags = [tag for tag in self._outstanding if tag <= method.delivery_tag]
        else:
            tags = [tag for tag in [method.delivery_tag] if tag in self._outstanding]
        if not tags:
            self._recorder.add("stray", p=self.name, s=self.session, tag=method.delivery_tag)
        for tag in tags:
            number = self._outstanding.pop(tag)
            self._recorder.add(kind, p=self.name, s=self.session, n=number)
            self.confirmed += kind == "confirm"
        if self._run_of.options.rate == 0:
            self._fill()


class Consumer(Client):
    """Consumes, records and acknowledges in small batches, so that a lost node leaves some unacknowledged."""

    def __init__(self, run, recorder, index, queue):
        super().__init__(run, f"c{index}", index + 1)
        self.last_receipt = time.monotonic()
        self._recorder = recorder
        self._queue = queue
        self._channel = None
        self._unacked = 0
        self._last_tag = 0

    def on_channel(self, channel):
        self._channel = channel
        self._unacked = 0
        channel.basic_qos(prefetch_count=100)
        channel.basic_consume(self._queue, self._received)

    def on_look(self):
        self._acknowledge()

    def _received(self, channel, method, _properties, text):
        publisher, session, number, _ = text.decode().split(" ", 3)
        self.last_receipt = time.monotonic()
        self._recorder.add(
            "receive",
            c=self.name,
            s=self.session,
            p=publisher,
            ps=int(session),
            n=int(number),
            again=method.redelivered,
        )
        self._last_tag = method.delivery_tag
        self._unacked += 1
        if self._unacked >= random.randint(1, 40):
            self._acknowledge()

    def _acknowledge(self):
        if self._unacked and self._channel is not None and self._channel.is_open:
            self._channel.basic_ack(self._last_tag, multiple=True)
            self._unacked = 0


def declare(run, queue):
    """Declares the queue through whichever node answers."""
    for attempt in range(100):
        try:
            connection = pika.BlockingConnection(run.parameters(attempt))
            connection.channel().queue_declare(queue, durable=True, arguments=QUORUM)
            connection.close()
            return
        except (pika.exceptions.AMQPError, OSError):
            time.sleep(0.2)
    run.check("the queue could be declared", False)


def body(run):
    options = run.options
    queue = options.queue or run.name_of("load")
    declare(run, queue)
    recorder = Recorder(options.history)
    publishers = [Publisher(run, recorder, n, queue) for n in range(options.publishers)]
    consumers = [Consumer(run, recorder, n, queue) for n in range(options.consumers)]
    for client in [*consumers, *publishers]:
        client.start()

    started = time.monotonic()
    while time.monotonic() - started < options.seconds:
        if options.stop_file and os.path.exists(options.stop_file):
            break
        if options.messages and sum(p.confirmed for p in publishers) >= options.messages:
            break
        time.sleep(0.1)
    for publisher in publishers:
        publisher.stop_publishing()
    publishing = time.monotonic() - started
    deadline = time.monotonic() + options.drain
    for publisher in publishers:
        publisher.join(max(0.1, deadline - time.monotonic()))
    answered = not any(p.is_alive() for p in publishers)

    drained = drain(run, queue, consumers, deadline)
    if drained:
        recorder.add("drained")
    for client in [*publishers, *consumers]:
        client.stopping.set()
    for client in [*publishers, *consumers]:
        client.join(10)
    recorder.close()

    bad, figures = history.check(recorder.events)
    run.facts.update(figures)
    run.facts["reconnects"] = sum(c.reconnects for c in [*publishers, *consumers])
    run.facts["confirmed_per_second"] = round(figures["confirmed"] / max(publishing, 0.001))
    run.facts["longest_confirm_gap"] = longest_gap(recorder.events)
    run.check("every outstanding publish was answered or its connection lost", answered)
    run.check("the queue could be drained", drained)
    run.check("the history keeps the rules", not bad.counts, json.dumps({"counts": dict(bad.counts), "examples": bad.examples}))
    if options.messages and not options.stop_file:
        run.check("enough was confirmed", figures["confirmed"] >= options.messages, figures["confirmed"])


def drain(run, queue, consumers, deadline):
    """Waits until the queue holds nothing, ready or unacknowledged, as two looks a second apart agree."""
    quiet = 0
    while time.monotonic() < deadline:
        time.sleep(0.5)
        silent = min(time.monotonic() - c.last_receipt for c in consumers) > 0.5
        quiet = quiet + 1 if silent and ready(run, queue) == 0 else 0
        if quiet >= 4:
            return True
    return False


def ready(run, queue):
    """How many messages are ready, by whichever node answers; None when none does."""
    for node in range(len(run.ports)):
        try:
            connection = pika.BlockingConnection(run.parameters(node, socket_timeout=5, stack_timeout=10))
            count = connection.channel().queue_declare(queue, durable=True, passive=True).method.message_count
            connection.close()
            return count
        except (pika.exceptions.AMQPError, OSError):
            continue
    return None


def longest_gap(events):
    """The longest time between two confirms, in seconds: how long the publishers had to wait."""
    times = [event["t"] for event in events if event["e"] == "confirm"]
    return round(max((b - a for a, b in zip(times, times[1:])), default=0), 3)


def arguments(parser):
    parser.add_argument("--history", required=True, help="file to record the run in")
    parser.add_argument("--queue", help="name of the quorum queue; a new one when absent")
    parser.add_argument("--seconds", type=float, default=30, help="how long to publish at most")
    parser.add_argument("--stop-file", help="stop publishing once this file exists")
    parser.add_argument("--messages", type=int, default=0, help="stop publishing once so many are confirmed")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--window", type=int, default=100, help="unconfirmed messages per publisher")
    parser.add_argument("--rate", type=float, default=0, help="messages per second and publisher; 0 is as fast as confirms come")
    parser.add_argument("--size", type=int, default=20, help="bytes of padding in each body")
    parser.add_argument("--drain", type=float, default=60, help="seconds to wait for the last confirms and deliveries")


if __name__ == "__main__":
    scenario.run("load", body, arguments)
