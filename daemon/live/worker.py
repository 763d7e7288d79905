"""The live worker's process: orders in, words out, one session in between."""

import ctypes
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from typing import Any

import zmq

from myna.control.contract import CheckReply, LatencyReply, RecordReply
from myna.control.errors import MynaError
from myna.daemon.audio.backend import DeviceError
from myna.daemon.audio.portaudio import hung_streams
from myna.daemon.audio.realtime import Spinning
from myna.daemon.live.messages import (
    DEVICE_HUNG,
    Answer,
    Check,
    Configure,
    MeasureLatency,
    Order,
    Record,
    Report,
    Said,
    Stop,
    Word,
    decode_order,
    encode,
)
from myna.daemon.live.session import LiveSession
from myna.daemon.parent import die_with_parent
from myna.engines.base import (
    BackendUnavailable,
    EngineError,
    MissingAsset,
    ModelUnusable,
    OutOfMemory,
    ParameterRefused,
)

REPORT_S = 0.1
POLL_MS = 10
SWITCH_INTERVAL_S = 0.0005  # the loop gets the interpreter lock back ten times sooner than by default

# From the engines' tree and the devices' errors to the wire's codes.
CODES: tuple[tuple[type[Exception], str], ...] = (
    (MissingAsset, "missing_asset"),
    (ModelUnusable, "model_unusable"),
    (ParameterRefused, "bad_request"),
    (OutOfMemory, "compute_unavailable"),
    (BackendUnavailable, "compute_unavailable"),
    (EngineError, "failed"),
    (ImportError, "missing_asset"),
    (DeviceError, "device_unavailable"),
)


def answer_of(identity: int, error: Exception | None, **results: Any) -> Answer:
    """The answer to an order: its results, or the wire's code for its error."""
    if error is None:
        return Answer(id=identity, **results)
    if isinstance(error, MynaError):
        return Answer(id=identity, code=error.code, message=error.message, facts=error.facts)
    code = next((c for kind, c in CODES if isinstance(error, kind)), "internal")
    facts = dict(getattr(error, "facts", {}))
    if isinstance(error, OutOfMemory):
        facts["reason"] = "out_of_memory"
    message = str(error)
    if isinstance(error, ImportError):
        message = f"A package is missing ({error}): pip install 'myna[daemon]', for RVC voices 'myna[rvc]'."
    if code == "internal":
        message = f"A bug of ours ended this: {type(error).__name__}. The log tells more."
    return Answer(id=identity, code=code, message=message, facts=facts)


class Worker:
    """Speaks with the supervisor on the main thread; everything else is the session's."""

    def __init__(self, endpoint: str, name: str) -> None:
        self._link: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._link.setsockopt(zmq.LINGER, 500)
        self._link.connect(endpoint)
        self._words: deque[Said] = deque()
        self._answers: deque[tuple[int, Exception | None, dict[str, Any]]] = deque()
        self._changed = threading.Event()
        self._session = LiveSession(name, self._changed.set)
        self._session.log = lambda level, message: self._words.append(Said(level=level, message=message))
        self._spinning = Spinning()
        self._ending = False
        self.exit_code = 0

    def run(self) -> None:
        """Until told to stop."""
        next_report = 0.0
        while not self._ending:
            busy = self._words or self._answers or self._changed.is_set()
            if self._link.poll(0 if busy else POLL_MS):
                self._take(decode_order(self._link.recv()))
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            now = time.monotonic()
            # The state goes first, so that who waits for an answer sees what it led to.
            changed = self._changed.is_set() or bool(answers)
            if changed or now >= next_report:
                self._changed.clear()
                self._say(Report(status=self._session.status(), changed=changed, gate_open=self._session.gate_open))
                next_report = now + REPORT_S
            for identity, error, results in answers:
                self._say(answer_of(identity, error, **results))
            while self._words:
                self._say(self._words.popleft())
            if self._spinning.look():
                self._say(
                    Said(level="warning", message="the sound system spins; its real-time priority was taken away")
                )
            if hung_streams():
                # Its threads may spin for ever, at real-time priority: only the end of the process ends them.
                self._say(Said(level="error", message="the sound system did not let go of a lost device"))
                self._ending, self.exit_code = True, DEVICE_HUNG
        self._link.close()
        zmq.Context.instance().term()  # the last words go out

    def _say(self, word: Word) -> None:
        try:
            self._link.send(encode(word), zmq.NOBLOCK)
        except zmq.Again:  # the supervisor is suspended: a report is worth nothing later
            return

    def _take(self, order: Order) -> None:
        session = self._session
        identity = order.id
        if isinstance(order, Configure):
            session.configure(order.config, lambda error: self._answer(identity, error), resumed=order.resumed)
        elif isinstance(order, Record):
            session.record(order.path, order.source, lambda got: self._answer_value(identity, got))
        elif isinstance(order, MeasureLatency):
            session.measure_latency(order.request, lambda got: self._answer_value(identity, got))
        elif isinstance(order, Check):
            session.check(order.voice, lambda got: self._answer_value(identity, got))
        elif isinstance(order, Stop):
            session.stop()
            self._say(Report(status=session.status(), changed=True))
            self._say(Answer(id=identity))
            self._ending = True

    def _answer_value(self, identity: int, got: LatencyReply | CheckReply | RecordReply | Exception) -> None:
        if isinstance(got, Exception):
            self._answer(identity, got)
        elif isinstance(got, LatencyReply):
            self._answer(identity, None, latency=got)
        elif isinstance(got, CheckReply):
            self._answer(identity, None, check=got)
        else:
            self._answer(identity, None, record=got)

    def _answer(self, identity: int, error: Exception | None, **results: Any) -> None:
        """From any thread, the loop's too: the main thread makes words of it."""
        self._answers.append((identity, error, results))


def hold_the_lock(shortest_ms: float, longest_ms: float) -> None:
    """Test hook: hold the interpreter lock for random times, as an extension that forgets to let go would."""
    hold = ctypes.PyDLL(None).usleep
    dice = random.Random(1)
    while True:
        hold(int(1000 * dice.uniform(shortest_ms, longest_ms)))
        time.sleep(0.2)


def main() -> None:
    """Arguments: endpoint, the parent's pid, the session's name."""
    endpoint, parent, name = sys.argv[1:4]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is the supervisor's to act on
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if held := os.environ.get("MYNA_TEST_HOLD_LOCK_MS"):
        shortest, longest = map(float, held.split(":"))
        threading.Thread(target=hold_the_lock, args=(shortest, longest), daemon=True).start()
    worker = Worker(endpoint, name)
    worker.run()
    sys.stderr.flush()
    os._exit(worker.exit_code)  # PortAudio's own clean-up at exit can hang on a dead sound server


if __name__ == "__main__":
    main()
