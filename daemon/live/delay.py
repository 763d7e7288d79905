"""How far ahead of need a block is finished, and how long a block is: pure decisions on measured times."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

BLOCK_CHOICES_MS = tuple(map(float, (10, 20, 40, 60, 80, 100, 140, 200, 250, 300, 400, 500, 700, 1000, 1500)))
TARGET_LOAD = 0.70
ADVICE_LOAD = 0.80
STEP_KNOWN_S = 1.0  # within which it is known that a clock took a step


class ComputeTimes:
    """The last compute times of one block length, in ms."""

    def __init__(self, size: int = 256) -> None:
        self._ring = np.zeros(size)
        self._count = 0

    def add(self, compute_ms: float) -> None:
        """Take one block's time."""
        self._ring[self._count % len(self._ring)] = compute_ms
        self._count += 1

    def clear(self) -> None:
        """Forget all: the block length or the voice changed."""
        self._count = 0

    @property
    def count(self) -> int:
        """Blocks counted since the last clear."""
        return self._count

    def percentile(self, q: float, newest: int | None = None) -> float | None:
        """The q-th percentile in ms of the `newest` blocks (None: of all that are kept), None before any."""
        size = min(self._count, len(self._ring), len(self._ring) if newest is None else newest)
        if not size:
            return None
        return float(np.percentile(self._ring[np.arange(self._count - size, self._count) % len(self._ring)], q))


@dataclass(slots=True)
class Prefill:
    """The time between a block's last input frame and the moment its first output frame is needed.

    It starts at what was measured at warm-up (p99 of compute, plus what periods ask for). A late block raises it at
    once by what was missing, up to `ceiling_ms`; after a calm while it goes back. After an overload (compute
    longer than the block) it goes back at once that compute has recovered. A block that comes a little late for any
    other reason (another program, or a hypervisor, took the processor) keeps the higher level for a minute, and for ten
    if that was not enough: on a shared machine one comes every few minutes (measured), and each would be heard. One
    that comes very late is not waited for the next time, unless that is within a minute.
    """

    nominal_ms: float
    ceiling_ms: float
    quick_s: float = 0.5
    slow_s: float = 60.0
    little_ms: float = 15.0
    level_ms: float = field(init=False)
    _calm_since_s: float = field(init=False, default=0.0)
    _needed_ms: float = field(init=False, default=0.0)
    _returned_at_s: float = field(init=False, default=-1e9)
    _hold_s: float = field(init=False, default=0.0)
    _before_ms: float = field(init=False, default=0.0)  # the level before the latest late blocks
    _late_at_s: float = field(init=False, default=-1e9)

    def __post_init__(self) -> None:
        self.level_ms = self.nominal_ms
        self._hold_s = self.quick_s

    def late(self, by_ms: float, held_ms: float, now_s: float, *, overload: bool) -> float:
        """A block came `by_ms` too late while `held_ms` were held. Returns the new level."""
        since_s = now_s - self._returned_at_s
        if now_s - self._late_at_s > STEP_KNOWN_S:
            self._before_ms = self.level_ms
        self._late_at_s = now_s
        if overload:
            self._hold_s = self.quick_s
        elif by_ms <= self.little_ms:
            self._hold_s = self.slow_s if since_s > 10 * self.slow_s else 10 * self.slow_s
        else:
            self._hold_s = self.slow_s if since_s < self.slow_s else self.quick_s
        self._begin_calm(now_s)
        wanted = max(self.level_ms, held_ms) + by_ms + 1.0
        self.level_ms = float(min(self.ceiling_ms, max(self.level_ms, wanted)))
        return self.level_ms

    def calm(self, needed_ms: float, now_s: float, *, overload: bool) -> float:
        """A block was in time and needed `needed_ms` (compute, and what periods ask for). Returns the level.

        It goes back to nominal, or to the most that was needed in the calm while where that is more.
        """
        if self.level_ms <= self.nominal_ms:
            return self.level_ms
        self._needed_ms = max(self._needed_ms, needed_ms)
        if overload:
            self._begin_calm(now_s)
        elif now_s - self._calm_since_s >= self._hold_s:
            # A hair over nominal is nominal: what it was measured by varies by as much.
            level = self.nominal_ms if self._needed_ms <= self.nominal_ms + 0.5 else self._needed_ms + 1.0
            if level < self.level_ms:
                self.level_ms = level
                self._returned_at_s = now_s
            self._begin_calm(now_s)
        return self.level_ms

    def forgive(self, now_s: float) -> float:
        """The latest late blocks were late because a device lost sound, not by our doing: the level is as before."""
        if now_s - self._late_at_s <= STEP_KNOWN_S:
            self.level_ms = min(self.level_ms, max(self.nominal_ms, self._before_ms))
            self._begin_calm(now_s)
        return self.level_ms

    def _begin_calm(self, now_s: float) -> None:
        self._calm_since_s = now_s
        self._needed_ms = 0.0

    def renominate(self, nominal_ms: float, ceiling_ms: float) -> None:
        """Another block length or setting asks for another nominal level."""
        raised = self.level_ms > self.nominal_ms
        self.nominal_ms, self.ceiling_ms = nominal_ms, max(nominal_ms, ceiling_ms)
        self.level_ms = min(max(self.level_ms, nominal_ms), self.ceiling_ms) if raised else nominal_ms


