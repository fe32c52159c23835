"""What a hostile or broken client sends: each gets the right AMQP error, and nobody else notices."""

import time

import pika

import scenario
import wire
from wire import Wire

BIG = b"x" * 65_536
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def body(run):
    neighbour = Neighbour(run)
    for case in CASES:
        case(run)
        neighbour.still_served(case.__name__.replace("_", " "))
    half_open_handshakes(run, neighbour)
    a_client_that_never_reads(run, neighbour)
    a_client_that_publishes_and_never_reads(run, neighbour)
    slow_readers(run, neighbour)
    neighbour.still_served("the end")


class Neighbour:
    """A client on the same node that does everything right, and must not notice anything."""

    def __init__(self, run):
        self._run = run
        self._channel = run.connect(0).channel()
        self._channel.confirm_delivery()
        self._queue = run.name_of("neighbour")
        self._channel.queue_declare(self._queue, durable=True, arguments=scenario.QUORUM)
        self._sent = 0

    def still_served(self, after, within=5):
        started = time.monotonic()
        self._sent += 1
        self._channel.basic_publish("", self._queue, str(self._sent), mandatory=True)
        got = scenario.get_within(self._channel, self._queue, within, auto_ack=True)
        self._run.check(f"the neighbour is served after {after}", got is not None and int(got[2]) == self._sent)
        took = time.monotonic() - started
        self._run.check(f"promptly, after {after}", took < within, f"{took:.2f} s")


def opened(run, channel=True):
    """A connection past its handshake, with channel 1 open."""
    connection = Wire(run.ports[0])
    connection.handshake()
    if channel:
        connection.open_channel(1)
    return connection


def refuses(run, what, data, code, scope="connection", cause=None, channel=True):
    """Sends the octets after a good start and checks the error that they earn."""
    with opened(run, channel) as connection:
        connection.send_while_reading(data)
        got = connection.read_close()
        run.equal(f"{what}: scope and code", got[:2], (scope, code))
        if cause is not None:
            run.equal(f"{what}: class and method in the close", got[3:], cause)
        run.check(f"{what}: the reply text says something", len(got[2]) > 0)
        if scope == "connection":
            run.check(f"{what}: the socket closes", connection.reads_end(10))
        else:
            connection.open_channel(1)
            run.check(f"{what}: the connection goes on", True)


def wrong_protocol_header(run):
    for header in (b"AMQP\x00\x00\x08\x00", b"GET / HT", b"AMQP\x09\x01\x00\x0a"):
        with Wire(run.ports[0]) as connection:
            connection.send(header)
            answer = connection.read(8)
            run.check(f"{header!r}: the server names a protocol of its own", answer in wire.SERVED, answer)
            run.check(f"{header!r}: and hangs up", connection.reads_end(5))


def wrong_end_octet(run):
    bad = wire.frame(wire.METHOD, 1, b"\x00\x14\x00\x0a\x00", end=b"\x00")
    refuses(run, "a wrong end octet", bad, 501)


def unknown_frame_type(run):
    refuses(run, "an unknown frame type", wire.frame(7, 1, b""), 501)


def oversized_frame(run):
    refuses(run, "a frame above frame_max", wire.frame(wire.METHOD, 1, b"\x00" * 131_073), 501)


def oversized_frame_header_alone(run):
    refuses(run, "a frame header that announces 4 GiB", b"\x01\x00\x01\xff\xff\xff\xff", 501)


def heartbeat_on_a_channel(run):
    refuses(run, "a heartbeat on channel 1", wire.frame(wire.HEARTBEAT, 1, b""), 505)


def content_on_channel_zero(run):
    refuses(run, "a content header on channel 0", wire.content_header(0, 1), 505)


def method_on_a_closed_channel(run):
    refuses(run, "a method on a channel that is not open", wire.queue_declare(9, "q"), 504)


def channel_opened_twice(run):
    refuses(run, "a second channel.open", wire.channel_open(1), 504)


def body_without_a_publish(run):
    refuses(run, "a body out of nowhere", wire.frame(wire.BODY, 1, b"x"), 505)


def method_where_a_header_is_due(run):
    data = wire.publish(1, "", "q") + wire.queue_declare(1, "q")
    refuses(run, "a method where a header is due", data, 505, cause=(60, 40))


def header_of_another_class(run):
    data = wire.publish(1, "", "q") + wire.content_header(1, 1, class_id=50)
    refuses(run, "a content header of another class", data, 505)


def body_longer_than_announced(run):
    if run.options.peer:
        return
    data = wire.publish(1, "", "q") + wire.content_header(1, 3) + wire.frame(wire.BODY, 1, b"four")
    refuses(run, "more body than announced", data, 501)


