"""The client programs that newcomers write first: hello, work queues, publish/subscribe, routing, topics, RPC, confirms.

Each lesson is the whole conversation of its publisher and its consumers, over connections to different nodes.
"""

import threading
import time
import uuid

import pika

import scenario
from scenario import QUORUM


def body(run):
    hello(run)
    work_queue(run, "classic", None)
    work_queue(run, "quorum", QUORUM)
    publish_subscribe(run)
    routing(run)
    topics(run)
    rpc(run)
    publisher_confirms(run)
    direct_reply_to(run)


def hello(run):
    """One queue, one message, one consumer that acknowledges automatically."""
    queue = run.name_of("hello")
    sender = run.connect(0).channel()
    sender.queue_declare(queue=queue)
    sender.basic_publish(exchange="", routing_key=queue, body="Hello World!")
    receiver = run.connect(0).channel()
    receiver.queue_declare(queue=queue)
    _, got = scenario.consume_within(receiver, queue, 1, 10, auto_ack=True)
    run.equal("hello", [text for _, _, text in got], [b"Hello World!"])
    sender.queue_delete(queue)


class Worker(threading.Thread):
    """A worker with one task at a time, on a connection of its own."""

    def __init__(self, run, node, queue, pause):
        super().__init__(daemon=True)
        self.done = []
        self.error = None
        self.finished = threading.Event()
        self._connection = pika.BlockingConnection(run.parameters(node))
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=1)
        self._pause = pause
        self._channel.basic_consume(queue=queue, on_message_callback=self._task)

    def _task(self, channel, method, _properties, text):
        time.sleep(self._pause * text.count(b"."))
        self.done.append(text)
        channel.basic_ack(delivery_tag=method.delivery_tag)

    def run(self):
        try:
            self._channel.start_consuming()
        except Exception as error:  # reported by the check that follows
            self.error = error

    def stop(self):
        self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self.join(10)
        self._connection.close()


def work_queue(run, kind, arguments):
    """A durable queue of persistent tasks, shared fairly by two workers with a prefetch of one."""
    queue = run.name_of(f"task-queue-{kind}")
    channel = run.connect(0).channel()
    channel.queue_declare(queue=queue, durable=True, arguments=arguments)
    workers = [Worker(run, node, queue, 0.01) for node in (0, 1)]
    for worker in workers:
        worker.start()
    tasks = [f"task {n}{'.' * (n % 3 + 1)}".encode() for n in range(30)]
    for task in tasks:
        channel.basic_publish(
            exchange="",
            routing_key=queue,
            body=task,
            properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
        )
    done = scenario.eventually(lambda: sum(len(w.done) for w in workers) >= len(tasks), 20)
    for worker in workers:
        worker.stop()
        run.check(f"work queue ({kind}): the worker ran to its end", worker.error is None, repr(worker.error))
    run.check(f"work queue ({kind}): all tasks done", done, [w.done for w in workers])
    run.equal(f"work queue ({kind}): each once", sorted(sum((w.done for w in workers), [])), sorted(tasks))
    run.check(f"work queue ({kind}): both worked", all(len(w.done) >= 5 for w in workers), [len(w.done) for w in workers])
    channel.queue_delete(queue)


def seen_by_publisher(run):
    """Waits until the publisher's node routes by what other nodes have declared.

    It answers a declaration of its own once it has applied everything before.
    """
    channel = run.connect(0).channel()
    exchange = run.name_of(f"seen-{time.monotonic_ns()}")
    channel.exchange_declare(exchange, "fanout")
    channel.exchange_delete(exchange)
    channel.connection.close()


def subscriber(run, node, exchange, keys):
    """A server-named exclusive queue bound with those keys, and the list of what it received."""
    channel = run.connect(node).channel()
    queue = channel.queue_declare(queue="", exclusive=True).method.queue
    run.check("a server-named queue has a generated name", queue.startswith("amq.gen-"), queue)
    for key in keys:
        channel.queue_bind(exchange=exchange, queue=queue, routing_key=key)
    got = []
    channel.basic_consume(queue, lambda _c, m, _p, text: got.append((m.routing_key, text)), auto_ack=True)
    seen_by_publisher(run)
    return channel, got


