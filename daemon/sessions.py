"""A live session as the supervisor sees it: one worker process, watched, restarted, spoken to."""

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import zmq

from myna.control.contract import SessionStatus
from myna.control.errors import MynaError
from myna.daemon.child_environment import child_environment
from myna.daemon.live.messages import (
    DEVICE_HUNG,
    Answer,
    Configure,
    Order,
    Report,
    Said,
    SessionConfig,
    Stop,
    decode_word,
    encode,
)
from myna.daemon.restarts import RestartBudget

log = logging.getLogger(__name__)

SILENT_WORKER_S = 8.0  # a worker that says nothing for so long is hung; its reports come ten times a second
STOP_S = 3.0  # from asking to terminating, and from terminating to killing

Done = Callable[[Answer], None]


class LiveSession:
    """One live session: owns its worker process, restarts it with the same configuration when it dies.

    All methods may be called from any thread and return at once; `done` is called from the session's own thread.
    """

    def __init__(
        self,
        name: str,
        runtime_dir: Path,
        log_dir: Path,
        on_report: Callable[[SessionStatus, bool, bool | None], None],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self._runtime_dir, self._log_dir = runtime_dir, log_dir
        self._on_report = on_report
        self._environment = environment or {}
        self._config: SessionConfig | None = None  # what shall run; None: nothing
        self._status = SessionStatus(session=name, state="stopped")
        self._budget = RestartBudget()
        self._inbox: queue.SimpleQueue[tuple[Order, Done]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._outbox: deque[bytes] = deque()  # orders that wait for the worker to connect
        self._pending: dict[int, Done] = {}
        self._ids = 0
        self._lock = threading.Lock()
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: zmq.Socket[bytes] | None = None
        self._endpoint: Path | None = None
        self._spawned = 0
        self._heard_at = 0.0
        self._stop_asked_at: float | None = None
        self._restart_at: float | None = None
        self._stable_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"session-{name}", daemon=True)
        self._thread.start()

    # --- from any thread --------------------------------------------------------------------------------

    @property
    def config(self) -> SessionConfig | None:
        """What the session shall run with, None when it is stopped."""
        return self._config

    @property
    def status(self) -> SessionStatus:
        """The latest status."""
        return self._status

    def next_id(self) -> int:
        """A fresh order id."""
        with self._lock:
            self._ids += 1
            return self._ids

    def send(self, order: Order, done: Done) -> None:
        """Give the worker an order; `done` hears its answer, or that the worker is gone."""
        if isinstance(order, Configure):  # at once, so that the next change builds on this one
            self._config = order.config
        elif isinstance(order, Stop):
            self._config = None
        self._inbox.put((order, done))
        with contextlib.suppress(BlockingIOError):
            self._wake_in.send(b"!")

    def keep_config(self, refused: SessionConfig, old: SessionConfig | None) -> None:
        """The worker refused a change: a restart, and the next change, go by the old configuration again.

        Not where something newer was asked for meanwhile, nor where the session goes on trying by itself.
        """
        if self._config is refused and self._status.state != "reconnecting":
            self._config = old

    def close(self, timeout_s: float = 8.0) -> None:
        """Stop the worker and end the thread."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake_in.send(b"!")
        self._thread.join(timeout_s)

    # --- the session's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        # PR_SET_PDEATHSIG follows the creating thread: this thread outlives every worker it starts.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        last_turn = time.monotonic()
        while True:
            poller = zmq.Poller()
            poller.register(self._wake_out.fileno(), zmq.POLLIN)
            if self._link is not None:
                poller.register(self._link, zmq.POLLIN)
            poller.poll(20 if self._outbox else 100)
            now = time.monotonic()
            if now - last_turn > 2.0:  # we were suspended, not the worker silent
                self._heard_at = now
            last_turn = now
            with contextlib.suppress(BlockingIOError):
                while self._wake_out.recv(4096):
                    pass
            self._take_orders(context)
            self._speak()
            self._hear(now)
            self._watch(now, context)
            if self._closing and self._process is None:
                break
        self._fail_pending("refused", "The daemon is shutting down.")

    def _take_orders(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        while True:
            try:
                order, done = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(order, Configure):
                self._budget.forgive()
                self._restart_at = None
                if self._process is None:
                    self._set_state("starting", None)
                    self._spawn(context)
            elif isinstance(order, Stop):
                self._restart_at = None
                if self._process is None:
                    self._set_state("stopped", "asked")
                    done(Answer(id=order.id))
                    continue
                self._stop_asked_at = time.monotonic()
            if self._link is None:
                message = f"Session {self.name!r} does not run: start it with `myna live start`."
                done(Answer(id=order.id, code="refused", message=message))
                continue
            self._pending[order.id] = done
            self._outbox.append(encode(order))
        if self._closing and self._process is not None and self._stop_asked_at is None:
            self._config = None
            self._stop_asked_at = time.monotonic()
            self._outbox.append(encode(Stop(id=self.next_id())))

    def _speak(self) -> None:
        while self._link is not None and self._outbox:
            try:
                self._link.send(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:  # not connected yet: the next turn tries again
                return
            self._outbox.popleft()

    def _hear(self, now: float) -> None:
        while self._link is not None:
            try:
                data = self._link.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_at = now
            try:
                word = decode_word(data)
            except msgspec.DecodeError:
                log.exception("session %s: a worker said something unreadable", self.name)
                continue
            if isinstance(word, Report):
                self._report(word, now)
            elif isinstance(word, Answer):
                done = self._pending.pop(word.id, None)
                if done is not None:
                    done(word)
            elif isinstance(word, Said):
                log.log(getattr(logging, word.level.upper(), logging.INFO), "session %s: %s", self.name, word.message)

    def _report(self, word: Report, now: float) -> None:
        status = msgspec.structs.replace(
            word.status,
            restarts=self._status.restarts,
            restart_budget=self._budget.left,
            pid=self._process.pid if self._process else None,
        )
        if status.state in ("running", "degraded"):
            self._budget.running(now)
        self._status = status
        self._on_report(status, word.changed, word.gate_open)

    def _set_state(self, state: str, reason: str | None, **facts: object) -> None:
        self._status = msgspec.structs.replace(
            self._status,
            state=state,
            stop_reason=reason,
            restart_budget=self._budget.left,
            pid=self._process.pid if self._process else None,
            **facts,
        )
        self._on_report(self._status, True, None)

    def _watch(self, now: float, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        if self._process is None:
            if self._restart_at is not None and now >= self._restart_at and self._config is not None:
                self._restart_at = None
                self._spawn(context)
                self._order_config()
            return
        code = self._process.poll()
        if code is not None:
            self._hear(now)
            self._reap(code, now)
            return
        if self._stop_asked_at is not None:
            waited = now - self._stop_asked_at
            if waited > 2 * STOP_S:
                self._process.kill()
            elif waited > STOP_S:
                self._process.terminate()
        elif now - self._heard_at > SILENT_WORKER_S:
            log.error("session %s: its worker has been silent for %.0f s and is killed", self.name, SILENT_WORKER_S)
            self._process.kill()

    def _spawn(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._spawned += 1
        self._endpoint = self._runtime_dir / f"w{os.getpid()}-{self._spawned}-{abs(hash(self.name)) % 10000}"
        link = context.socket(zmq.PAIR)
        link.setsockopt(zmq.LINGER, 0)
        link.setsockopt(zmq.SNDHWM, 1000)
        link.bind(f"ipc://{self._endpoint}")
        os.chmod(self._endpoint, 0o600)
        self._link = link
        self._log_dir.mkdir(parents=True, exist_ok=True)
        with open(self._worker_log, "wb") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "myna.daemon.live.worker",
                    f"ipc://{self._endpoint}",
                    str(os.getpid()),
                    self.name,
                ],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=child_environment(**self._environment),
            )
        self._heard_at = time.monotonic() + 20.0  # the first word comes after the imports
        self._stop_asked_at = None

    def _order_config(self) -> None:
        if self._config is not None:
            self._outbox.append(encode(Configure(id=self.next_id(), config=self._config, resumed=True)))

    @property
    def _worker_log(self) -> Path:
        return self._log_dir / f"live-{self.name}.log"

    def _reap(self, code: int, now: float) -> None:
        assert self._process is not None
        asked = self._stop_asked_at is not None
        self._process = None
        self._outbox.clear()
        if self._link is not None:
            self._link.close(0)
            self._link = None
        if self._endpoint is not None:
            self._endpoint.unlink(missing_ok=True)
        self._stop_asked_at = None
        if asked or self._config is None:
            for identity in list(self._pending):
                self._pending.pop(identity)(Answer(id=identity))
            self._set_state("stopped", "asked")
            return
        hung = code == DEVICE_HUNG
        cause = "the device was lost and does not close" if hung else describe_exit(code, self._worker_log)
        log.error("session %s: its worker died (%s)", self.name, cause)
        message = f"The worker of session {self.name!r} died ({cause}); it is being restarted."
        self._fail_pending("worker_crashed", message)
        wait = self._budget.crashed(now)
        if wait is None:
            self._config = None
            self._set_state("failed", f"worker died too often, last: {cause}", restarts=self._status.restarts + 1)
            return
        state, reason = ("reconnecting", cause) if hung else ("starting", f"worker died: {cause}")
        self._set_state(state, reason, restarts=self._status.restarts + 1)
        self._restart_at = now + wait

    def _fail_pending(self, code: str, message: str) -> None:
        for identity in list(self._pending):
            self._pending.pop(identity)(Answer(id=identity, code=code, message=message))


def describe_exit(code: int, log_file: Path) -> str:
    """The signal or exit status in words, with the last line that the process wrote."""
    if code < 0:
        try:
            what = signal.Signals(-code).name
        except ValueError:
            what = f"signal {-code}"
    else:
        what = f"exit status {code}"
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return f"{what}: {lines[-1][:200]}" if lines else what


def rss_bytes(pid: int | None) -> int | None:
    """Resident memory of a process, None if it can't be measured."""
    if pid is None:
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def raise_answer(answer: Answer) -> Answer:
    """The answer, or its error as MynaError."""
    if answer.code is not None:
        raise MynaError(answer.code, answer.message, **answer.facts)
    return answer
