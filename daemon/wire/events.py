"""Events on their way to subscribers: numbered, bounded, waiting for nobody."""

import contextlib
import struct
import threading
from collections import deque
from collections.abc import Mapping

import msgspec
import zmq

from myna.control import codec

SYNC_PREFIX = b"sync."
"""A subscription to `sync.` and up to 59 bytes is answered by an event of that topic: earlier ones stand."""
_SYNC_LIMIT = 64
_EVENTS_KEPT = 4096  # in the queue to the socket thread


class Events:
    """What was published and not sent yet."""

    def __init__(self, types: Mapping[str, type[msgspec.Struct]]) -> None:
        self._types = types
        self._lock = threading.Lock()
        self._sequence: dict[str, int] = {}
        self._events: deque[tuple[str, int, bytes]] = deque(maxlen=_EVENTS_KEPT)
        self._meters: dict[tuple[str, str], tuple[str, int, bytes]] = {}

    def publish(self, topic: str, message: msgspec.Struct) -> None:
        """Take a message, from any thread, without waiting.

        Events are numbered per topic as they are published, so a subscriber sees what was lost. Of
        `live.meters` only a session's latest is kept; of the rest the last 4096 not yet sent.

        Raises:
            ValueError: The topic is not published, or the message is not of its type.
            MynaError: `too_large`.
        """
        kind = self._types.get(topic)
        if kind is None or not isinstance(message, kind):
            raise ValueError(f"no event {topic!r} of {type(message).__name__}")
        body = codec.pack(message)
        with self._lock:
            number = self._sequence.get(topic, 0) + 1
            self._sequence[topic] = number
            if topic == "live.meters":
                self._meters[topic, str(getattr(message, "session", ""))] = (topic, number, body)
            else:
                self._events.append((topic, number, body))

    def send(self, pub: "zmq.Socket[bytes]") -> None:
        """Send what was published; the socket's own thread."""
        with self._lock:
            batch = list(self._events)
            self._events.clear()
            batch.extend(self._meters.values())
            self._meters.clear()
        for topic, number, body in batch:
            _send(pub, topic.encode(), number, body)


def confirm_subscriptions(pub: "zmq.Socket[bytes]") -> None:
    """Answer those who subscribed to `sync.`: what was published earlier they may have missed."""
    with contextlib.suppress(zmq.Again):
        while True:
            asked = pub.recv(zmq.NOBLOCK)
            if asked[:1] == b"\x01" and asked[1:].startswith(SYNC_PREFIX) and len(asked) <= _SYNC_LIMIT + 1:
                _send(pub, asked[1:], 0, b"\xc0")


def _send(pub: "zmq.Socket[bytes]", topic: bytes, number: int, body: bytes) -> None:
    with contextlib.suppress(zmq.Again):  # a slow subscriber loses events; nobody waits for it
        pub.send_multipart([topic, struct.pack(">Q", number), body], zmq.NOBLOCK)
