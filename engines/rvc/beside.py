"""One piece of work on a thread of its own, beside what the caller does."""

import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Beside:
    """A helper thread that runs at whatever priority its caller has, so that the caller never waits for less.

    A block loop at real-time priority that waits for an ordinary thread waits for every other program too.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._scheduled: tuple[int, int] | None = None  # policy and priority of the helper, once it has taken one

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Begin; the caller asks for the result before it comes again, also where its own work fails."""
        wanted = _scheduling()
        return self._thread.submit(self._run, work, wanted)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _run(self, work: Callable[[], T], wanted: tuple[int, int] | None) -> T:
        if wanted is not None and wanted != self._scheduled:
            with contextlib.suppress(OSError):  # a service gave the caller its own; what it waits for is slower then
                os.sched_setscheduler(0, wanted[0], os.sched_param(wanted[1]))
            self._scheduled = wanted
        return work()


def _scheduling() -> tuple[int, int] | None:
    """Policy and priority of the calling thread; None where the system has none to copy."""
    if sys.platform != "linux":
        return None
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(0).sched_priority
