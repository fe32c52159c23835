"""A client whose node is put into maintenance mode: it is told to go, works on another node, and may come back.

Number 16 of the operations acceptance list. Whoever runs this program drains the first node once the file `--up-file` exists,
and revives it, after which `--revived-file` exists, once `--moved-file` does.
"""

import os

import pika

import scenario

REASON = "Node was put into maintenance mode"


def body(run):
    queue = run.name_of("drained")
    connection = run.connect(0)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True, arguments=scenario.QUORUM)
    channel.basic_publish("", queue, b"before")
    tell(run.options.up_file)

    told = []

    def goes_on():
        try:
            connection.process_data_events(time_limit=0.2)
        except pika.exceptions.ConnectionClosed as closed:
            told.append(closed)
        return bool(told)

    run.check("the client is told to go", scenario.eventually(goes_on, 60))
    run.equal("the code", told[0].reply_code, 320)
    run.check("the reason", REASON in told[0].reply_text, told[0].reply_text)
    run.check("nobody can connect to the node", scenario.eventually(lambda: not connects(run, 0), 30))

    elsewhere = run.connect(1).channel()
    elsewhere.confirm_delivery()
    elsewhere.basic_publish("", queue, b"during")
    bodies = [elsewhere.basic_get(queue, auto_ack=True)[2] for _ in range(2)]
    run.equal("another node serves", bodies, [b"before", b"during"])
    tell(run.options.moved_file)

    run.check("the node is revived", scenario.eventually(lambda: os.path.exists(run.options.revived_file), 60))
    run.check("clients can connect again", scenario.eventually(lambda: connects(run, 0), 30))


def connects(run, node):
    try:
        pika.BlockingConnection(run.parameters(node)).close()
    except pika.exceptions.AMQPError:
        return False
    return True


def tell(file):
    with open(file, "w", encoding="ascii"):
        pass


def arguments(parser):
    parser.add_argument("--up-file", required=True, help="made once the client is at work on the first node")
    parser.add_argument("--moved-file", required=True, help="made once it has worked on the second node")
    parser.add_argument("--revived-file", required=True, help="appears once the first node is back")


if __name__ == "__main__":
    scenario.run("drained", body, arguments)
