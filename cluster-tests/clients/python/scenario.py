"""What every scenario program shares: its arguments, its connections and its one-line verdict.

A program prints exactly one JSON line on standard output and exits 0 when every check held, 1 when one did not.
"""

import argparse
import json
import os
import sys
import threading
import time
import traceback
import uuid

import pika

QUORUM = {"x-queue-type": "quorum"}
HOST = "127.0.0.1"


class CheckFailed(AssertionError):
    """A check that did not hold, in words for the verdict line."""


class Scenario:
    """One run of one program against the nodes that listen on `ports`."""

    def __init__(self, name, options):
        self.name = name
        self.options = options
        self.ports = [int(port) for port in options.ports.split(",")]
        self.passed = []
        self.facts = {}
        self._suffix = uuid.uuid4().hex[:8]
        self._connections = []

    def name_of(self, stem):
        """A name that no other run uses, so that programs can share a cluster."""
        return f"{stem}-{self._suffix}"

    def parameters(self, node=0, **overrides):
        """Connection parameters for the node at that index, with bounded waits."""
        settings = {
            "host": HOST,
            "port": self.ports[node % len(self.ports)],
            "virtual_host": "/",
            "credentials": pika.PlainCredentials("guest", "guest"),
            "socket_timeout": 10,
            "stack_timeout": 20,
            "blocked_connection_timeout": 60,
        }
        settings.update(overrides)
        return pika.ConnectionParameters(**settings)

    def connect(self, node=0, **overrides):
        """A connection that is closed when the program ends."""
        connection = pika.BlockingConnection(self.parameters(node, **overrides))
        self._connections.append(connection)
        return connection

    def check(self, what, condition, detail=""):
        """Records that a check held, or ends the program with a failed verdict."""
        if not condition:
            raise CheckFailed(f"{what}: {detail}" if detail != "" else what)
        self.passed.append(what)

    def equal(self, what, got, expected):
        """Checks that two values are equal, and says both where they are not."""
        self.check(what, got == expected, f"got {got!r}, expected {expected!r}")

    def close(self):
        """Closes what is still open; a connection that the server closed is left as it is."""
        for connection in self._connections:
            try:
                if connection.is_open:
                    connection.close()
            except (pika.exceptions.AMQPError, OSError):
                pass


def run(name, body, extra_arguments=None):
    """Parses the arguments, runs `body(scenario)`, prints the verdict, exits."""
    parser = argparse.ArgumentParser(description=sys.modules[body.__module__].__doc__)
    parser.add_argument("--ports", required=True, help="AMQP ports on loopback, one per node, comma-separated")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which the program gives up")
    if extra_arguments is not None:
        extra_arguments(parser)
    scenario = Scenario(name, parser.parse_args())
    started = time.monotonic()
    give_up = threading.Timer(scenario.options.limit, _timed_out, [scenario, started])
    give_up.daemon = True
    give_up.start()
    failure = None
    try:
        body(scenario)
    except CheckFailed as failed:
        failure = str(failed)
    except Exception as error:  # the verdict line must come whatever went wrong
        failure = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    give_up.cancel()
    if failure is None:
        scenario.close()
    _finish(scenario, started, failure)


def _timed_out(scenario, started):
    for thread, frame in sys._current_frames().items():
        print(f"thread {thread}", file=sys.stderr)
        traceback.print_stack(frame)
    _finish(scenario, started, f"gave up after {scenario.options.limit:g} s")


def _finish(scenario, started, failure):
    verdict = {
        "program": scenario.name,
        "verdict": "fail" if failure else "pass",
        "seconds": round(time.monotonic() - started, 2),
        "checks": len(scenario.passed),
        **scenario.facts,
    }
    if failure:
        verdict["failure"] = failure
        verdict["passed"] = scenario.passed
    print(json.dumps(verdict), flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # threads that still wait for a broker must not keep the process alive
    os._exit(1 if failure else 0)


def get_within(channel, queue, seconds, auto_ack=False):
    """`basic.get` until a message comes; None when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


def consume_within(channel, queue, count, seconds, auto_ack=False):
    """Up to `count` deliveries of a new consumer, as (method, properties, body); fewer when the time is over.

    The consumer stays attached, so nothing is returned to the queue behind the caller's back.
    """
    got = []
    tag = channel.basic_consume(queue, lambda _c, m, p, b: got.append((m, p, b)), auto_ack=auto_ack)
    collect(channel.connection, got, count, seconds)
    return tag, got


def collect(connection, got, count, seconds):
    """Serves the connection until the list holds `count` items or the time is over."""
    deadline = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < deadline:
        connection.process_data_events(time_limit=0.05)


def eventually(condition, seconds, every=0.05):
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