def publish_subscribe(run):
    """A fanout exchange gives every subscriber each message."""
    exchange = run.name_of("logs")
    channel = run.connect(0).channel()
    channel.exchange_declare(exchange=exchange, exchange_type="fanout")
    subscribers = [subscriber(run, node, exchange, [""]) for node in range(3)]
    lines = [f"line {n}".encode() for n in range(20)]
    for line in lines:
        channel.basic_publish(exchange=exchange, routing_key="", body=line)
    for node, (consumer, got) in enumerate(subscribers):
        scenario.collect(consumer.connection, got, len(lines), 10)
        run.equal(f"publish/subscribe: subscriber {node}", [text for _, text in got], lines)
    channel.exchange_delete(exchange)


def routing(run):
    """A direct exchange gives each subscriber the severities that it asked for."""
    exchange = run.name_of("direct-logs")
    channel = run.connect(0).channel()
    channel.exchange_declare(exchange=exchange, exchange_type="direct")
    errors, got_errors = subscriber(run, 1, exchange, ["error"])
    others, got_all = subscriber(run, 2, exchange, ["info", "warning", "error"])
    sent = [(("info", "warning", "error", "debug")[n % 4], str(n).encode()) for n in range(16)]
    for severity, text in sent:
        channel.basic_publish(exchange=exchange, routing_key=severity, body=text)
    scenario.collect(others.connection, got_all, 12, 10)
    scenario.collect(errors.connection, got_errors, 4, 10)
    run.equal("routing: one severity", got_errors, [m for m in sent if m[0] == "error"])
    run.equal("routing: three severities", got_all, [m for m in sent if m[0] != "debug"])
    channel.exchange_delete(exchange)


def topics(run):
    """A topic exchange matches words: `*` is one, `#` any number."""
    exchange = run.name_of("topic-logs")
    channel = run.connect(0).channel()
    channel.exchange_declare(exchange=exchange, exchange_type="topic")
    keys = ["kern.critical", "kern", "kern.info.disk", "cron.critical", "critical", "a.b.critical"]
    expected = {
        "#": keys,
        "kern.*": ["kern.critical"],
        "*.critical": ["kern.critical", "cron.critical"],
        "kern.#": ["kern.critical", "kern", "kern.info.disk"],
        "#.critical": ["kern.critical", "cron.critical", "critical", "a.b.critical"],
        "*.*.*": ["kern.info.disk", "a.b.critical"],
    }
    subscribers = {pattern: subscriber(run, n, exchange, [pattern]) for n, pattern in enumerate(expected)}
    overlapping, got_once = subscriber(run, 0, exchange, ["kern.*", "*.critical"])
    for key in keys:
        channel.basic_publish(exchange=exchange, routing_key=key, body=key)
    for pattern, (consumer, got) in subscribers.items():
        scenario.collect(consumer.connection, got, len(expected[pattern]), 10)
        run.equal(f"topics: {pattern}", [key for key, _ in got], expected[pattern])
    scenario.collect(overlapping.connection, got_once, 3, 0.5)
    run.equal("topics: two matching bindings give one copy", [k for k, _ in got_once], ["kern.critical", "cron.critical"])
    channel.exchange_delete(exchange)


class Server(threading.Thread):
    """Answers each request with the Fibonacci number asked for, on the queue that the request names."""

    def __init__(self, run, node, queue):
        super().__init__(daemon=True)
        self.error = None
        self._connection = pika.BlockingConnection(run.parameters(node))
        self._channel = self._connection.channel()
        self._channel.queue_declare(queue=queue)
        self._channel.basic_qos(prefetch_count=1)
        self._channel.basic_consume(queue=queue, on_message_callback=self._answer)

    @staticmethod
    def _answer(channel, method, request, text):
        channel.basic_publish(
            exchange="",
            routing_key=request.reply_to,
            properties=pika.BasicProperties(correlation_id=request.correlation_id),
            body=str(fibonacci(int(text))),
        )
        channel.basic_ack(delivery_tag=method.delivery_tag)

    def run(self):
        try:
            self._channel.start_consuming()
        except Exception as error:  # reported by the check that follows
            self.error = error

    def stop(self):
        self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self.join(10)
        self._connection.close()


