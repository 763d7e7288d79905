"""Real-time priority for the threads that a sound library starts."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
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


class Spinning:
    """Takes real-time priority from threads of a sound library that run without a pause.

    PortAudio's thread on ALSA's PulseAudio plugin polls in a loop as long as the server is frozen (measured: one
    core at SCHED_FIFO for as long as that lasted), which starves the machine of just those who could mend it. Such a
    thread plays nothing, so it loses nothing by usual scheduling. The block loop has a priority of its own and sees to
    itself.
    """

    LOOK_S = 1.0
    TOO_MUCH = 0.95  # the kernel itself gives others 5 %

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._used_s: dict[int, float] = {}

    def look(self) -> int:
        """Call it often, on any thread; returns how many threads have lost their priority just now."""
        now_s = self._clock()
        passed_s = now_s - self._looked_s
        if sys.platform != "linux" or passed_s < self.LOOK_S:
            return 0
        before, self._looked_s = self._used_s, now_s
        self._used_s = _used_at_priority()
        tamed = 0
        for thread, used_s in self._used_s.items():
            if used_s - before.get(thread, used_s) > self.TOO_MUCH * min(passed_s, 2 * self.LOOK_S):
                with contextlib.suppress(OSError):  # it may have ended already
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                    tamed += 1
        return tamed


def _used_at_priority() -> dict[int, float]:
    """Processor seconds of this process's threads that have the sound library's priority."""
    found = {}
    for thread in _threads():
        try:
            # After the name in brackets, which may hold anything: state is field 3, utime 14, rt_priority 40.
            fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[37]) == PRIORITY:
            found[thread] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
