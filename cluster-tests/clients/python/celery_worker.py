"""A Celery worker on a quorum queue: tasks, retries with a delay, priorities, and a worker that is killed at its work."""

import os
import signal
import subprocess
import sys
import tempfile

import scenario


class Worker:
    """A worker process with one child that runs tasks."""

    def __init__(self, environment):
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--loglevel=WARNING", "--concurrency=1"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        # a group of its own, so that its child ends with it
        self.process = subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def body(run):
    notes = tempfile.NamedTemporaryFile(prefix="celery-notes-", delete=False).name
    os.environ["CELERY_BROKER"] = ";".join(f"amqp://guest:guest@{scenario.HOST}:{port}//" for port in run.ports)
    os.environ["CELERY_QUEUE"] = run.name_of("celery")
    os.environ["CELERY_NOTES"] = notes
    import celery_tasks as tasks

    def lines():
        with open(notes) as text:
            return text.read().split("\n")[:-1]

    def noted(line, seconds=60):
        run.check(line, scenario.eventually(lambda: line in lines(), seconds), lines())

    worker = Worker(os.environ)
    try:
        for n in range(20):
            tasks.add.delay(f"task-{n}")
        for n in range(20):
            noted(f"done task-{n}")
        run.equal("each ran once", sorted(set(lines())), sorted(lines()))

        tasks.flaky.delay("flaky")
        noted("done flaky")
        attempts = [line for line in lines() if line.startswith("attempt flaky")]
        run.equal("two retries", attempts, [f"attempt flaky {n}" for n in range(3)])

        tasks.slow.apply_async(("killed", 600))
        noted("started killed")
        tasks.add.delay("behind")
        worker.kill()
        worker = Worker(os.environ)
        again = scenario.eventually(lambda: lines().count("started killed") == 2, 60)
        run.check("the killed worker's task is run again by the next one", again, lines())
        worker.kill()
    finally:
        if worker.process.poll() is None:
            worker.kill()

    # with nobody at work, what waits is taken by its priority
    channel, queue = run.connect(0).channel(), os.environ["CELERY_QUEUE"]
    back = scenario.eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count == 2, 30)
    run.check("what the killed worker held is ready again", back)
    channel.queue_purge(queue)
    for priority in (1, 9, 5):
        tasks.add.apply_async((f"priority-{priority}",), priority=priority)
    worker = Worker(os.environ)
    try:
        noted("done priority-1")
        done = [line for line in lines() if line.startswith("done priority")]
        run.equal("the highest priority first", done, [f"done priority-{n}" for n in (9, 5, 1)])
    finally:
        worker.stop()
    os.unlink(notes)


if __name__ == "__main__":
    scenario.run("celery_worker", body)
