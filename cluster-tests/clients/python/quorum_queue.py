"""What the programs about quorum queues share: queues with arguments, publishing, taking, headers of deaths."""

import pika

import scenario
from scenario import QUORUM


class Queues:
    """Declares queues of one run, publishes to them and takes from them, on one channel with confirms and one without."""

    def __init__(self, run, node=0):
        self.run = run
        self.connection = run.connect(node)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def new(self, stem, arguments=None, channel=None):
        """A new quorum queue with these arguments besides its type."""
        return self.new_named(self.run.name_of(stem), arguments, channel)

    def new_named(self, queue, arguments=None, channel=None):
        """The same under a name that was chosen before."""
        (channel or self.channel).queue_declare(queue, durable=True, arguments={**QUORUM, **(arguments or {})})
        return queue

    def exchange(self, stem, kind="fanout"):
        name = self.run.name_of(stem)
        self.channel.exchange_declare(name, kind, durable=True)
        return name

    def publish(self, queue, text, exchange="", **properties):
        """Whether the publish was confirmed rather than refused."""
        properties = pika.BasicProperties(delivery_mode=2, **properties)
        try:
            self.channel.basic_publish(exchange, queue, str(text).encode(), properties, mandatory=False)
            return True
        except pika.exceptions.NackError:
            return False

    def take(self, queue, seconds=10, auto_ack=True):
        """(method, properties, text) of the next message, or None."""
        got = scenario.get_within(self.channel, queue, seconds, auto_ack=auto_ack)
        return None if got is None else (got[0], got[1], got[2].decode())

    def drain(self, queue):
        """The texts of all that is ready."""
        texts = []
        while (got := self.take(queue, seconds=0)) is not None:
            texts.append(got[2])
        return texts

    def ready(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def consumers(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.consumer_count

    def becomes(self, what, queue, count, seconds=10):
        """Checks that the queue has so many ready messages soon."""
        came = scenario.eventually(lambda: self.ready(queue) == count, seconds)
        self.run.check(what, came, "" if came else f"{self.ready(queue)} are ready, expected {count}")

    def exists(self, queue):
        channel = self.connection.channel()
        try:
            channel.queue_declare(queue, passive=True)
            channel.close()
            return True
        except pika.exceptions.ChannelClosedByBroker:
            return False


def deaths(properties):
    """The records of `x-death`, the newest first."""
    return (properties.headers or {}).get("x-death", [])


def refused(run, what, code, action):
    """Checks that an action closes its channel with this code; answers the text."""
    try:
        action()
    except pika.exceptions.ChannelClosedByBroker as closed:
        run.equal(what, closed.reply_code, code)
        return closed.reply_text
    run.check(what, False, "it was accepted")