def fibonacci(n):
    before, number = 0, 1
    for _ in range(n):
        before, number = number, before + number
    return before


def call(run, channel, reply_queue, request_queue, got, argument):
    """One request; its answer is found by the correlation id."""
    correlation = str(uuid.uuid4())
    channel.basic_publish(
        exchange="",
        routing_key=request_queue,
        properties=pika.BasicProperties(reply_to=reply_queue, correlation_id=correlation),
        body=str(argument),
    )
    deadline = time.monotonic() + 10
    while correlation not in got and time.monotonic() < deadline:
        channel.connection.process_data_events(time_limit=0.05)
    run.equal(f"the answer to {argument} through {reply_queue.split('-')[0]}", got.get(correlation), fibonacci(argument))


def rpc(run):
    """Requests to a shared queue, answers to the caller's exclusive queue."""
    queue = run.name_of("rpc-queue")
    server = Server(run, 0, queue)
    server.start()
    channel = run.connect(1).channel()
    replies = channel.queue_declare(queue="", exclusive=True).method.queue
    got = {}
    channel.basic_consume(
        queue=replies,
        on_message_callback=lambda _c, _m, properties, text: got.update({properties.correlation_id: int(text)}),
        auto_ack=True,
    )
    for argument in (0, 1, 10, 30, 90):
        call(run, channel, replies, queue, got, argument)
    server.stop()
    run.check("rpc: the server ran to its end", server.error is None, repr(server.error))
    channel.queue_delete(queue)


def direct_reply_to(run):
    """The same without a reply queue: answers come straight to the channel that asked."""
    queue = run.name_of("rpc-direct")
    server = Server(run, 0, queue)
    server.start()
    channel = run.connect(1).channel()
    got = {}
    channel.basic_consume(
        queue="amq.rabbitmq.reply-to",
        on_message_callback=lambda _c, _m, properties, text: got.update({properties.correlation_id: int(text)}),
        auto_ack=True,
    )
    for argument in (1, 10, 50):
        call(run, channel, "amq.rabbitmq.reply-to", queue, got, argument)
    server.stop()
    run.check("direct reply-to: the server ran to its end", server.error is None, repr(server.error))
    refused = run.connect(2).channel()
    try:
        refused.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=False)
        run.check("direct reply-to without no-ack is refused", False, "it was accepted")
    except pika.exceptions.ChannelClosedByBroker as closed:
        run.equal("direct reply-to without no-ack is refused", closed.reply_code, 406)
    channel.queue_delete(queue)


def publisher_confirms(run):
    """Each publish waits for its confirm; what no queue takes comes back first."""
    queue = run.name_of("confirmed")
    channel = run.connect(0).channel()
    channel.queue_declare(queue=queue, durable=True, arguments=QUORUM)
    channel.confirm_delivery()
    for n in range(100):
        channel.basic_publish("", queue, str(n), pika.BasicProperties(delivery_mode=2), mandatory=True)
    run.equal("confirms: everything is in the queue", channel.queue_purge(queue).method.message_count, 100)
    try:
        channel.basic_publish("", run.name_of("nowhere"), b"lost", mandatory=True)
        run.check("confirms: an unroutable mandatory message comes back", False, "it did not")
    except pika.exceptions.UnroutableError as returned:
        run.equal("confirms: an unroutable mandatory message comes back", returned.messages[0].method.reply_code, 312)
    channel.basic_publish("", run.name_of("nowhere"), b"dropped")
    run.check("confirms: an unroutable message without mandatory is confirmed", True)
    channel.queue_delete(queue)


if __name__ == "__main__":
    scenario.run("tutorials", body)
