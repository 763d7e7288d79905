"""The client: typed calls to a daemon, and its events."""

import os
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import zmq
from msgspec import Struct

from myna.control import codec
from myna.control.connection import Connection, load_connection, read_connection
from myna.control.contract import (
    EVENT_TYPES,
    EVENTS,
    MAX_MESSAGE_BYTES,
    METHODS,
    Hello,
    HelloReply,
    Message,
)
from myna.control.errors import MynaError

R = TypeVar("R", bound=Message)

DEFAULT_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
PROBE_TIMEOUT_S = 1.0
# These wait for a device or a model on purpose.
TIMEOUTS_S = {
    "live.start": 180.0,
    "live.stop": 30.0,
    "live.set": 30.0,
    "live.voice": 180.0,
    "live.latency": 60.0,
    "live.check": 300.0,
    "devices.list": 30.0,
    "devices.test": 120.0,
    "voices.add": 120.0,
    "jobs.submit": 60.0,
    "models.unload": 60.0,
    "memory.flush": 60.0,
    "doctor": 120.0,
}


class Event(Struct, frozen=True, kw_only=True):
    """One event. `lost` counts events of this topic that came between this one and the last, unseen."""

    topic: str
    sequence: int
    message: Any  # of the topic's type in EVENT_TYPES
    lost: int = 0
    reconnected: bool = False  # first event after the connection was renewed; ask for the state again


