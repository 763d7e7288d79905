"""A stream without a sound card: a thread calls the core's callback at the clock's pace, or as fast as it is read."""

import threading
import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from myna.daemon._core import Core
from myna.daemon.audio.backend import StreamFacts
from myna.dsp.stage import Block

DRAIN_S = 1.0  # silence after the end of the input, at least
LONGEST_DRAIN_S = 15.0
RESYNC_S = 0.25  # later than this, the clock starts anew instead of hurrying after lost time
POLL_S = 0.0002


class Feed(Protocol):
    """What is heard."""

    def next(self, frames: int, stop: threading.Event) -> Block:
        """The next frames, fewer only at the end. May wait for its source, not beyond `stop`."""
        ...

    def close(self) -> None:
        """Let go of the source."""
        ...


class Keep(Protocol):
    """Where what is played goes."""

    def put(self, block: Block, wait: bool) -> None:
        """Take a block to own it; `wait`: rather wait than fail when it can't be written as fast."""
        ...

    def finish(self) -> None:
        """Nothing more comes: return when it is safe where it goes."""
        ...

    @property
    def problem(self) -> str | None:
        """Why it can't be kept, None while it can."""
        ...


class ClockedStream:
    """Runs a duplex (or one-sided) core without a device. Implements AudioStream.

    Paced, one period passes every period. Fast, a period passes when the reader waits for input it does not have: it
    has then written all it could, so nothing is ever late, dropped or dry, however slow or fast it computes.
    After the end of `feed` silence is heard until the longest delay seen between reading and writing has passed.
    """

    def __init__(
        self,
        core: Core,
        facts: StreamFacts,
        period_frames: int,
        rate_hz: int,
        feed: Feed | None,
        keep: Keep | None,
        fast: bool,
    ) -> None:
        self._core, self._facts, self._period, self._rate = core, facts, period_frames, rate_hz
        self._feed, self._keep, self._fast = feed, keep, fast
        self._in: NDArray[np.float32] = np.zeros(period_frames, np.float32)
        self._out: NDArray[np.float32] = np.zeros(period_frames, np.float32)
        self._stop = threading.Event()
        self._ended: str | None = None
        self._lag = 0  # largest distance seen between what was read and what was written for it
        self._last: int | None = None  # position after the last frame of the input
        self._closed = False
        # Not a daemon thread: a file that is being finished must not be lost when the process ends.
        self._thread = threading.Thread(target=self._run, name="clocked audio")
        self.problem: str | None = None

    @property
    def facts(self) -> StreamFacts:
        """What was opened."""
        return self._facts

    @property
    def source(self) -> Core | None:
        """The core, if it hears."""
        return self._core if self._facts.rate_in_hz is not None else None

    @property
    def sink(self) -> Core | None:
        """The core, if it plays."""
        return self._core if self._facts.rate_out_hz is not None else None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ended(self) -> str | None:
        """`end_of_file` once all was played and kept, `failed` if it could not be kept or read."""
        return self._ended

    def close(self) -> None:
        """Stop, and keep what was played so far."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._thread.ident is None:
            self._release()
        else:
            self._thread.join(1.0)

    def _run(self) -> None:
        reason: str | None = None
        try:
            reason = self._pass_fast() if self._fast else self._pass_paced()
        except Exception as error:  # told through `ended`: the session decides what follows
            self.problem, reason = str(error), "failed"
        self._release()
        if self._keep is not None and self._keep.problem is not None:
            self.problem, reason = self._keep.problem, "failed"
        self._ended = reason or "closed"

    def _release(self) -> None:
        if self._feed is not None:
            self._feed.close()
        if self._keep is not None:
            self._keep.finish()

    def _pass_paced(self) -> str | None:
        period_s = self._period / self._rate
        due = time.monotonic() + period_s
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            if (reason := self._step()) is not None:
                return reason
            due += period_s
            if time.monotonic() - due > RESYNC_S:
                due = time.monotonic()
        return None

    def _pass_fast(self) -> str | None:
        core = self._core
        while not self._stop.is_set():
            if self._facts.rate_in_hz is not None:
                ready = core.wanted() > core.readable()
            else:  # nobody reads: play what is written
                stats = core.stats()
                ready = stats["written"] >= stats["played"] + self._period
            if not ready:
                time.sleep(POLL_S)
            elif (reason := self._step()) is not None:
                return reason
        return None

    def _step(self) -> str | None:
        """Let one period pass; a reason when that was the last one."""
        heard = 0
        self._in[:] = 0.0
        if self._feed is not None and self._last is None:
            block = self._feed.next(self._period, self._stop)
            heard = len(block)
            self._in[:heard] = block
        hears, plays = self._facts.rate_in_hz is not None, self._facts.rate_out_hz is not None
        self._core.call(self._in if hears else None, self._out if plays else None, self._period)
        if self._keep is not None:
            self._keep.put(self._out.copy(), self._fast)
            if self._keep.problem is not None:
                return "failed"
        stats = self._core.stats()
        self._lag = max(self._lag, stats["written"] - stats["read"])
        if self._feed is None or self._stop.is_set():
            return None
        if self._last is None:
            if heard == self._period:
                return None
            self._last = stats["captured"] - self._period + heard
        drain = min(max(DRAIN_S * self._rate, self._lag + self._period), LONGEST_DRAIN_S * self._rate)
        return "end_of_file" if stats["captured"] >= self._last + drain else None
