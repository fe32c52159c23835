"""Connections, channels, queues and topics under limits and permissions, as pika sees them refused.

What to do:
  connections   opens connections round the nodes until one is refused, `--allowed` being allowed
  channels      the same with channels, on a connection to each node
  queues        declares queues until one is refused
  topics        publishes to topics, of which `USER.` is allowed, and binds them, of which `allowed` is
Prints what happened, for whoever knows what should have.
"""

import argparse
import json
import re

import pika


def connect(port, vhost, user, password):
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", int(port), vhost, credentials, heartbeat=0)
    )


def said(error):
    """Reply code and text of an error that the server sent. Before a connection is open, pika keeps them as a text."""
    # Quotes within quotes come escaped.
    text = repr(error).replace("\\", "")
    code = re.search(r"\((\d{3})[,)]", text)
    return [int(code.group(1)) if code else 0, text]


def connections(ports, allowed, *login):
    kept = []
    for count in range(allowed + 1):
        try:
            kept.append(connect(ports[count % len(ports)], *login))
        except pika.exceptions.AMQPError as error:
            opened = len(kept)
            # One goes, another one may come.
            again = None
            if kept:
                kept.pop().close()
                again = connect(ports[0], *login).is_open
            return {"opened": opened, "said": said(error), "again": again}
    return {"opened": len(kept), "said": None}


def channels(ports, allowed, *login):
    kept = [connect(port, *login) for port in ports]
    opened = 0
    for count in range(allowed + 1):
        try:
            kept[count % len(kept)].channel()
            opened += 1
        except pika.exceptions.AMQPError as error:
            return {"opened": opened, "said": said(error)}
    return {"opened": opened, "said": None}


def queues(ports, allowed, *login):
    connection = connect(ports[0], *login)
    for count in range(allowed + 1):
        channel = connection.channel()
        try:
            channel.queue_declare(f"limited-{count}", durable=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            again = connection.channel().queue_declare("limited-0", durable=True).method.queue
            return {"declared": count, "said": said(error), "again": again}
    return {"declared": allowed + 1, "said": None}


def publish(connection, exchange, key, headers=None):
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        channel.basic_publish(exchange, key, b"x", pika.BasicProperties(headers=headers))
        return "confirmed"
    except pika.exceptions.ChannelClosedByBroker as error:
        return said(error)


def bind(connection, exchange, key):
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    try:
        channel.queue_bind(queue, exchange, key)
        return "bound"
    except pika.exceptions.ChannelClosedByBroker as error:
        return said(error)


def topics(ports, vhost, user, password):
    connection = connect(ports[0], vhost, user, password)
    own = f"{user}.x"
    # The same again and again: what a channel remembers of a publish must not let another topic pass.
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(100):
        channel.basic_publish("amq.topic", own, b"x")
    remembered = publish_on(channel, "amq.topic", "other.x")
    return {
        "own": publish(connection, "amq.topic", own),
        "other": publish(connection, "amq.topic", user.replace(".", "X") + ".x"),
        "cc": publish(connection, "amq.topic", own, {"CC": ["other.x"]}),
        "bcc": publish(connection, "amq.topic", own, {"BCC": ["other.x"]}),
        "elsewhere": publish(connection, "amq.direct", "other.x"),
        "remembered": remembered,
        "bind": bind(connection, "amq.topic", "allowed.#"),
        "bind_other": bind(connection, "amq.topic", "#"),
        "bind_elsewhere": bind(connection, "amq.direct", "#"),
    }


def publish_on(channel, exchange, key):
    try:
        channel.basic_publish(exchange, key, b"x")
        return "confirmed"
    except pika.exceptions.ChannelClosedByBroker as error:
        return said(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ports", required=True)
    parser.add_argument("--what", required=True, choices=["connections", "channels", "queues", "topics"])
    parser.add_argument("--allowed", type=int, default=0)
    parser.add_argument("--vhost", default="/")
    parser.add_argument("--user", default="guest")
    parser.add_argument("--password", default="guest")
    options = parser.parse_args()
    ports, login = options.ports.split(","), (options.vhost, options.user, options.password)
    if options.what == "topics":
        result = topics(ports, *login)
    else:
        result = {"connections": connections, "channels": channels, "queues": queues}[options.what](
            ports, options.allowed, *login
        )
    print(json.dumps({"verdict": "pass", **result}))


main()
