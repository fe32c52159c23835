"""A Celery application as its users write it: tasks on a quorum queue, with late acknowledgements, retries and priorities.

What runs is noted in the file that $CELERY_NOTES names, a line each, so that the program that started the worker can see it.
"""

import os
import time

from celery import Celery
from kombu import Exchange, Queue

app = Celery("tasks", broker=os.environ["CELERY_BROKER"])
queue = os.environ["CELERY_QUEUE"]
app.conf.update(
    task_default_queue=queue,
    # a topic exchange: only through such a one can retries wait in the broker (Celery's native delayed delivery)
    task_queues=[
        Queue(queue, Exchange(queue, "topic"), routing_key=queue, queue_arguments={"x-queue-type": "quorum"}),
    ],
    task_default_exchange=queue,
    task_default_exchange_type="topic",
    task_default_routing_key=queue,
    task_default_queue_type="quorum",
    worker_detect_quorum_queues=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    # the worker's own control queue is a classic one that expires
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
)


def note(*words):
    line = " ".join(str(word) for word in words) + "\n"
    with open(os.environ["CELERY_NOTES"], "a", buffering=1) as notes:
        notes.write(line)


@app.task
def add(name):
    note("done", name)


@app.task(bind=True, max_retries=5)
def flaky(self, name):
    note("attempt", name, self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    note("done", name)


@app.task
def slow(name, seconds):
    note("started", name)
    time.sleep(seconds)
    note("done", name)
