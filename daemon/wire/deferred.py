"""An answer that comes later than its question was handled."""

import threading
from collections.abc import Callable

from myna.control.contract import Message


class Deferred:
    """An answer that comes later. Any thread may give it, once; what comes second is ignored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcome: Message | BaseException | None = None
        self._waiting: list[Callable[[Message | BaseException], None]] = []

    @property
    def done(self) -> bool:
        """Whether the answer was given."""
        return self._outcome is not None

    def resolve(self, message: Message) -> bool:
        """Answer. False if there was an answer already."""
        return self._settle(message)

    def fail(self, error: BaseException) -> bool:
        """Answer with an error. False if there was an answer already."""
        return self._settle(error)

    def on_done(self, call: Callable[[Message | BaseException], None]) -> None:
        """Have `call` told the outcome, at once if it is there, else in the thread that settles it."""
        with self._lock:
            if self._outcome is None:
                self._waiting.append(call)
                return
        call(self._outcome)

    def _settle(self, outcome: Message | BaseException) -> bool:
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(outcome)
        return True
