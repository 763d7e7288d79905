"""The last guard of the level: nothing leaves above the ceiling."""

import numpy as np

from myna.dsp.stage import Block

HELD_DB = 12.0
"""Largest gain reduction that outlasts the sample that needed it."""


class Limiter:
    """Soft limiter without look-ahead: output never exceeds `ceiling_db`, whatever comes in.

    Below the knee the input passes bit by bit. Within `knee_db` below the ceiling the level bends over
    smoothly; the gain reduction is let go of at `release_db_per_s`, so that only the first half wave of a
    loud sound is shaped, and the rest is turned down undistorted. What is needed beyond HELD_DB is not held:
    one monstrous sample must not silence the seconds after it. A continuous curve of the sample: no click.
    """

    latency_frames = 0

    def __init__(
        self,
        rate_hz: int,
        *,
        ceiling_db: float = -1.0,
        knee_db: float = 6.0,
        release_db_per_s: float = 60.0,
        enabled: bool = True,
    ) -> None:
        self._ceiling_db, self._knee_db = ceiling_db, knee_db
        self._ceiling = np.float32(np.nextafter(np.float32(10.0 ** (ceiling_db / 20.0)), np.float32(0.0)))
        # The knee spans ceiling − knee … ceiling + knee at the input; reduction starts at its foot.
        self._foot = np.float32(10.0 ** ((ceiling_db - knee_db) / 20.0))
        self._release = release_db_per_s / rate_hz
        self.enabled = enabled
        self._reduction_db = 0.0

    @property
    def reduction_db(self) -> float:
        """How far the sound is turned down right now, in dB, >= 0."""
        return self._reduction_db

    def process(self, block: Block) -> Block:
        """Limit a block, shape (frames,)."""
        if len(block) == 0:
            return block.copy()
        level = np.abs(block)
        if not self.enabled:
            level = np.zeros_like(level)
        if self._reduction_db == 0.0 and float(level.max()) <= self._foot:
            return block.copy()
        with np.errstate(divide="ignore"):
            over = 20.0 * np.log10(level.astype(np.float64)) - self._ceiling_db
        knee = np.square(np.clip(over + self._knee_db, 0.0, 2.0 * self._knee_db)) / (4.0 * self._knee_db)
        needed = np.where(over > self._knee_db, over, knee)
        # r[n] = max(needed[n], r[n-1] − release) is a running maximum on a tilted axis.
        tilt = self._release * np.arange(1, len(block) + 1)
        kept = np.concatenate([[self._reduction_db], np.minimum(needed, HELD_DB) + tilt])
        held = np.maximum(np.maximum.accumulate(kept)[1:] - tilt, 0.0)
        self._reduction_db = float(held[-1])
        reduction = np.maximum(held, needed)
        out = np.asarray(block * 10.0 ** (-reduction / 20.0), np.float32)
        return np.clip(out, -self._ceiling, self._ceiling) if self.enabled else out

    def reset(self) -> None:
        """Let go at once."""
        self._reduction_db = 0.0
