"""What is known of an attempt while it runs; lost with the daemon, and not missed."""

import time
from collections import deque
from dataclasses import dataclass, field

CPU_SAMPLE_S = 5.0


@dataclass(slots=True)
class Attempt:
    """One try at a job, as far as it has come."""

    number: int
    device: str
    opened_at: float | None = None  # when its voice was there
    audio_s: float | None = None
    progress: float = 0.0
    first_progress: float = 0.0  # what earlier attempts had done
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=3))

    def wants_sample(self) -> bool:
        """Whether it is time to look at its worker's processor time again."""
        return not self.cpu or time.monotonic() - self.cpu[-1][0] >= CPU_SAMPLE_S

    def cpu_share(self, used_s: float | None) -> float | None:
        """Processor seconds per second of late, from all that its worker has used; None: not measured."""
        if used_s is None or not self.cpu or time.monotonic() - self.cpu[0][0] <= 1.0:
            return None
        return max(0.0, used_s - self.cpu[0][1]) / (time.monotonic() - self.cpu[0][0])

    def eta_s(self) -> float | None:
        """Seconds left, from the progress of this attempt; None before there was any."""
        if self.opened_at is None or self.progress <= self.first_progress:
            return None
        spent = time.monotonic() - self.opened_at
        return spent * (1.0 - self.progress) / (self.progress - self.first_progress)
