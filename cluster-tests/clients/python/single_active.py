"""Single active consumers and consumers' priorities: numbers 18, 19 and 20 of the quorum queue acceptance list."""

import scenario
from quorum_queue import Queues, refused

SINGLE = {"x-single-active-consumer": True}


class Consumer:
    """A consumer on a connection of its own."""

    def __init__(self, run, queue, node, prefetch=10, priority=0):
        self.connection = run.connect(node)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got = []
        arguments = {"x-priority": priority} if priority else None
        self.tag = self.channel.basic_consume(queue, self._take, arguments=arguments)

    def _take(self, _channel, method, _properties, text):
        self.got.append((method.delivery_tag, text.decode()))

    def texts(self, count, seconds=10):
        scenario.collect(self.connection, self.got, count, seconds)
        return [text for _, text in self.got]

    def stays_at(self, count):
        """Whether nothing more comes in a short while."""
        scenario.collect(self.connection, self.got, count + 1, 0.5)
        return len(self.got) == count

    def ack(self, at):
        self.channel.basic_ack(self.got[at][0])
        self.connection.process_data_events(time_limit=0)


def body(run):
    q = Queues(run)
    only_one_is_served_until_it_is_cancelled(run, q)
    a_higher_priority_takes_over_when_the_active_one_is_done(run, q)
    a_message_that_is_given_back_goes_to_the_one_that_takes_over(run, q)
    a_lost_connection_hands_over(run, q)
    nothing_is_taken_past_the_active_consumer(run)
    competing_consumers_are_served_by_priority(run, q)


def only_one_is_served_until_it_is_cancelled(run, q):
    queue = q.new("single", SINGLE)
    a, b = Consumer(run, queue, 0), Consumer(run, queue, 1)
    for n in range(3):
        q.publish(queue, n)
    run.equal("the first gets all", a.texts(3), ["0", "1", "2"])
    run.check("the second gets none", b.stays_at(0))
    a.ack(0), a.ack(1)
    a.channel.basic_cancel(a.tag)
    q.publish(queue, "next")
    run.equal("the second is active at once", b.texts(1), ["next"])
    a.ack(2)
    q.becomes("nothing is given back", queue, 0)
    run.check("nothing else came", b.stays_at(1))


def a_higher_priority_takes_over_when_the_active_one_is_done(run, q):
    queue = q.new("take-over", SINGLE)
    a = Consumer(run, queue, 0, priority=1)
    q.publish(queue, "held")
    run.equal("the first holds one", a.texts(1), ["held"])
    b = Consumer(run, queue, 1, priority=3)
    q.publish(queue, "later")
    run.check("the first gets nothing more", a.stays_at(1))
    run.check("nor does the other yet", b.stays_at(0))
    a.ack(0)
    run.equal("then it takes over", b.texts(1), ["later"])


def a_message_that_is_given_back_goes_to_the_one_that_takes_over(run, q):
    queue = q.new("given-back", SINGLE)
    a = Consumer(run, queue, 0, priority=1)
    q.publish(queue, "held")
    a.texts(1)
    b = Consumer(run, queue, 2, priority=3)
    a.channel.basic_nack(a.got[0][0], requeue=True)
    a.connection.process_data_events(time_limit=0)
    run.equal("the other gets it", b.texts(1), ["held"])


def a_lost_connection_hands_over(run, q):
    queue = q.new("lost", SINGLE)
    a, b = Consumer(run, queue, 0), Consumer(run, queue, 1)
    q.publish(queue, "held")
    a.texts(1)
    a.connection.close()
    run.equal("the next one gets what was held", b.texts(1), ["held"])


def nothing_is_taken_past_the_active_consumer(run):
    def get():
        q = Queues(run)
        queue = q.new("get", SINGLE)
        q.channel.basic_get(queue)

    refused(run, "basic.get", 405, get)


def competing_consumers_are_served_by_priority(run, q):
    queue = q.new("competing")
    high, low = Consumer(run, queue, 0, 5, priority=10), Consumer(run, queue, 1, 5)
    for n in range(20):
        q.publish(queue, n)
    run.equal("the first five to the high one", high.texts(5), [str(n) for n in range(5)])
    run.equal("the next five to the low one", low.texts(5), [str(n) for n in range(5, 10)])
    run.check("no more than the prefetch", high.stays_at(5) and low.stays_at(5))
    high.ack(0)
    run.equal("the next one to who has room", high.texts(6)[5:], ["10"])


if __name__ == "__main__":
    scenario.run("single_active", body)
