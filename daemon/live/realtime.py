"""Real-time priority for a thread: asked for, never required."""

import contextlib
import os
import sys
from collections.abc import Iterator

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
