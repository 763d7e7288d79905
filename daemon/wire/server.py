"""The daemon's end of the wire: requests on a ROUTER, events on a PUB, one thread that waits for nobody."""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import zmq

from myna.control import codec, keys
from myna.control.connection import Connection
from myna.control.contract import (
    EVENT_TYPES,
    MAX_IN_FLIGHT,
    MAX_MESSAGE_BYTES,
    METHODS,
    PROTOCOL_VERSION,
    Hello,
    HelloReply,
    Message,
)
from myna.control.errors import MynaError
from myna.control.process import started_at
from myna.daemon.wire.curve import start_curve
from myna.daemon.wire.deferred import Deferred
from myna.daemon.wire.endpoints import bind_ipc, bind_tcp, events_beside, from_here, split
from myna.daemon.wire.events import Events, confirm_subscriptions

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

log = logging.getLogger(__name__)

HARD_LIMIT_BYTES = 4 * MAX_MESSAGE_BYTES
"""A frame beyond this ends the connection; between the message limit and this there is an answer."""
_PEER_QUEUE = 64  # replies kept for a client that does not read; the rest is dropped

Handler = Callable[[Any], Message | Deferred]
"""Takes a method's checked request and returns its reply, or a Deferred; raises MynaError to refuse."""


class Server:
    """Answers requests by a table of handlers, and publishes events.

    Three threads: the caller's; one that owns both sockets and never waits for a handler; and one that runs
    the handlers, one after another (or the caller's own loop, by `run`). `hello` is answered by the socket
    thread, so that a client can tell a busy daemon from a dead one.

    A handler that must wait returns a `Deferred` and answers later. A `MynaError` it raises goes to the
    client; any other exception is logged with its traceback and told as `internal`, without details.
    """

    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[str, Handler],
        *,
        version: str,
        state_dir: Path,
        events: str | None = None,
        methods: codec.Methods = METHODS,
        event_types: Mapping[str, type[msgspec.Struct]] = EVENT_TYPES,
        run: Callable[[Callable[[], None]], None] | None = None,
        answer_within_s: float = 900.0,
    ) -> None:
        """Describe a server; `start` opens it.

        Args:
            endpoint: `ipc://PATH` or `tcp://HOST:PORT` (port `*` or 0: any free one). TCP means CURVE with
                the keys in the state directory; beyond loopback a client's key must be on the list.
            handlers: By method; a method of the table without handler is answered `refused`.
            version: Of the package, told in `hello`.
            state_dir: Told in `hello`; holds the keys.
            events: Endpoint of the PUB socket; None: beside `endpoint` (`….events`, or the next TCP port).
            methods: Request and reply type of each method.
            event_types: Message type of each event.
            run: Gets every handler call as a thunk, to run it soon on one thread of the caller's. None: a
                thread of the server's own.
            answer_within_s: A deferred answer later than this is given up and told as `timed_out`.
        """
        self._asked = endpoint
        self._asked_events = events
        self._handlers = dict(handlers)
        self._version = version
        self._state_dir = state_dir
        self._methods = methods
        self._run = run
        self._answer_within_s = answer_within_s
        self._endpoint = endpoint
        self._events_endpoint = events or ""
        self._server_key: str | None = None

        self._pending: dict[tuple[bytes, int, int], tuple[codec.RequestHeader, bool, float]] = {}
        self._in_flight: dict[bytes, int] = {}
        self._serial = 0
        self._answers: deque[tuple[tuple[bytes, int, int], Message | BaseException]] = deque()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._events = Events(event_types)

        self._bound_paths: list[str] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._auth: ThreadAuthenticator | None = None
        self._router: zmq.Socket[bytes]
        self._pub: zmq.Socket[bytes]
        self._wake_in: socket.socket | None = None
        self._wake_out: socket.socket | None = None

    # --- life -------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where requests are taken; after `start` with the real port."""
        return self._endpoint

    @property
    def events_endpoint(self) -> str:
        """Where events are published; after `start` with the real port."""
        return self._events_endpoint

    @property
    def server_key(self) -> str | None:
        """Public CURVE key of this server; None over ipc."""
        return self._server_key

    def start(self) -> None:
        """Bind both sockets and begin to answer.

        Raises:
            MynaError: `busy` (port in use), `already_running` (somebody answers at that ipc path),
                `not_allowed` (beyond loopback without client keys; a port or path of somebody else),
                `config_invalid` (no such endpoint), `state_unwritable`.
        """
        scheme, place = split(self._asked)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.setsockopt(zmq.BLOCKY, 0)
        self._context = context
        try:
            self._router = context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.SNDHWM, _PEER_QUEUE)
            self._router.setsockopt(zmq.RCVHWM, _PEER_QUEUE)
            self._router.setsockopt(zmq.LINGER, 500)  # the answer to `shutdown` still goes out
            # XPUB is a PUB that sees its subscriptions, and so can confirm them.
            self._pub = context.socket(zmq.XPUB)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._pub.setsockopt(zmq.SNDHWM, 1000)
            self._pub.setsockopt(zmq.LINGER, 0)
            for each in (self._router, self._pub):
                each.setsockopt(zmq.MAXMSGSIZE, HARD_LIMIT_BYTES)
            if scheme == "ipc":
                self._endpoint = self._bind_path(self._router, place)
                self._events_endpoint = self._bind_path(
                    self._pub, split(self._asked_events or events_beside(self._asked))[1]
                )
            else:
                both = (self._router, self._pub)
                self._auth, self._server_key = start_curve(context, both, self._asked, self._state_dir)
                self._endpoint = bind_tcp(self._router, self._asked)
                self._events_endpoint = bind_tcp(self._pub, self._asked_events or events_beside(self._asked))
            self._wake_in, self._wake_out = socket.socketpair()
            self._wake_in.setblocking(False)
            self._wake_out.setblocking(False)
        except BaseException:
            self._release()
            raise
        if self._run is None:
            self._run = self._tasks.put
            self._threads.append(threading.Thread(target=self._run_tasks, name="control-handlers", daemon=True))
        self._threads.append(threading.Thread(target=self._serve, name="control-socket", daemon=True))
        for thread in self._threads:
            thread.start()

    def connection(self) -> Connection:
        """What clients of this user on this machine need; after `start`. Write it with `write_connection`.

        Over TCP it holds the key pair `local`, which is on the list.
        """
        local = keys.local_keys(self._state_dir) if self._server_key is not None else None
        return Connection(
            endpoint=from_here(self._endpoint),
            events=from_here(self._events_endpoint),
            pid=os.getpid(),
            started=started_at(os.getpid()),
            version=self._version,
            state_dir=str(self._state_dir),
            server_key=self._server_key,
            client_key=local.public if local is not None else None,
            client_secret=local.secret if local is not None else None,
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Let handlers that wait in line finish, tell the rest `refused`, and stop. Safe to call twice.

        Not from a handler: its own answer could not go out. A `shutdown` handler sets a flag and returns.
        """
        if self._context is None:
            return
        self._tasks.put(None)
        for thread in self._threads:
            if thread is self._threads[-1]:  # the socket thread, after the handlers
                self._stopping.set()
                self._wake()
            thread.join(timeout_s)
        self._threads.clear()
        self._release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _release(self) -> None:
        if self._auth is not None:
            self._auth.stop()
            self._auth = None
        for each in (self._wake_in, self._wake_out):
            if each is not None:
                each.close()
        self._wake_in = self._wake_out = None
        if self._context is not None:
            for name in ("_router", "_pub"):
                found = getattr(self, name, None)
                if found is not None:
                    found.close()
            self._context.term()
            self._context = None
        for path in self._bound_paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._bound_paths.clear()

    def _bind_path(self, bound: "zmq.Socket[bytes]", path: str) -> str:
        endpoint = bind_ipc(bound, path)
        self._bound_paths.append(path)
        return endpoint

    # --- events -----------------------------------------------------------------------------------------

    def publish(self, topic: str, message: msgspec.Struct) -> None:
        """Tell subscribers, from any thread, without waiting; rules and errors as `Events.publish`."""
        self._events.publish(topic, message)
        self._wake()

    # --- requests ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """The socket thread."""
        assert self._wake_out is not None
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._pub, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        while not self._stopping.is_set():
            try:
                self._turn(dict(poller.poll(1000)), self._wake_out)
            except Exception:  # a bug in one turn must not leave the daemon deaf
                log.exception("the control socket met a bug")
                self._stopping.wait(0.1)
        self._give_answers()
        for token in list(self._pending):
            self._answers.append((token, MynaError("refused", "The daemon is stopping; try again once it runs.")))
        self._give_answers()
        self._events.send(self._pub)

    def _turn(self, ready: dict[Any, int], wake_out: socket.socket) -> None:
        """One turn of the socket thread: take what came, send what is there."""
        if wake_out.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                while wake_out.recv(4096):
                    pass
        if self._pub in ready:
            confirm_subscriptions(self._pub)
        if self._router in ready:
            self._take_requests()
        self._give_answers()
        self._give_up_late()
        self._events.send(self._pub)

    def _take_requests(self) -> None:
        """Take what has come, a bounded number at a time so that answers and events get their turn."""
        for _ in range(MAX_IN_FLIGHT):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            identity, rest = frames[0], frames[1:]
            delimited = bool(rest) and rest[0] == b""  # a REQ socket's empty frame
            if delimited:
                rest = rest[1:]
            try:
                self._take(identity, rest, delimited)
            except MynaError as error:
                self._send(identity, codec.encode_error(codec.request_id(rest), error), delimited)
            except Exception:
                log.exception("a request could not be taken")
                bug = MynaError("internal", "The daemon met a bug; its log has the details.")
                self._send(identity, codec.encode_error(codec.request_id(rest), bug), delimited)

    def _take(self, identity: bytes, frames: list[bytes], delimited: bool) -> None:
        header = codec.decode_request_header(frames)
        kind = codec.request_type(header.method, self._methods)
        if self._in_flight.get(identity, 0) >= MAX_IN_FLIGHT:
            raise MynaError(
                "busy",
                f"{MAX_IN_FLIGHT} requests of this client wait for their answer already; send the next when one came.",
                limit=MAX_IN_FLIGHT,
                retry_after_s=1.0,
            )
        message = codec.decode(kind, frames[2])
        if isinstance(message, Hello):
            if message.protocol != PROTOCOL_VERSION:
                raise MynaError(
                    "version_mismatch",
                    f"The client speaks protocol {message.protocol}, the daemon {PROTOCOL_VERSION}; "
                    "install the same version of myna on both.",
                    protocol=PROTOCOL_VERSION,
                    theirs=message.protocol,
                )
            self._send(identity, codec.encode_reply(header.id, self._hello()), delimited)
            return
        handler = self._handlers.get(header.method)
        if handler is None:
            raise MynaError("refused", f"This daemon does not offer `{header.method}`.", method=header.method)
        self._serial += 1
        token = (identity, header.id, self._serial)
        self._pending[token] = (header, delimited, time.monotonic() + self._answer_within_s)
        self._in_flight[identity] = self._in_flight.get(identity, 0) + 1
        assert self._run is not None
        self._run(lambda: self._handle(token, header.method, handler, message))

    def _hello(self) -> HelloReply:
        return HelloReply(
            protocol=PROTOCOL_VERSION,
            version=self._version,
            pid=os.getpid(),
            state_dir=str(self._state_dir),
            events=self._events_endpoint,
        )

    def _run_tasks(self) -> None:
        """The handlers' thread."""
        while (task := self._tasks.get()) is not None:
            task()

    def _handle(self, token: tuple[bytes, int, int], method: str, handler: Handler, message: Message) -> None:
        """Run a handler in its thread; whatever it raises becomes an answer."""
        try:
            outcome: Message | Deferred | BaseException = handler(message)
        except Exception as error:
            outcome = error
        if isinstance(outcome, Deferred):
            outcome.on_done(lambda settled: self._settle(token, method, settled))
        else:
            self._settle(token, method, outcome)

    def _settle(self, token: tuple[bytes, int, int], method: str, outcome: Message | BaseException) -> None:
        """Hand an outcome to the socket thread; any thread."""
        if isinstance(outcome, BaseException) and not isinstance(outcome, MynaError):
            log.error("%s failed by a bug", method, exc_info=outcome)
            outcome = MynaError("internal", f"The daemon met a bug in `{method}`; its log has the details.")
        elif not isinstance(outcome, MynaError) and not isinstance(outcome, self._methods[method][1]):
            log.error("%s answered with %s", method, type(outcome).__name__)
            outcome = MynaError("internal", f"The daemon met a bug in `{method}`; its log has the details.")
        self._answers.append((token, outcome))
        self._wake()

    def _give_answers(self) -> None:
        while self._answers:
            token, outcome = self._answers.popleft()
            known = self._pending.pop(token, None)
            if known is None:  # given up before
                continue
            identity = token[0]
            left = self._in_flight[identity] - 1
            if left:
                self._in_flight[identity] = left
            else:
                del self._in_flight[identity]
            header, delimited, _ = known
            try:
                frames = (
                    codec.encode_error(header.id, outcome)
                    if isinstance(outcome, MynaError)
                    else codec.encode_reply(header.id, outcome)  # type: ignore[arg-type]
                )
            except MynaError as error:
                frames = codec.encode_error(header.id, error)
            except Exception:
                log.exception("an answer to %s could not be encoded", header.method)
                frames = codec.encode_error(
                    header.id, MynaError("internal", "The daemon met a bug; its log has the details.")
                )
            self._send(identity, frames, delimited)

    def _give_up_late(self) -> None:
        now = time.monotonic()
        late = [token for token, (_, _, until) in self._pending.items() if now > until]
        for token in late:
            self._answers.append(
                (
                    token,
                    MynaError(
                        "timed_out",
                        f"The daemon had no answer within {self._answer_within_s:g} s; "
                        "`myna status` tells what it does.",
                    ),
                )
            )
        if late:
            self._give_answers()

    def _send(self, identity: bytes, frames: list[bytes], delimited: bool) -> None:
        """Send without waiting: a client that is gone or does not read loses its answer."""
        with contextlib.suppress(zmq.Again):
            self._router.send_multipart([identity, *([b""] if delimited else []), *frames], zmq.NOBLOCK)

    def _wake(self) -> None:
        """Have the socket thread look; a full pipe means that it will anyway."""
        wake = self._wake_in
        if wake is not None:
            with contextlib.suppress(OSError):
                wake.send(b"\0")
