"""When a crashed worker may start again: pure arithmetic on times."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RestartBudget:
    """Backoff and a budget of restarts that is given back after a stable while.

    The first restart is immediate (a kill must be back within seconds), then waits double up to `longest_s`.
    """

    size: int = 8
    first_s: float = 0.0
    base_s: float = 0.5
    longest_s: float = 15.0
    stable_s: float = 60.0
    used: int = field(default=0, init=False)
    _started_at: float | None = field(default=None, init=False)

    @property
    def left(self) -> int:
        """Restarts that are left."""
        return max(0, self.size - self.used)

    def running(self, now_s: float) -> None:
        """The worker runs; called at any rate. Gives the budget back after `stable_s` of running."""
        if self._started_at is None:
            self._started_at = now_s
        elif self.used and now_s - self._started_at >= self.stable_s:
            self.used = 0

    def crashed(self, now_s: float) -> float | None:
        """The worker died. Returns the seconds to wait before a restart, or None when the budget is spent."""
        if self._started_at is not None and now_s - self._started_at >= self.stable_s:
            self.used = 0
        self._started_at = None
        if self.used >= self.size:
            return None
        self.used += 1
        if self.used == 1:
            return self.first_s
        return float(min(self.longest_s, self.base_s * 2.0 ** (self.used - 2)))

    def forgive(self) -> None:
        """A user asked for a start: the budget is whole again."""
        self.used = 0
        self._started_at = None


@dataclass(slots=True)
class Backoff:
    """Waits between tries that go on for ever: doubling from `first_s` up to `longest_s`.

    A device that returns must be live again within three seconds, so the longest wait stays below one.
    """

    first_s: float = 0.1
    longest_s: float = 0.8
    _next_s: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Seconds to wait before the next try."""
        wait = self._next_s or self.first_s
        self._next_s = min(self.longest_s, wait * 2)
        return wait

    def reset(self) -> None:
        """A try succeeded."""
        self._next_s = 0.0
