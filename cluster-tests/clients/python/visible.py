"""What a client has bound routes at once, for itself and for another client on another node.

Numbers 16 and 17 of the metadata acceptance list.
"""

import pika

import scenario


def body(run):
    queue = run.name_of("visible")
    near, far = run.connect(0).channel(), run.connect(2).channel()
    for channel in (near, far):
        channel.confirm_delivery()
    near.queue_declare(queue, durable=True)
    returned = {"near": 0, "far": 0}
    for number in range(run.options.rounds):
        key = f"{queue}-{number}"
        near.queue_bind(queue, "amq.direct", key)
        for name, channel in (("far", far), ("near", near)):
            try:
                channel.basic_publish("amq.direct", key, b"x", mandatory=True)
            except pika.exceptions.UnroutableError:
                returned[name] += 1
        near.queue_unbind(queue, "amq.direct", key)
    run.facts.update(returned)
    run.equal("messages of the client that bound, returned", returned["near"], 0)
    run.equal("messages of a client on another node, returned", returned["far"], 0)


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=1000)


if __name__ == "__main__":
    scenario.run("visible", body, arguments)
