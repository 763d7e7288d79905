"""What a session touches of the world outside it: devices, engines, the clock, threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from myna.daemon.audio.backend import AudioStream, Clock, StreamRequest
from myna.daemon.audio.open import open_stream
from myna.daemon.live.builder import Builder, ThreadBuilder
from myna.daemon.live.loop import BlockLoop
from myna.daemon.live.realtime import Courtesy
from myna.engines import registry
from myna.engines.base import EngineSpec


class RunningLoop(Protocol):
    """A block loop at work."""

    @property
    def priority(self) -> str | None:
        """What priority it was given, in words; None while that is not known."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended. At once when called by itself."""
        ...


class LoopThread:
    """A block loop on a thread of its own, at real-time priority where that is allowed."""

    def __init__(self, loop: BlockLoop, ended: Callable[[str], None]) -> None:
        self._courtesy: Courtesy | None = None  # made by the thread that it is for
        self._loop, self._ended = loop, ended
        self._thread = threading.Thread(target=self._run, name="block-loop", daemon=True)
        self._thread.start()

    @property
    def priority(self) -> str | None:
        """See RunningLoop."""
        return self._courtesy.told if self._courtesy else None

    def join(self, timeout_s: float) -> None:
        """See RunningLoop."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._courtesy = Courtesy()
        self._ended(self._loop.run(self._courtesy.look))


@dataclass(frozen=True, slots=True)
class Outside:
    """The seams of a session; the defaults are the real ones."""

    open_stream: Callable[[StreamRequest, bool], AudioStream] = open_stream
    find_engine: Callable[[str], EngineSpec] = registry.find
    clock: Clock = time.perf_counter
    builder: Callable[[str], Builder] = ThreadBuilder
    run_loop: Callable[[BlockLoop, Callable[[str], None]], RunningLoop] = LoopThread