def enormous_body_announced(run):
    if run.options.peer:
        return
    data = wire.publish(1, "", "q") + wire.content_header(1, 600_000_000)
    refuses(run, "600 MB announced", data, 501)


def body_above_the_limit(run):
    if run.options.peer:
        return
    size = 16 * 1024 * 1024 + 1
    frames = [wire.publish(1, "", "q"), wire.content_header(1, size)]
    chunk = b"x" * 131_064
    while size > 0:
        frames.append(wire.frame(wire.BODY, 1, chunk[:size]))
        size -= len(chunk)
    refuses(run, "a message above 16 MiB", b"".join(frames), 406, scope="channel")


def unknown_method(run):
    if run.options.peer:
        return
    refuses(run, "method 60,99", wire.method(1, (60, 99)), 503)
    refuses(run, "class 99", wire.method(1, (99, 10)), 503)


def undecodable_table(run):
    if run.options.peer:
        return
    table = wire.long_string(wire.short_string("x") + b"\x7f\x00")
    refuses(run, "a table with an unknown field type", wire.queue_declare(1, "q", table), 502)
    cut = wire.long_string(wire.short_string("x") + b"S\x00\x00\xff\xff")
    refuses(run, "a table that ends within a value", wire.queue_declare(1, "q", cut), 502)


def deeply_nested_table(run):
    """A table 20,000 deep must exhaust no stack: it is refused or accepted, and the node lives."""
    if run.options.peer:
        return
    inner = b""
    for _ in range(20_000):
        inner = wire.short_string("a") + b"F" + wire.long_string(inner)
        if len(inner) > 100_000:
            break
    refuses(run, "a deeply nested table", wire.queue_declare(1, "q", wire.long_string(inner)), 502)


def truncated_arguments(run):
    if run.options.peer:
        return
    refuses(run, "queue.declare that ends early", wire.method(1, (50, 10), b"\x00\x00\x20abc"), 501)


def method_frame_of_two_octets(run):
    if run.options.peer:
        return
    with opened(run) as connection:
        connection.send(wire.frame(wire.METHOD, 1, b"\x00\x3c"))
        got = connection.read_close()
        run.check("a method frame without a method", got[:2] in (("connection", 501), ("connection", 503)), got)


def too_small_frame_max(run):
    for frame_max, opens in ((8192, True),) if run.options.peer else ((4095, False), (4096, False), (8192, True)):
        with Wire(run.ports[0]) as connection:
            connection.start()
            connection.log_in()
            connection.tune(frame_max=frame_max)
            if opens:
                connection.open()
                connection.expect(wire.CONNECTION_OPEN_OK)
                run.check(f"frame_max {frame_max} opens", True)
            else:
                run.equal(f"frame_max {frame_max} is refused", connection.read_close()[1], 530)


def too_many_channels(run):
    with opened(run, channel=False) as connection:
        connection.send(wire.channel_open(65_535) if not run.options.peer else wire.channel_open(2047))
        connection.expect(wire.CHANNEL_OPEN_OK)
        connection.send(b"".join(wire.channel_open(n) for n in range(1, 2047)))
        for _ in range(2046):
            connection.expect(wire.CHANNEL_OPEN_OK)
        connection.send(wire.channel_open(2047 if not run.options.peer else 2048))
        run.equal("channel 2048 of 2047", connection.read_close()[1], 530)


def wrong_password(run):
    with Wire(run.ports[0]) as connection:
        connection.start()
        connection.log_in(password="wrong")
        run.equal("a wrong password", connection.read_close()[:2], ("connection", 403))


def missing_vhost(run):
    with Wire(run.ports[0]) as connection:
        connection.start()
        connection.log_in()
        connection.tune()
        connection.open(vhost="/nowhere")
        run.equal("a vhost that does not exist", connection.read_close()[:2], ("connection", 530))


def method_before_the_handshake_ends(run):
    with Wire(run.ports[0]) as connection:
        connection.start()
        connection.send(wire.channel_open(1))
        try:
            got = connection.read_close()
            run.equal("channel.open before open-ok", got[1], 505)
        except wire.Closed:
            run.check("channel.open before open-ok: the socket closes", True)


def frame_above_the_limit_before_the_handshake_ends(run):
    if run.options.peer:
        return
    with Wire(run.ports[0]) as connection:
        connection.start()
        table = wire.long_string(wire.short_string("x") + b"S" + wire.long_string(b"y" * 9000))
        rest = wire.short_string("PLAIN") + wire.long_string(b"\x00guest\x00guest") + wire.short_string("en_US")
        connection.send(wire.method(0, (10, 11), table + rest))
        run.equal("9,000 octets before tune-ok", connection.read_close()[:2], ("connection", 501))
        run.check("9,000 octets before tune-ok: the socket closes", connection.reads_end(10))


