"""Sockets of the real libzmq, moved by a test.

Reads commands as JSON lines on stdin, answers each with a JSON line on stdout. Frames are hex.
"""

import json
import struct
import sys
import time

import zmq

END = b"\xff" * 8

context = zmq.Context()
sockets = {}


def bound(socket, endpoint):
    """libzmq gives an address back some time after its socket was closed."""
    until = time.monotonic() + 60
    while True:
        try:
            return socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                raise
            time.sleep(0.01)


def open_socket(name, type, bind=None, connect=None, options=None, topics=()):
    s = context.socket(getattr(zmq, type))
    s.setsockopt(zmq.LINGER, 0)
    for key, value in (options or {}).items():
        s.setsockopt(getattr(zmq, key), value)
    for topic in topics:
        s.setsockopt(zmq.SUBSCRIBE, topic.encode())
    if bind:
        bound(s, bind)
    if connect:
        s.connect(connect)
    sockets[name] = s
    return {"endpoint": s.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\x00").decode()}


def close(name):
    sockets.pop(name).close()
    return {}


def send(name, frames):
    sockets[name].send_multipart([bytes.fromhex(f) for f in frames])
    return {}


def burst(name, topic, first, count, size):
    """Sends batches the way vLLM does: topic, sequence, payload."""
    payload = b"x" * size
    for i in range(first, first + count):
        sockets[name].send_multipart([topic.encode(), struct.pack(">Q", i), payload])
    return {}


def recv(name, timeout=60000):
    if not sockets[name].poll(timeout):
        return {"frames": None}
    return {"frames": [f.hex() for f in sockets[name].recv_multipart()]}


def unsubscribe(name, topic):
    sockets[name].setsockopt(zmq.UNSUBSCRIBE, topic.encode())
    return {}


def replay(name, first, last, topic=None):
    """Answers one replay request from a buffer that holds first to last, as vLLM's publisher does; with a topic in the
    form of June 2026 and later."""
    request = sockets[name].recv_multipart()
    if len(request) != 3:
        return {"request": [f.hex() for f in request]}
    identity, _, start = request
    head = [identity, b""] + ([] if topic is None else [topic.encode()])
    for i in range(max(first, struct.unpack(">Q", start)[0]), last + 1):
        sockets[name].send_multipart([*head, struct.pack(">Q", i), b"batch %d" % i])
    end = [identity, b""] + ([] if topic is None else [b""])
    sockets[name].send_multipart([*end, END, b""])
    return {"request": [f.hex() for f in request[1:]]}


OPERATIONS = {
    "open": open_socket,
    "close": close,
    "send": send,
    "burst": burst,
    "recv": recv,
    "unsubscribe": unsubscribe,
    "replay": replay,
    "version": lambda: {"version": zmq.zmq_version()},
}

for line in sys.stdin:
    command = json.loads(line)
    operation = OPERATIONS[command.pop("op")]
    try:
        answer = operation(**command)
    except zmq.ZMQError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
