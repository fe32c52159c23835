"""A node that has lost the majority of its cluster, and gets it back, as its clients see it.

Numbers 18 and 36 of the metadata acceptance list. Whoever runs this program takes the majority away once the file `--up-file`
exists, says so with `--down-file`, gives it back once `--asked-file` exists, and says so with `--healed-file`.
"""

import os
import threading
import time

import pika

import scenario


class Asked:
    """A call that blocks, in a thread and on a connection of its own."""

    def __init__(self, call):
        self.error = None
        self.took = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        started = time.monotonic()
        try:
            self._call()
        except Exception as error:  # which one is what the scenario asks
            self.error = error
        self.took = time.monotonic() - started

    def ends_within(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()


def body(run):
    local, doomed = "local", "doomed"
    channel = run.connect(0).channel()
    for queue in (local, doomed):
        channel.queue_declare(queue, durable=True)
    channel.exchange_declare("old", exchange_type="fanout", durable=True)
    channel.queue_bind(local, "old")
    asking = [run.connect(0).channel() for _ in range(7)]
    tell(run.options.up_file)
    appears(run, "the majority is gone", run.options.down_file)

    calls = {
        "queue.declare": lambda c: c.queue_declare("late-durable", durable=True),
        "queue.declare exclusive": lambda c: c.queue_declare("late-exclusive", exclusive=True),
        "queue.delete": lambda c: c.queue_delete(doomed),
        "queue.bind": lambda c: c.queue_bind(local, "amq.direct", "late"),
        "queue.unbind": lambda c: c.queue_unbind(local, "old"),
        "exchange.declare": lambda c: c.exchange_declare("late", durable=True),
        "exchange.delete": lambda c: c.exchange_delete("old"),
    }
    pending = {what: Asked(lambda c=c, call=call: call(c)) for (what, call), c in zip(calls.items(), asking)}

    # what needs no change of the metadata goes on
    channel.basic_publish("old", "", b"routed")
    run.check("a message is routed", scenario.eventually(lambda: channel.basic_get(local, auto_ack=True)[2] == b"routed", 10))
    run.equal("an equal queue is declared again", channel.queue_declare(local, durable=True).method.queue, local)
    run.equal("a passive declaration", channel.queue_declare(local, passive=True).method.message_count, 0)
    another = run.connect(0).channel()
    another.basic_publish("", local, b"by another")
    got = []
    another.basic_consume(local, lambda _c, _m, _p, text: got.append(text), auto_ack=True)
    scenario.collect(another.connection, got, 1, 10)
    run.equal("a new connection publishes and consumes", got, [b"by another"])
    another.connection.close()

    timeout = run.options.metadata_timeout
    for what, call in pending.items():
        run.check(f"{what} is answered", call.ends_within(timeout + 20), "not in time")
        code, text = getattr(call.error, "reply_code", None), getattr(call.error, "reply_text", "")
        run.equal(f"{what}: the code", code, 541)
        run.check(f"{what}: the text", "timed out" in text, text)
        run.check(f"{what}: not before its time", call.took >= timeout - 0.2, f"{call.took:.2f} s")
    tell(run.options.asked_file)
    appears(run, "the majority is back", run.options.healed_file)

    # whatever of it was carried out late is whole
    last = run.connect(0).channel()
    last.confirm_delivery()
    for queue in ("late-durable", doomed, local):
        last.queue_declare(queue, durable=True)
        last.queue_purge(queue)
        last.basic_publish("", queue, b"after", mandatory=True)
        run.equal(f"{queue} works", last.basic_get(queue, auto_ack=True)[2], b"after")
    last.exchange_declare("late", durable=True)
    last.queue_declare("late-exclusive", durable=True)


def appears(run, what, file):
    run.check(what, scenario.eventually(lambda: os.path.exists(file), 120))


def tell(file):
    with open(file, "w", encoding="ascii"):
        pass


def arguments(parser):
    parser.add_argument("--up-file", required=True, help="made once everything is ready")
    parser.add_argument("--down-file", required=True, help="appears once the majority is gone")
    parser.add_argument("--asked-file", required=True, help="made once everything was asked that fails")
    parser.add_argument("--healed-file", required=True, help="appears once no exclusive queue is left")
    parser.add_argument("--metadata-timeout", type=float, default=30, help="seconds that a declaration may take")


if __name__ == "__main__":
    scenario.run("minority", body, arguments)