def handshake_octet_by_octet(run):
    """Slow is not wrong."""
    with Wire(run.ports[0]) as connection:
        for octet in wire.PROTOCOL_HEADER:
            connection.send(bytes([octet]))
            time.sleep(0.05)
        connection.expect(wire.CONNECTION_START)
        connection.log_in()
        connection.tune()
        connection.open()
        connection.expect(wire.CONNECTION_OPEN_OK)
        run.check("a handshake octet by octet", True)


def message_cut_off_by_the_socket(run):
    """What was announced and never came whole is no message."""
    queue = run.name_of("cut-off")
    channel = run.connect(0).channel()
    channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM)
    with opened(run) as connection:
        connection.send(wire.publish(1, "", queue) + wire.content_header(1, 1000) + wire.frame(wire.BODY, 1, b"x" * 500))
        time.sleep(0.2)
    time.sleep(0.5)
    run.equal("messages that came in part", channel.queue_delete(queue).method.message_count, 0)


def client_that_falls_silent(run):
    """A client that agreed to heartbeats and is not heard for two of them is gone."""
    with Wire(run.ports[0]) as connection:
        connection.handshake(heartbeat=1)
        started = time.monotonic()
        run.check("a silent client is let go", connection.reads_end(10), "still connected after 10 s")
        took = time.monotonic() - started
        run.check("after two to three heartbeats", 1.5 < took < 6, f"{took:.1f} s")


def garbage_after_the_handshake(run):
    with opened(run) as connection:
        connection.send(bytes(range(256)) * 64)
        try:
            run.check("garbage", connection.read_close()[1] in (501, 505), "another code")
        except wire.Closed:
            run.check("garbage: the socket closes", True)


def delivery_tag_that_does_not_exist(run):
    ack = wire.method(1, (60, 80), b"\x00\x00\x00\x00\x00\x00\x00\x07\x00")
    refuses(run, "an unknown delivery tag", ack, 406, scope="channel")


def missing_exchange(run):
    data = wire.publish(1, run.name_of("none"), "q") + wire.content_header(1, 1) + wire.frame(wire.BODY, 1, b"x")
    refuses(run, "a publish to a missing exchange", data, 404, scope="channel")


def missing_queue(run):
    refuses(run, "consuming a missing queue", wire.consume(1, run.name_of("none"), True), 404, scope="channel")


CASES = [
    wrong_protocol_header,
    wrong_end_octet,
    unknown_frame_type,
    oversized_frame,
    oversized_frame_header_alone,
    heartbeat_on_a_channel,
    content_on_channel_zero,
    method_on_a_closed_channel,
    channel_opened_twice,
    body_without_a_publish,
    method_where_a_header_is_due,
    header_of_another_class,
    body_longer_than_announced,
    enormous_body_announced,
    body_above_the_limit,
    unknown_method,
    undecodable_table,
    deeply_nested_table,
    truncated_arguments,
    method_frame_of_two_octets,
    too_small_frame_max,
    too_many_channels,
    wrong_password,
    missing_vhost,
    method_before_the_handshake_ends,
    frame_above_the_limit_before_the_handshake_ends,
    handshake_octet_by_octet,
    message_cut_off_by_the_socket,
    client_that_falls_silent,
    garbage_after_the_handshake,
    delivery_tag_that_does_not_exist,
    missing_exchange,
    missing_queue,
]


def half_open_handshakes(run, neighbour):
    """Clients that connect and fall silent at each step are let go after the handshake timeout of 10 s."""

    def silent(connection):
        pass

    def header_only(connection):
        connection.start()

    def logged_in(connection):
        connection.start()
        connection.log_in()
        connection.expect(wire.CONNECTION_TUNE)

    def half_a_header(connection):
        connection.send(wire.PROTOCOL_HEADER[:3])

    started = time.monotonic()
    idle = []
    for stop_at in (silent, half_a_header, header_only, logged_in):
        for _ in range(25):
            connection = Wire(run.ports[0], timeout=30)
            stop_at(connection)
            idle.append((stop_at.__name__, connection))
    neighbour.still_served("a hundred half-open handshakes")
    for step, connection in idle:
        left = max(1, 16 - (time.monotonic() - started))
        run.check(f"half-open handshake ({step}) is closed", connection.reads_end(left), f"open after {time.monotonic() - started:.0f} s")
        connection.socket.close()
    took = time.monotonic() - started
    run.check("half-open handshakes had their ten seconds", took > 8, f"{took:.1f} s")


