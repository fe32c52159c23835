"""The history checker must accept good runs and name what is wrong with each bad one."""

import unittest

from history import check

DRAINED = {"e": "drained", "t": 9}


def publish(n, p="p0", s=0):
    return {"e": "publish", "t": 0, "p": p, "s": s, "n": n}


def confirm(n, p="p0", s=0):
    return {"e": "confirm", "t": 1, "p": p, "s": s, "n": n}


def receive(n, p="p0", ps=0, c="c0", s=0, again=False):
    return {"e": "receive", "t": 2, "c": c, "s": s, "p": p, "ps": ps, "n": n, "again": again}


def sent(*numbers):
    return [event for n in numbers for event in (publish(n), confirm(n))]


class GoodHistories(unittest.TestCase):
    def accepted(self, events):
        bad, figures = check([*events, DRAINED])
        self.assertEqual(dict(bad.counts), {})
        return figures

    def test_everything_confirmed_is_received_in_order(self):
        figures = self.accepted([*sent(0, 1, 2), receive(0), receive(1), receive(2)])
        self.assertEqual((figures["confirmed"], figures["received"], figures["duplicates"]), (3, 3, 0))

    def test_an_unconfirmed_message_may_be_lost_or_arrive(self):
        self.accepted([*sent(0), publish(1), publish(2), receive(0), receive(2)])

    def test_a_duplicate_is_fine_when_it_says_so(self):
        figures = self.accepted([*sent(0, 1), receive(0), receive(1), receive(0, again=True)])
        self.assertEqual(figures["duplicates"], 1)

    def test_redelivered_messages_may_come_out_of_order(self):
        self.accepted([*sent(0, 1, 2), receive(2), receive(1, again=True), receive(0, again=True)])

    def test_two_consumers_share_the_order(self):
        self.accepted([*sent(0, 1, 2), receive(1, c="c1"), receive(0), receive(2)])

    def test_order_starts_anew_with_a_publishers_session(self):
        later = [publish(1, s=1), confirm(1, s=1), receive(1, ps=1), receive(0)]
        self.accepted([*sent(0), *later])


class BadHistories(unittest.TestCase):
    def refused(self, kind, events, drained=True):
        bad, _ = check([*events, *([DRAINED] if drained else [])])
        self.assertIn(kind, bad.counts)

    def test_a_lost_confirmed_message(self):
        self.refused("confirmed and lost", [*sent(0, 1), receive(0)])

    def test_a_second_confirm(self):
        self.refused("confirmed twice", [*sent(0), confirm(0), receive(0)])

    def test_a_confirm_for_no_outstanding_tag(self):
        self.refused("confirmed twice", [*sent(0), {"e": "stray", "t": 1, "p": "p0", "s": 0, "tag": 1}, receive(0)])

    def test_a_refusal(self):
        self.refused("refused with basic.nack", [*sent(0), publish(1), {"e": "refuse", "t": 1, "p": "p0", "s": 0, "n": 1}, receive(0)])

    def test_a_duplicate_that_hides(self):
        self.refused("delivered twice without the redelivered flag", [*sent(0), receive(0), receive(0, c="c1")])

    def test_first_deliveries_that_overtake(self):
        self.refused("first deliveries out of the publisher's order", [*sent(0, 1), receive(1), receive(0)])

    def test_a_message_from_nowhere(self):
        self.refused("received but never published", [*sent(0), receive(0), receive(7)])

    def test_a_message_of_another_session(self):
        self.refused("received but never published", [*sent(0), receive(0, ps=3)])

    def test_a_run_that_was_not_drained(self):
        self.refused("the history does not say that the queue was drained", [*sent(0), receive(0)], drained=False)

    def test_a_run_without_confirms(self):
        self.refused("nothing was confirmed: this history proves nothing", [publish(0), receive(0)])


if __name__ == "__main__":
    unittest.main()
