"""Corner cases in which programs rely on what RabbitMQ does. `--peer` runs them against RabbitMQ itself."""

import time

import pika

import scenario
import wire
from wire import Wire

REPLY_TO = "amq.rabbitmq.reply-to"


def body(run):
    connection = run.connect(0)
    passive_declares(run, connection)
    deletes_if_empty(run, connection)
    system_exchanges_stay(run, connection)
    if not run.options.peer:
        content_on_a_channel_that_is_not_open(run)
        goodbye_after_broken_arguments(run)
    heartbeats_each_half_interval(run)


def closes(run, what, connection, ask, code):
    """Checks that it closes the channel with that code, and answers the text."""
    try:
        ask(connection.channel())
    except pika.exceptions.ChannelClosedByBroker as closed:
        run.equal(what, closed.reply_code, code)
        return closed.reply_text
    run.check(what, False, "no error")


def passive_declares(run, connection):
    text = closes(
        run, "a passive declare of no queue", connection, lambda channel: channel.queue_declare("", passive=True), 404
    )
    run.check("a passive declare of no queue says so", "no queue ''" in text, text)

    def after_another(channel):
        channel.queue_declare(run.name_of("another"), exclusive=True)
        channel.queue_declare("", passive=True)

    closes(run, "a passive declare of no queue after another", connection, after_another, 404)
    closes(
        run,
        "a passive declare of the default exchange",
        connection,
        lambda channel: channel.exchange_declare("", passive=True),
        403,
    )
    # Spring AMQP asks so whether the server has direct reply-to, before it consumes.
    declared = connection.channel().queue_declare(REPLY_TO, passive=True).method
    run.equal("direct reply-to is there", (declared.message_count, declared.consumer_count), (0, 1))
    closes(
        run,
        "an address that nobody has",
        connection,
        lambda channel: channel.queue_declare(f"{REPLY_TO}.nobody", passive=True),
        404,
    )


def deletes_if_empty(run, connection):
    """Empty is a queue without ready messages."""
    queue = run.name_of("empty")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"x")
    closes(run, "if-empty with a message", connection, lambda other: other.queue_delete(queue, if_empty=True), 406)
    run.check("the message is there", channel.basic_get(queue)[0] is not None)
    deleted = channel.queue_delete(queue, if_empty=True).method.message_count
    run.equal("if-empty with a message that a client has", deleted, 0)


def system_exchanges_stay(run, connection):
    text = closes(
        run, "deleting amq.direct", connection, lambda channel: channel.exchange_delete("amq.direct"), 403
    )
    run.check("deleting amq.direct says why", "deletion of system exchange 'amq.direct'" in text, text)


def opened(run):
    connection = Wire(run.ports[0])
    connection.handshake()
    return connection


def content_on_a_channel_that_is_not_open(run):
    with opened(run) as connection:
        connection.send(wire.content_header(7, 1))
        run.equal("content on a channel that is not open", connection.read_close()[:2], ("connection", 505))


def goodbye_after_broken_arguments(run):
    """Arguments that end early break no frame: the client's close-ok is understood."""
    with opened(run) as connection:
        connection.open_channel(1)
        connection.send(wire.method(1, (50, 10), b"\x00\x00\x20abc"))
        run.equal("arguments that end early", connection.read_close()[:2], ("connection", 501))
        started = time.monotonic()
        run.check("the socket closes", connection.reads_end(10))
        took = time.monotonic() - started
        run.check("as soon as the client has answered", took < 2, f"{took:.1f} s")


def heartbeats_each_half_interval(run):
    with Wire(run.ports[0], timeout=10) as connection:
        connection.handshake(heartbeat=2)
        started = time.monotonic()
        beats = 0
        while beats < 4:
            kind = connection.read(8)[0]
            run.equal("an idle connection carries heartbeats", kind, wire.HEARTBEAT)
            connection.send(wire.frame(wire.HEARTBEAT, 0, b""))
            beats += 1
        took = time.monotonic() - started
        run.check("one each half interval", 3 < took < 6.5, f"four in {took:.1f} s")


def arguments(parser):
    parser.add_argument("--peer", action="store_true", help="the server is RabbitMQ: skip what it answers in another way")


if __name__ == "__main__":
    scenario.run("corners", body, arguments)
