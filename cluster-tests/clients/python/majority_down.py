"""A quorum queue whose majority goes away and comes back, as clients on the node that is left see it.

Number 33 of the quorum queue acceptance list. Whoever runs this program takes the majority away once the file
`--up-file` exists, says so with `--down-file`, and gives it back once `--asked-file` exists.
"""

import os
import threading
import time

import pika

import scenario

# beside the timeout: a consumer's session is given five seconds to end before its client is told
MARGIN = 8


class Pending:
    """A call that blocks, in a thread and on a connection of its own."""

    def __init__(self, call):
        self.started = time.monotonic()
        self.took = None
        self.result = None
        self.error = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.result = self._call()
        except Exception as error:  # which one is what the scenario asks
            self.error = error
        self.took = time.monotonic() - self.started

    def ends_within(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()


def body(run):
    queue = run.name_of("majority-down")
    known = confirming(run)
    known.queue_declare(queue, durable=True, arguments=scenario.QUORUM)
    known.basic_publish("", queue, b"before")
    # connected while all is well; what they ask comes later
    newcomer, consumer, late, reader, getter, declarer, exchanger = (confirming(run) for _ in range(7))
    tell(run.options.up_file)
    run.check("the majority is taken away", scenario.eventually(lambda: os.path.exists(run.options.down_file), 60))

    pending = Pending(lambda: known.basic_publish("", queue, b"pending"))
    # the node needs a moment to know that it leads nothing any more: what it took until then it may still commit
    time.sleep(4)
    refused = Pending(lambda: newcomer.basic_publish("", queue, b"refused"))
    run.check("a newcomer's publish is answered", refused.ends_within(10), "not within 10 s")
    run.check("with a nack", isinstance(refused.error, pika.exceptions.NackError), repr(refused.error))
    run.check("after five seconds", 4 < refused.took < 10, f"{refused.took:.1f} s")
    timeout = run.options.metadata_timeout
    bounded = {
        "a passive declare": (Pending(lambda: reader.queue_declare(queue, durable=True, passive=True)), 15),
        "basic.consume": (Pending(lambda: consumer.basic_consume(queue, lambda *_: None)), 15),
        "basic.get": (Pending(lambda: getter.basic_get(queue)), 15),
        "declaring a queue": (
            Pending(lambda: declarer.queue_declare(run.name_of("no-queue"), durable=True, arguments=scenario.QUORUM)),
            timeout,
        ),
        "declaring an exchange": (Pending(lambda: exchanger.exchange_declare(run.name_of("no-exchange"))), timeout),
    }

    run.check("a known publisher's publish stays pending", not pending.ends_within(max(0, 10 - elapsed(pending))), repr(pending.error))
    for what, (call, limit) in bounded.items():
        left = max(0, limit + MARGIN - elapsed(call))
        run.check(f"{what} is answered in time", call.ends_within(left), f"not within {limit + MARGIN} s")
        run.check(f"{what} fails", call.error is not None, repr(call.result))
        code, text = getattr(call.error, "reply_code", None), getattr(call.error, "reply_text", "")
        run.equal(f"{what}: the code", code, 541)
        run.check(f"{what}: the text says why", "timed out" in text or "leader" in text, text)
        run.check(f"{what}: the connection was closed in order", code is not None, repr(call.error))
        run.facts[what.replace(" ", "_").replace(".", "_")] = f"{call.took:.1f} s: {text}"
    run.check("a known publisher's publish is still pending", not pending.ends_within(0), repr(pending.error))

    # what is asked shortly before the majority returns is not refused
    got = []
    consuming = Pending(lambda: late.basic_consume(queue, lambda _c, _m, _p, text: got.append(text), auto_ack=True))
    tell(run.options.asked_file)
    run.check("the pending publish is answered when the majority is back", pending.ends_within(60))
    run.check("and confirmed", pending.error is None, repr(pending.error))
    run.check("a consumer that asked shortly before is registered", consuming.ends_within(30), "not answered")
    run.check("and not refused", consuming.error is None, repr(consuming.error))
    scenario.collect(late.connection, got, 2, 20)
    scenario.collect(late.connection, got, 3, 3)
    run.equal("each confirmed message is there once", got, [b"before", b"pending"])


def confirming(run):
    channel = run.connect(0).channel()
    channel.confirm_delivery()
    return channel


def elapsed(call):
    return time.monotonic() - call.started


def tell(file):
    with open(file, "w", encoding="ascii"):
        pass


def arguments(parser):
    parser.add_argument("--up-file", required=True, help="made once the queue is there and a message confirmed")
    parser.add_argument("--down-file", required=True, help="appears once the majority is gone")
    parser.add_argument("--asked-file", required=True, help="made once everything was asked that fails")
    parser.add_argument("--metadata-timeout", type=float, default=30, help="seconds that a declaration may take")


if __name__ == "__main__":
    scenario.run("majority_down", body, arguments)