class Events:
    """An iterator of events with a socket of its own; close it, or use it in a `with`, in the thread that iterates."""

    def __init__(
        self, sub: "zmq.Socket[bytes]", sync: bytes, early: list[list[bytes]], timeout_s: float | None
    ) -> None:
        """Made by `Client.events`: a subscribed socket, its sync topic, and what came before the sync did."""
        self._sub = sub
        self._sync = sync
        self._early = early
        self._wait_ms = None if timeout_s is None else max(0, int(1000 * timeout_s))
        self._last: dict[str, int] = {}
        self._reconnected = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event | None:
        """The next event; None if nothing came within the time-out. StopIteration once closed."""
        while not self._sub.closed:
            if self._early:
                frames = self._early.pop(0)
            elif self._sub.poll(self._wait_ms):
                frames = self._sub.recv_multipart()
            else:
                return None
            if frames[0] == self._sync:  # the subscriptions were renewed, on a new connection
                self._reconnected = True
                self._last.clear()
                continue
            event = _event(frames, self._last, self._reconnected)
            if event is not None:
                self._reconnected = False
                return event
        raise StopIteration

    def close(self) -> None:
        """Unsubscribe."""
        self._sub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A connection to a daemon.

    Calls may come from several threads; one client takes them one after another, so a thread that must not
    wait behind another's long call uses a client of its own. `events` iterators each have a socket of their
    own and belong to the thread that iterates; close them before the client.

    A lost connection is renewed at the next call, with the connection file read anew; a request is never sent
    twice by itself.
    """

    def __init__(
        self,
        connection: Connection | Path | str | None = None,
        *,
        state_dir: Path | None = None,
        name: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Nothing is opened before the first call.

        Args:
            connection: A Connection, a connection file's path, or an `ipc://` endpoint; None: the file
                of `MYNA_CONNECTION`, else of the state directory.
            state_dir: Whose connection file to read; None: `MYNA_STATE_DIR`, else the platform's.
            name: What to call this client in the daemon's log.
            timeout_s: For every call; None: by method.
        """
        self._given = connection
        self._state_dir = state_dir
        self._name = name
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.BLOCKY, 0)
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._connection: Connection | None = None
        self._next_id = int.from_bytes(os.urandom(4), "big")
        self._closed = False

    # --- calls ------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        request: Message | None = None,
        reply: type[R] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> R:
        """Ask the daemon and wait for its reply.

        Args:
            method: A name of `contract.METHODS`.
            request: Its message; None: the method's message with all defaults.
            reply: The reply's type, for type checkers; it must be the method's.
            timeout_s: None: the client's, else by method.

        Raises:
            MynaError: whatever the daemon answers; `unreachable` if none answers at all, `timed_out` if
                it lives but this answer did not come, `not_allowed` if it does not take this client's key.
        """
        asked, answered = _types(method)
        if reply is not None and reply is not answered:
            raise TypeError(f"{method} answers with {answered.__name__}, not {reply.__name__}")
        if request is None:
            request = codec.validate(asked, {})
        if not isinstance(request, asked):
            raise TypeError(f"{method} takes {asked.__name__}, not {type(request).__name__}")
        limit = timeout_s if timeout_s is not None else self._timeout_s
        limit = limit if limit is not None else TIMEOUTS_S.get(method, DEFAULT_TIMEOUT_S)
        with self._lock:
            try:
                return cast(R, self._exchange(method, request, answered, limit))
            except MynaError as error:
                if error.code != "timed_out" or "from_daemon" in error.facts:
                    raise
                self._tell_silence(method, limit)
                raise
            except BaseException:  # an interrupted wait must not leave its reply to the next call
                self._drop()
                raise

    def hello(self) -> HelloReply:
        """Who is there. Errors as `call`."""
        return self.call("hello", Hello(client=self._name), HelloReply)

    def _exchange(self, method: str, request: Message, answered: type[Message], limit_s: float) -> Message:
        self._next_id += 1
        number = self._next_id
        frames = codec.encode_request(number, method, request)
        deadline = time.monotonic() + limit_s
        sock = self._connected(min(limit_s, CONNECT_TIMEOUT_S))
        try:
            sock.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:  # a thousand requests wait to be sent: nobody takes them
            raise self._unreachable(refused=False) from None
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not self._wait(sock, left):
                raise MynaError(
                    "timed_out",
                    f"The daemon gave no answer to `{method}` within {limit_s:g} s; it may still do it. "
                    "`myna status` tells.",
                    method=method,
                    timeout_s=limit_s,
                )
            answer = sock.recv_multipart()
            if codec.reply_id(answer) not in (number, None):  # of a call that gave up
                continue
            _, outcome = codec.decode_reply(answer, answered)
            if isinstance(outcome, MynaError):
                if outcome.code == "timed_out":
                    outcome.facts.setdefault("from_daemon", True)
                raise outcome
            return outcome

    def _connected(self, seconds: float) -> "zmq.Socket[bytes]":
        """The socket with a finished handshake, keys included; a broken one is replaced.

        ZMQ_IMMEDIATE would promise the same, but drops replies that came just before a disconnect.
        """
        if self._monitor is not None:
            while self._monitor.poll(0):
                if _happened(self._monitor) == zmq.EVENT_DISCONNECTED:
                    self._drop()
                    break
        if self._socket is not None:
            return self._socket
        sock = self._open()
        assert self._monitor is not None
        deadline = time.monotonic() + seconds
        refused = False
        while (left := deadline - time.monotonic()) > 0:
            if not self._monitor.poll(max(1, int(1000 * left))):
                continue
            happened = _happened(self._monitor)
            if happened == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return sock
            if happened == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise self._unreachable(refused=True)
            refused |= happened in (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        raise self._unreachable(refused=refused and self._secured)

    @property
    def _secured(self) -> bool:
        return self._connection is not None and self._connection.server_key is not None

    def _wait(self, sock: "zmq.Socket[bytes]", seconds: float) -> bool:
        """Wait for a reply; MynaError `unreachable` as soon as the connection breaks."""
        assert self._monitor is not None
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(max(1, int(1000 * left))))
            if sock in ready:
                return True
            if self._monitor in ready:
                happened = _happened(self._monitor)
                if happened == zmq.EVENT_DISCONNECTED:
                    if sock.poll(0):  # the answer came, then the end
                        return True
                    self._drop()
                    raise MynaError(
                        "unreachable",
                        "The daemon went away before it answered; `myna status` tells whether it is back.",
                    )
        return False

    def _tell_silence(self, method: str, limit_s: float) -> None:
        """After a time-out: raise `unreachable` unless the daemon still says hello."""
        try:
            self._exchange("hello", Hello(client=self._name), HelloReply, PROBE_TIMEOUT_S)
        except MynaError as error:
            self._drop()
            if error.code in ("timed_out", "unreachable"):
                raise MynaError(
                    "unreachable",
                    f"No daemon answered `{method}` within {limit_s:g} s. `myna up` starts one; if one "
                    "runs and is stuck, end it with `myna down --force`.",
                ) from None
            raise

    # --- events -----------------------------------------------------------------------------------------

    def events(self, topics: Iterable[str] = EVENTS, *, timeout_s: float | None = None) -> "Events":
        """Subscribe, and return an iterator of events.

        All subscriptions stand when this returns: what is published after it is not missed. Without
        `timeout_s` the iterator waits; with it, it yields None whenever nothing came for so long. Events are
        dropped, and counted in `lost`, if they are not taken fast enough.

        Raises:
            MynaError: `bad_request` for an unknown topic, `unreachable`.
        """
        wanted = list(topics)
        for topic in wanted:
            if topic not in EVENT_TYPES:
                raise MynaError(
                    "bad_request",
                    f"There is no event `{topic[:64]}`{codec.did_you_mean(topic, EVENT_TYPES)}",
                )
        endpoint = self.hello().events
        with self._lock:
            connection = self._connection
        if connection is None:
            raise self._unreachable(refused=False)
        sub = self._context.socket(zmq.SUB)
        try:
            sub.setsockopt(zmq.LINGER, 0)
            sub.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE_BYTES)
            sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            _secure(sub, connection)
            sync = f"sync.{os.urandom(8).hex()}".encode()
            for topic in wanted:
                sub.setsockopt(zmq.SUBSCRIBE, topic.encode())
            sub.setsockopt(zmq.SUBSCRIBE, sync)
            sub.connect(_reachable(endpoint, connection.endpoint))
            early: list[list[bytes]] = []
            deadline = time.monotonic() + CONNECT_TIMEOUT_S
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or not sub.poll(max(1, int(1000 * left))):
                    raise self._unreachable(refused=False)
                frames = sub.recv_multipart()
                if frames[0] == sync:
                    break
                early.append(frames)
        except BaseException:  # Ctrl-C too: the socket would be left open
            sub.close()
            raise
        return Events(sub, sync, early, timeout_s)

    # --- life -------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """How the daemon is reached. MynaError as `read_connection`."""
        return self._connection or self._resolve()

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop()
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resolve(self) -> Connection:
        if isinstance(self._given, Connection):
            return self._given
        if isinstance(self._given, str) and self._given.startswith("ipc://"):
            return Connection(endpoint=self._given, events="")
        if self._given is not None:
            return load_connection(Path(self._given))
        return read_connection(self._state_dir)

    def _open(self) -> "zmq.Socket[bytes]":
        if self._closed:
            raise MynaError("unreachable", "This client was closed.")
        connection = self._resolve()
        sock = self._context.socket(zmq.DEALER)
        try:
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE_BYTES)
            sock.setsockopt(zmq.RECONNECT_IVL, 50)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            _secure(sock, connection)
            self._monitor = sock.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_DISCONNECTED
                | zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            )
            sock.connect(connection.endpoint)
        except (zmq.ZMQError, ValueError) as error:
            sock.disable_monitor()
            sock.close()
            if self._monitor is not None:
                self._monitor.close()
                self._monitor = None
            raise MynaError(
                "config_invalid",
                f"The endpoint {connection.endpoint} or its keys can't be used: {error}.",
                endpoint=connection.endpoint,
            ) from error
        self._socket, self._connection = sock, connection
        return sock

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        if self._monitor is not None:
            self._monitor.close()
        self._socket = self._monitor = None
        self._connection = None

    def _unreachable(self, refused: bool) -> MynaError:
        """Why nothing could be sent: no daemon, or one that does not take our key. Drops the connection."""
        connection = self._connection
        self._drop()
        endpoint = connection.endpoint if connection else None
        if refused:
            return MynaError(
                "not_allowed",
                f"The daemon at {endpoint} does not take this client's key. On its machine run "
                "`myna keys create NAME -o FILE` and use that file here (MYNA_CONNECTION=FILE).",
                endpoint=endpoint,
            )
        return MynaError(
            "unreachable",
            f"No daemon answers at {endpoint}; start one with `myna up` or `mynad`.",
            endpoint=endpoint,
        )


