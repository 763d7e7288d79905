"""Whether the machine has been asleep: streams do not survive it, whatever the host says."""

import time
from collections.abc import Callable

NOTICED_S = 0.5


def _boot_clock() -> float:
    """Seconds that include sleep; where no such clock is known, one that does not."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class SleepWatch:
    """Compares a clock that stands still while the machine sleeps with one that does not (Linux)."""

    def __init__(self, awake: Callable[[], float] = time.monotonic, always: Callable[[], float] = _boot_clock) -> None:
        self._awake, self._always = awake, always
        self._began = always() - awake()

    def slept(self) -> bool:
        """True for good once the machine has slept for half a second since this watch was made."""
        return self._always() - self._awake() - self._began > NOTICED_S
