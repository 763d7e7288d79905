"""Real-time priority for the threads that a sound library starts."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PRIORITY = 35  # below a sound server's own (pulse and pipewire: 40 here, 88 by rtkit), above everything else


class Realtime:
    """Lends the calling thread SCHED_FIFO while a library starts threads, which inherit it; then takes it back.

    The calling thread itself must not keep it: a block loop at real-time priority would starve the machine when a
    voice is too slow. What came of it is in `told`, from the scheduler's own answer, not from what was asked.
    """

    def __init__(self) -> None:
        self.told = "not asked"
        self._threads_with_it: set[int] = set()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Threads started inside inherit real-time priority where the system permits it."""
        if sys.platform != "linux":
            self.told = "left to the system's sound service"
            yield
            return
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        before = _threads()
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        except OSError as error:
            self.told = f"not permitted: {error.strerror}"
            yield
            return
        try:
            yield
        finally:
            os.sched_setscheduler(0, policy, parameters)
        self._look(_threads() - before)

    def _look(self, started: set[int]) -> None:
        for thread in started:
            with contextlib.suppress(OSError):  # it may have ended already
                if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO:
                    self._threads_with_it.add(thread)
        if self._threads_with_it:
            self.told = f"SCHED_FIFO {PRIORITY}"
        else:
            self.told = "permitted, but no thread of the sound library took it"


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
