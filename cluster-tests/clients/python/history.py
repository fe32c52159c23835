"""The record of a load run, and the rules that it must keep.

A history is a file of JSON lines, each with an `e` (event) and the time `t` in seconds:

| event | fields | meaning |
|---|---|---|
| `publish` | `p` publisher, `s` its session, `n` number | the message was handed to the socket |
| `confirm` | `p`, `s`, `n` | basic.ack covered it |
| `refuse` | `p`, `s`, `n` | basic.nack covered it |
| `stray` | `p`, `s`, `tag` | a confirm or refusal that covers no outstanding message |
| `receive` | `c` consumer, `s` its session, `p`, `ps` the publisher's session, `n`, `again` redelivered flag | a delivery |
| `drained` | | the consumers saw the queue stay empty to the end |

A session is one connection: numbers go on across sessions, and what a lost connection left unconfirmed is not sent again,
so each (publisher, number) is published once.
"""

import json
from collections import Counter

KEEP = 5  # examples of each kind of violation


class Violations:
    """What went wrong, by kind, with a few examples of each."""

    def __init__(self):
        self.counts = Counter()
        self.examples = {}

    def add(self, kind, example):
        self.counts[kind] += 1
        kept = self.examples.setdefault(kind, [])
        if len(kept) < KEEP:
            kept.append(example)


def read(path):
    """The events of a history file, in order."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def check(events):
    """The violations and the figures of a history."""
    bad = Violations()
    published, confirmed, received = {}, Counter(), Counter()
    first_deliveries = Counter()
    last_first = {}
    duplicates = again_count = 0
    drained = False
    for event in events:
        kind = event["e"]
        if kind == "publish":
            key = (event["p"], event["n"])
            if key in published:
                bad.add("the history publishes a number twice", key)
            published[key] = event["s"]
        elif kind == "confirm":
            key = (event["p"], event["n"])
            confirmed[key] += 1
            if confirmed[key] > 1:
                bad.add("confirmed twice", key)
            if key not in published:
                bad.add("confirmed but never published", key)
        elif kind == "refuse":
            bad.add("refused with basic.nack", (event["p"], event["n"]))
        elif kind == "stray":
            bad.add("confirmed twice", ("delivery tag", event["p"], event["s"], event["tag"]))
        elif kind == "receive":
            key = (event["p"], event["n"])
            received[key] += 1
            if published.get(key) != event["ps"]:
                bad.add("received but never published", key)
            if received[key] > 1:
                duplicates += 1
            if event["again"]:
                again_count += 1
                continue
            first_deliveries[key] += 1
            if first_deliveries[key] > 1:
                bad.add("delivered twice without the redelivered flag", key)
            line = (event["c"], event["s"], event["p"], event["ps"])
            if last_first.get(line, -1) >= event["n"]:
                bad.add("first deliveries out of the publisher's order", (*line, last_first[line], event["n"]))
            last_first[line] = max(event["n"], last_first.get(line, -1))
        elif kind == "drained":
            drained = True
    for key in confirmed:
        if key not in received:
            bad.add("confirmed and lost", key)
    if not drained:
        bad.add("the history does not say that the queue was drained", "")
    if not confirmed:
        bad.add("nothing was confirmed: this history proves nothing", "")
    figures = {
        "published": len(published),
        "confirmed": len(confirmed),
        "received": len(received),
        "duplicates": duplicates,
        "redelivered": again_count,
        "unconfirmed_received": sum(1 for key in received if key not in confirmed),
    }
    return bad, figures


def main():
    """Checks a history file: prints the figures and the violations as one JSON line."""
    import sys

    bad, figures = check(read(sys.argv[1]))
    print(json.dumps({**figures, "violations": dict(bad.counts), "examples": bad.examples}))
    sys.exit(1 if bad.counts else 0)


if __name__ == "__main__":
    main()
