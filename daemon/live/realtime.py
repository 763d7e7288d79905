"""Real-time priority for a thread: asked for, never required."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

PRIORITY = 20  # below the sound server's and the device callback's
BESIDE = PRIORITY - 1  # for what is timed while a loop may run: the loop goes first


def ask_realtime(priority: int = PRIORITY) -> str:
    """Ask for it for the calling thread; says in words what was had."""
    if sys.platform != "linux":
        return "not asked on this platform"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return f"refused ({error.strerror}): see `myna doctor`"
    return f"SCHED_FIFO {priority}"


def leave_realtime() -> str:
    """Back to the usual scheduling for the calling thread; says so in words."""
    if sys.platform != "linux":
        return "not asked on this platform"
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return "given up while the voice leaves the processor no time"


class Courtesy:
    """Takes real-time priority back from the calling thread while it leaves the processor no time.

    A voice that is too slow computes without a pause. At real-time priority it would hold a processor for good: on a
    machine with two, the desktop and the sound server's own clients starve while the sound is broken anyway.
    The share is of the thread's own processor time, so that others that take the processor away don't count.
    """

    LOOK_S = 1.0
    TOO_MUCH, ENOUGH_LEFT = 0.93, 0.85  # Linux keeps 5 % of a processor from real-time threads while others wait for it

    def __init__(
        self,
        wall_s: Callable[[], float] = time.monotonic,
        worked_s: Callable[[], float] = time.thread_time,
        ask: Callable[[], str] = ask_realtime,
        leave: Callable[[], str] = leave_realtime,
    ) -> None:
        self._wall, self._worked, self._ask, self._leave = wall_s, worked_s, ask, leave
        self.told = ask()
        self._given_up = False
        self._since = self._wall(), self._worked()

    def look(self) -> None:
        """Call it often, on the thread."""
        now_s = self._wall()
        if now_s - self._since[0] < self.LOOK_S:
            return
        worked_s = self._worked()
        share = (worked_s - self._since[1]) / (now_s - self._since[0])
        self._since = now_s, worked_s
        if share > self.TOO_MUCH and not self._given_up:
            self._given_up, self.told = True, self._leave()
        elif share < self.ENOUGH_LEFT and self._given_up:
            self._given_up, self.told = False, self._ask()


@contextlib.contextmanager
def realtime(priority: int) -> Iterator[None]:
    """Run the calling thread for a while nearly as the block loop runs, where that is allowed."""
    if sys.platform != "linux":
        yield
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    ask_realtime(priority)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, before, parameters)
