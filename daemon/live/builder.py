"""Where a session's slow work is done, one piece after the other, now or later."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

Work = Callable[[], None]


class Builder(Protocol):
    """Runs pieces of work in their order; nothing in them may wait for the block loop."""

    def submit(self, work: Work) -> None:
        """Do it when what was given before is done. Ignored once closed. Any thread."""
        ...

    def later(self, seconds: float, work: Work) -> None:
        """Do it after so long. Forgotten when closed before. Any thread."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Finish what was submitted, forget what was for later; False if that takes longer."""
        ...


class ThreadBuilder:
    """A Builder with a thread of its own."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._count = itertools.count()
        self._queue: list[tuple[float, int, Work]] = []  # when (0: at once), order, what
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """See Builder."""
        self._put(0.0, work)

    def later(self, seconds: float, work: Work) -> None:
        """See Builder."""
        self._put(time.monotonic() + seconds, work)

    def close(self, timeout_s: float) -> bool:
        """See Builder."""
        with self._changed:
            self._closing = True
            self._queue = [item for item in self._queue if item[0] == 0.0]
            heapq.heapify(self._queue)
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, when_s: float, work: Work) -> None:
        with self._changed:
            if self._closing:
                return
            heapq.heappush(self._queue, (when_s, next(self._count), work))
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:  # a piece tells its own errors; this one is our bug and must not end the others
                log.exception("a piece of work failed")

    def _next(self) -> Work | None:
        with self._changed:
            while True:
                if self._queue:
                    wait_s = self._queue[0][0] - time.monotonic()
                    if wait_s <= 0.0:
                        return heapq.heappop(self._queue)[2]
                    self._changed.wait(wait_s)
                elif self._closing:
                    return None
                else:
                    self._changed.wait()