def _happened(monitor: "zmq.Socket[bytes]") -> int:
    """Number of a socket's event; pyzmq's own reader imports asyncio, a quarter of a command's start."""
    (number,) = struct.unpack_from("=H", monitor.recv_multipart()[0])
    return int(number)


def _types(method: str) -> tuple[type[Message], type[Message]]:
    codec.request_type(method)
    return METHODS[method]


def _secure(sock: "zmq.Socket[bytes]", connection: Connection) -> None:
    if connection.endpoint.startswith("tcp://"):
        sock.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
        if "[" in connection.endpoint:
            sock.setsockopt(zmq.IPV6, 1)
    if connection.server_key is not None:
        sock.setsockopt(zmq.CURVE_SERVERKEY, connection.server_key.encode("ascii"))
        sock.setsockopt(zmq.CURVE_PUBLICKEY, (connection.client_key or "").encode("ascii"))
        sock.setsockopt(zmq.CURVE_SECRETKEY, (connection.client_secret or "").encode("ascii"))


def _reachable(events: str, requests: str) -> str:
    """The events' endpoint as seen from here: the daemon tells its own view of a wildcard or loopback host.

    tcp://0.0.0.0:5556 asked through tcp://studio:5555 is tcp://studio:5556.
    """
    if not (events.startswith("tcp://") and requests.startswith("tcp://")):
        return events
    return f"{requests.rpartition(':')[0]}:{events.rpartition(':')[2]}"


def _event(frames: list[bytes], last: dict[str, int], reconnected: bool) -> Event | None:
    """Read an event; None for a topic that this client does not know (subscriptions are prefixes)."""
    topic = frames[0].decode("utf-8", "replace")
    kind = EVENT_TYPES.get(topic)
    if kind is None or len(frames) != 3 or len(frames[1]) != 8:
        return None
    (number,) = struct.unpack(">Q", frames[1])
    lost = max(0, number - last[topic] - 1) if topic in last else 0
    last[topic] = number
    message = codec.decode(kind, frames[2], what="event", strict=False)
    return Event(topic=topic, sequence=number, message=message, lost=lost, reconnected=reconnected)
