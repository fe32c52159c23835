"""AMQP 0.9.1 octet by octet, for what a well-behaved client library would never send."""

import socket
import struct
import threading
import time

import scenario

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
SERVED = (PROTOCOL_HEADER, b"AMQP\x03\x01\x00\x00")
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"

CONNECTION_START = (10, 10)
CONNECTION_TUNE = (10, 30)
CONNECTION_OPEN_OK = (10, 41)
CONNECTION_CLOSE = (10, 50)
CONNECTION_CLOSE_OK = (10, 51)
CHANNEL_OPEN_OK = (20, 11)
CHANNEL_CLOSE = (20, 40)
CHANNEL_CLOSE_OK = (20, 41)
QUEUE_DECLARE_OK = (50, 11)


def short_string(text):
    data = text.encode()
    return bytes([len(data)]) + data


def long_string(data):
    return struct.pack(">I", len(data)) + data


def frame(kind, channel, payload, end=FRAME_END):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel, class_and_method, arguments=b""):
    return frame(METHOD, channel, struct.pack(">HH", *class_and_method) + arguments)


def channel_open(channel):
    return method(channel, (20, 10), b"\x00")


def publish(channel, exchange, key, mandatory=False):
    bits = bytes([int(mandatory)])
    return method(channel, (60, 40), b"\x00\x00" + short_string(exchange) + short_string(key) + bits)


def content(channel, body, frame_max=131_072):
    """A body's header and the frames that it takes."""
    size = frame_max - 8
    frames = [frame(BODY, channel, body[at : at + size]) for at in range(0, len(body), size)]
    return content_header(channel, len(body)) + b"".join(frames)


def content_header(channel, size, class_id=60, weight=0):
    return frame(HEADER, channel, struct.pack(">HHQH", class_id, weight, size, 0))


def queue_declare(channel, queue, table=b"\x00\x00\x00\x00", bits=0):
    return method(channel, (50, 10), b"\x00\x00" + short_string(queue) + bytes([bits]) + table)


def consume(channel, queue, no_ack):
    bits = bytes([0b0010 if no_ack else 0])
    return method(channel, (60, 20), b"\x00\x00" + short_string(queue) + short_string("") + bits + b"\x00\x00\x00\x00")


class Closed(Exception):
    """The server closed the socket."""


class Wire:
    """A socket to one node and the frames that come back."""

    def __init__(self, port, timeout=15, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._timeout = timeout
        self.socket.settimeout(timeout)
        self.socket.connect((scenario.HOST, port))
        self._buffer = b""
        self._sending = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """Sends; a server that has already hung up is no error here, the answer tells."""
        try:
            with self._sending:
                self.socket.sendall(data)
        except OSError:
            pass

    def send_while_reading(self, data):
        """Sends from a thread of its own: a server that stops reading may have answered before it took everything."""
        threading.Thread(target=self.send, args=[data], daemon=True).start()

    def _fill(self, size):
        while len(self._buffer) < size:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError as reset:
                raise Closed from reset
            if not data:
                raise Closed
            self._buffer += data

    def trickle(self, size):
        """Takes up to that many octets off the socket if they are there, for later."""
        self.socket.setblocking(False)
        try:
            self._buffer += self.socket.recv(size)
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(self._timeout)

    def read(self, size):
        self._fill(size)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def read_frame(self):
        """The next frame that is not a heartbeat, as (type, channel, payload)."""
        while True:
            kind, channel, size = struct.unpack(">BHI", self.read(7))
            payload = self.read(size)
            if self.read(1) != FRAME_END:
                raise ValueError("the server sent a frame without its end octet")
            if kind != HEARTBEAT:
                return kind, channel, payload

    def read_method(self):
        """The next method, as ((class, method), channel, arguments)."""
        kind, channel, payload = self.read_frame()
        if kind != METHOD:
            raise ValueError(f"expected a method, got a frame of type {kind}")
        return struct.unpack(">HH", payload[:4]), channel, payload[4:]

    def read_content(self):
        """Reads on to the next message and gives back its body."""
        kind = METHOD
        while kind != HEADER:
            kind, _, payload = self.read_frame()
        (left,) = struct.unpack(">Q", payload[4:12])
        parts = []
        while left > 0:
            kind, _, payload = self.read_frame()
            if kind != BODY:
                raise ValueError(f"expected a body, got a frame of type {kind}")
            parts.append(payload)
            left -= len(payload)
        return b"".join(parts)

    def expect(self, class_and_method):
        got, channel, arguments = self.read_method()
        if got != class_and_method:
            raise ValueError(f"expected method {class_and_method}, got {got} {arguments[:80]!r}")
        return channel, arguments

    def read_close(self):
        """Reads on to a close, of the connection or of a channel: (scope, code, text, class, method)."""
        while True:
            kind, channel, payload = self.read_frame()
            if kind != METHOD:
                continue
            got, arguments = struct.unpack(">HH", payload[:4]), payload[4:]
            if got in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                code, length = struct.unpack(">HB", arguments[:3])
                text = arguments[3 : 3 + length].decode()
                cause = struct.unpack(">HH", arguments[3 + length : 7 + length])
                if got == CONNECTION_CLOSE:
                    self.send(method(0, CONNECTION_CLOSE_OK))
                    return ("connection", code, text, *cause)
                self.send(method(channel, CHANNEL_CLOSE_OK))
                return ("channel", code, text, *cause)

    def reads_end(self, seconds):
        """Whether the server closes the socket in that time."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self.socket.settimeout(max(0.01, deadline - time.monotonic()))
                self.read(1)
        except Closed:
            return True
        except TimeoutError:
            return False
        return False

    def start(self):
        """Protocol header up to connection.start."""
        self.send(PROTOCOL_HEADER)
        self.expect(CONNECTION_START)

    def log_in(self, password="guest", capabilities=True):
        """connection.start-ok with PLAIN."""
        table = b""
        if capabilities:
            inner = short_string("authentication_failure_close") + b"t\x01"
            table = short_string("capabilities") + b"F" + long_string(inner)
        response = b"\x00guest\x00" + password.encode()
        self.send(
            method(0, (10, 11), long_string(table) + short_string("PLAIN") + long_string(response) + short_string("en_US"))
        )

    def tune(self, frame_max=None, channel_max=None, heartbeat=0):
        """Reads connection.tune and answers it; returns what the server proposed."""
        _, arguments = self.expect(CONNECTION_TUNE)
        proposed = struct.unpack(">HIH", arguments)
        answer = (
            proposed[0] if channel_max is None else channel_max,
            proposed[1] if frame_max is None else frame_max,
            heartbeat,
        )
        self.send(method(0, (10, 31), struct.pack(">HIH", *answer)))
        return proposed

    def open(self, vhost="/"):
        self.send(method(0, (10, 40), short_string(vhost) + b"\x00\x00"))

    def handshake(self, heartbeat=0):
        """A whole handshake; returns what the server proposed in connection.tune."""
        self.start()
        self.log_in()
        proposed = self.tune(heartbeat=heartbeat)
        self.open()
        self.expect(CONNECTION_OPEN_OK)
        return proposed

    def open_channel(self, channel=1):
        self.send(channel_open(channel))
        self.expect(CHANNEL_OPEN_OK)
