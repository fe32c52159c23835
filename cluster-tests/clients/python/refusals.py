"""What this version of Warren does not have is refused with an error that names it, never ignored."""

import pika

import scenario

CLASSIC = {}
NOT_YET_CLASSIC = {
    "x-expires": 60_000,
    "x-message-ttl": 60_000,
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-routing-key": "k",
    "x-max-length": 5,
    "x-max-length-bytes": 5,
    "x-overflow": "reject-publish",
    "x-single-active-consumer": True,
    "x-max-priority": 5,
}
QUORUM_ONLY = {
    "x-delivery-limit": 5,
    "x-dead-letter-strategy": "at-least-once",
    "x-delayed-retry-type": "all",
    "x-delayed-retry-min": 1,
    "x-delayed-retry-max": 1,
    "x-consumer-timeout": 60_000,
    "x-consumer-disconnected-timeout": 60_000,
}
REFUSED_QUORUM = {
    "x-max-priority": 5,
    "x-queue-mode": "lazy",
    "x-queue-master-locator": "client-local",
    "x-member-placement-tag": "a",
    "x-expires": 0,
    "x-message-ttl": -1,
    "x-dead-letter-exchange": 5,
    "x-dead-letter-routing-key": "without an exchange",
    "x-dead-letter-strategy": "twice",
    "x-max-length": -5,
    "x-max-length-bytes": "5",
    "x-overflow": "drop-tail",
    "x-single-active-consumer": "yes",
    "x-delayed-retry-type": "some",
    "x-delayed-retry-min": 0,
    "x-delayed-retry-max": -1,
    "x-consumer-timeout": "1s",
    "x-consumer-disconnected-timeout": -1,
}
STREAM_ONLY = {
    "x-max-age": "1h",
    "x-stream-max-segment-size-bytes": 1_000_000,
    "x-stream-filter-size-bytes": 16,
    "x-initial-cluster-size": 1,
}
CONSUMER = {
    "x-consumer-timeout": "60s",
    "x-stream-offset": "first",
    "x-stream-filter": "f",
    "x-stream-match-unfiltered": True,
    "x-priority": "high",
}


def body(run):
    connection = run.connect(0)
    queue_arguments(run, connection)
    consumer_arguments(run, connection)
    exchange_types(run, connection)
    expiration(run, connection)
    other_methods(run)


def refused(run, what, connection, ask, code, named):
    """Checks that it is refused with that code, in words that name it."""
    channel = connection.channel()
    try:
        ask(channel)
        channel.basic_qos()
    except (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker) as closed:
        run.equal(f"{what}: code", closed.reply_code, code)
        run.check(f"{what}: the text names it", named in closed.reply_text, closed.reply_text)
        return
    run.check(f"{what} is refused", False, "it was accepted")


def queue_arguments(run, connection):
    classic = NOT_YET_CLASSIC | QUORUM_ONLY | STREAM_ONLY
    quorum = REFUSED_QUORUM | STREAM_ONLY
    invalid = {"x-queue-type": "bogus", "x-queue-version": 1}
    for base, arguments in ((CLASSIC, classic | invalid | {"x-queue-mode": "busy"}), (scenario.QUORUM, quorum)):
        known = run.name_of(f"known-{base.get('x-queue-type', 'classic')}")
        connection.channel().queue_declare(known, durable=True, arguments=base)
        for name, value in arguments.items():
            for queue in (run.name_of("new"), known):
                what = f"{name} for a {'new' if queue != known else 'known'} queue with {base}"

                def declare(channel, queue=queue, arguments=base | {name: value}):
                    channel.queue_declare(queue, durable=True, arguments=arguments)

                refused(run, what, connection, declare, 406, name)
    for negative in ("x-max-in-memory-length", "x-max-in-memory-bytes"):
        def limit(channel, arguments=scenario.QUORUM | {negative: -1}):
            channel.queue_declare(run.name_of("limit"), durable=True, arguments=arguments)

        refused(run, f"a negative {negative}", connection, limit, 406, negative)


def consumer_arguments(run, connection):
    for base in (CLASSIC, scenario.QUORUM):
        queue = run.name_of("consumed")
        connection.channel().queue_declare(queue, durable=True, arguments=base)
        for name, value in CONSUMER.items():
            def consume(channel, arguments={name: value}):
                channel.basic_consume(queue, lambda *_: None, arguments=arguments)

            refused(run, f"consumer argument {name} with {base}", connection, consume, 406, name)
        connection.channel().queue_delete(queue)


def exchange_types(run, connection):
    for kind in ("x-consistent-hash", "x-delayed-message", "x-local-random", "x-random", "bogus"):
        refused(
            run,
            f"exchange type {kind}",
            connection,
            lambda channel, kind=kind: channel.exchange_declare(run.name_of("exchange"), kind),
            406,
            kind,
        )


def expiration(run, connection):
    queue = run.name_of("expiring")
    connection.channel().queue_declare(queue, durable=True)
    for text in ("60000", "0", "+5", "10ms", "-1", ""):
        def publish(channel, properties=pika.BasicProperties(expiration=text)):
            channel.basic_publish("", queue, b"x", properties)

        refused(run, f"expiration {text!r}", connection, publish, 406, "expiration")
    left = connection.channel().queue_delete(queue).method.message_count
    run.equal("nothing that was refused is in the queue", left, 0)


def other_methods(run):
    """These end the connection."""
    asks = {
        "a prefetch size": (lambda channel: channel.basic_qos(prefetch_size=5), "prefetch_size"),
        "transactions": (lambda channel: channel.tx_select(), "transactions"),
        "a stream": (
            lambda channel: channel.queue_declare(run.name_of("s"), durable=True, arguments={"x-queue-type": "stream"}),
            "streams",
        ),
    }
    for what, (ask, named) in asks.items():
        refused(run, what, run.connect(0), ask, 540, named)


if __name__ == "__main__":
    scenario.run("refusals", body)