@dataclass(slots=True)
class BlockLength:
    """`block = auto`: grows on misses that a longer block would mend, shrinks back after a calm minute."""

    choices_ms: tuple[float, ...]  # ascending; the smallest that holds at warm-up first
    calm_s: float = 60.0
    misses_to_grow: int = 3
    within_s: float = 5.0
    _at: int = field(init=False, default=0)
    _misses: list[float] = field(init=False, default_factory=list)
    _changed_s: float = field(init=False, default=0.0)

    @property
    def block_ms(self) -> float:
        """The length now."""
        return self.choices_ms[self._at]

    def missed(self, load: float, expected_load: Callable[[float], float], now_s: float) -> float | None:
        """A block was late. Returns a new length when it must grow.

        Args:
            load: Compute over block length as measured in recent blocks.
            expected_load: Of a block length in ms, as measured at warm-up.

        A longer block mends a load whose fixed part is large: the shortest one that should hold is taken. Where load is
        low, something else made the block late; where compute grows with the block, a longer one only adds delay:
        both are left to the prefill.
        """
        self._misses = [at for at in self._misses if now_s - at < self.within_s] + [now_s]
        if len(self._misses) < self.misses_to_grow or self._at + 1 >= len(self.choices_ms) or load <= TARGET_LOAD:
            return None
        slower = load / max(expected_load(self.block_ms), 1e-9)  # than at warm-up
        holds = (
            n for n, ms in enumerate(self.choices_ms) if n > self._at and slower * expected_load(ms) <= TARGET_LOAD
        )
        longer = next(holds, None)
        if longer is None:
            return None
        self._misses.clear()
        self._at = longer
        self._changed_s = now_s
        return self.block_ms

    def calm(self, p95_ms: float, now_s: float) -> float | None:
        """No miss in this block. Returns a new length when it may shrink: the shorter one would hold too."""
        if self._at == 0 or now_s - self._changed_s < self.calm_s:
            return None
        if self._misses and now_s - self._misses[-1] < self.calm_s:
            return None
        shorter = self.choices_ms[self._at - 1]
        if p95_ms > TARGET_LOAD * shorter:
            return None
        self._at -= 1
        self._changed_s = now_s
        return self.block_ms


def jitter_ms(block_ms: float, period_ms: float, duplex: bool) -> float:
    """What prefill must cover beside compute: that callbacks bring and take whole periods.

    A block of whole periods on one clock is complete in the very callback that brings its last period, and its first
    frame is wanted a period later at the earliest: that much is slack already. A period more lets a block take 10 ms
    longer than its p99 with 10 ms periods; on a shared machine a thread at real-time priority was late by up to 12 ms
    twice in four minutes (measured). Worked example: block 20, period 10, compute 1: the frame captured at 0 is whole
    at 20, written at 21, wanted at 20 + 1 + 10, which is by a callback that comes at 40.
    """
    whole = duplex and abs(block_ms / period_ms - round(block_ms / period_ms)) < 1e-6
    return period_ms if whole else 1.5 * period_ms


def fixed_prefill_ms(prefill_ms: float, block_ms: float, period_ms: float) -> float:
    """What a user's own `prefill_ms` comes to: finished sound that waits while a whole block is in work.

    So much may anything stop the interpreter without a gap: `prefill_ms`, a block and a period.
    """
    return prefill_ms + block_ms + period_ms


def advice(load: float | None, block_ms: float, p95_ms: float | None) -> str | None:
    """What to tell a user whose load is above 80 %: the block that would bring it to 70 %, at most 1500 ms."""
    if load is None or p95_ms is None or load <= ADVICE_LOAD:
        return None
    # Compute grows with the block less than in proportion, so this is on the safe side.
    wanted = min(1500.0, float(np.ceil(block_ms * load / TARGET_LOAD / 10.0) * 10.0))
    if load > 1.0 and wanted >= 1500.0:
        return (
            f"The voice needs {load:.0%} of the time there is: no block length mends that. "
            "Choose a lighter voice or f0 method."
        )
    return f"Load is {load:.0%}: set block_ms={wanted:.0f} for about 70 %."


def peers_estimate_ms(block_ms: float, crossfade_ms: float, device_in_ms: float, device_out_ms: float) -> float:
    """The delay of the usual scheme: block, crossfade, 10 ms of search, another block of prefill, devices."""
    return block_ms + crossfade_ms + 10.0 + block_ms + device_in_ms + device_out_ms