def a_client_that_never_reads(run, neighbour):
    """A consumer with no prefetch limit that reads nothing: what it does not take stays bounded in the server's memory.

    At most 2,000 messages are on their way to such a consumer. A part of the load goes through a consumer that reads
    first, so that caches and write buffers have their size before the memory is measured.
    """
    queue = run.name_of("never-read")
    channel = run.connect(0).channel()
    channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM)
    warm = run.options.unread // 4
    reader = run.connect(0).channel()
    reader.basic_qos(prefetch_count=100)
    read = []

    def take(_channel, method, _properties, _text):
        read.append(None)
        reader.basic_ack(method.delivery_tag)

    tag = reader.basic_consume(queue, take)
    for _ in range(warm):
        channel.basic_publish("", queue, BIG, PERSISTENT)
        reader.connection.process_data_events(time_limit=0)
    scenario.collect(reader.connection, read, warm, 60)
    run.equal("a client that reads gets everything", len(read), warm)
    reader.basic_cancel(tag)

    before = resident(run)
    with Wire(run.ports[0], receive_buffer=4096) as deaf:
        deaf.handshake()
        deaf.open_channel(1)
        deaf.send(wire.consume(1, queue, no_ack=True))
        for _ in range(run.options.unread):
            channel.basic_publish("", queue, BIG, PERSISTENT)
        channel.close()  # answered once all of them were taken
        channel = channel.connection.channel()
        neighbour.still_served("a client that reads nothing got its backlog")
        after = resident(run)
        unread = run.options.unread * len(BIG)
        run.facts["unread_bytes"] = unread
        if before and after:
            run.facts["resident_before"] = before
            run.facts["resident_growth"] = after - before
            bounded = after - before < unread * 0.6
            run.check("memory does not follow the unread backlog", bounded, f"grew by {after - before} for {unread} unread")
    gone = scenario.eventually(lambda: consumers(channel, queue) == 0, 15)
    run.check("the consumer is gone after its socket closed", gone)
    channel.queue_delete(queue)


def a_client_that_publishes_and_never_reads(run, neighbour):
    """Every publish comes back as unroutable, and nobody takes what comes back: then the server takes no more either."""
    message = wire.publish(1, "", run.name_of("nowhere"), mandatory=True) + wire.content(1, BIG)
    before = resident(run)
    with Wire(run.ports[0], receive_buffer=4096) as deaf:
        deaf.handshake()
        deaf.open_channel(1)
        deaf.socket.settimeout(2)
        taken = 0
        try:
            for _ in range(4000):
                deaf.socket.sendall(message)
                taken += 1
        except TimeoutError:
            pass
        run.facts["returns_unread"] = taken
        run.check("a client that takes no returns is not read for ever", taken < 4000, "262 MB were taken")
        neighbour.still_served("a client that takes no returns")
        after = resident(run)
        if before and after:
            bounded = after - before < 64 * 1024 * 1024
            run.check("memory for returns that nobody takes is bounded", bounded, f"grew by {after - before}")
    neighbour.still_served("the end of a client that took no returns")


def slow_readers(run, neighbour):
    """Ten consumers that read a little at a time: each gets everything, in order, and nobody waits for them."""
    count, size = 200, len(BIG)
    queues = [run.name_of(f"slow-{n}") for n in range(10)]
    channel = run.connect(0).channel()
    channel.confirm_delivery()
    readers = []
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM)
        reader = Wire(run.ports[0], receive_buffer=4096)
        reader.handshake()
        reader.open_channel(1)
        reader.send(wire.consume(1, queue, no_ack=True))
        readers.append(reader)
    for number in range(count):
        for queue in queues:
            channel.basic_publish("", queue, b"%08d" % number + BIG[8:], PERSISTENT)
    # a second of reading 4 KiB at a time, so that each is in the middle of a frame
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        for reader in readers:
            reader.trickle(4096)
        time.sleep(0.02)
    neighbour.still_served("ten slow readers fell behind")
    for reader in readers:
        numbers = []
        while len(numbers) < count:
            text = reader.read_content()
            run.check("a slow reader gets whole messages", len(text) == size, len(text))
            numbers.append(int(text[:8]))
        run.equal("a slow reader gets everything in order", numbers, list(range(count)))
        reader.socket.close()
    for queue in queues:
        channel.queue_delete(queue)


def consumers(channel, queue):
    return channel.queue_declare(queue, durable=True, passive=True).method.consumer_count


def resident(run):
    """Resident octets of the server process, where its pid was given."""
    if not run.options.pid:
        return None
    with open(f"/proc/{run.options.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None


def arguments(parser):
    parser.add_argument("--peer", action="store_true", help="the server is RabbitMQ: skip what it answers by dropping the socket")
    parser.add_argument("--pid", type=int, help="process of the first node, to watch its memory")
    parser.add_argument("--unread", type=int, default=8000, help="messages of 64 KiB that the deaf client does not read")


if __name__ == "__main__":
    scenario.run("bad_input", body, arguments)
