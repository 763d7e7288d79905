"""A delay of an exact number of frames."""

import numpy as np

from myna.dsp.fades import equal_gain
from myna.dsp.stage import Block

_CHUNK = 4096


class DelayLine:
    """Delays by exactly `frames`; a new delay is crossfaded in over `crossfade_frames`.

    A longer delay needs the past: nothing older than `max_frames` is kept, and before the start (or after a
    reset) there is silence.
    """

    def __init__(self, frames: int, *, max_frames: int | None = None, crossfade_frames: int = 480) -> None:
        self._max = frames if max_frames is None else max_frames
        self._check(frames)
        if crossfade_frames < 1:
            raise ValueError("crossfade_frames must be at least 1")
        self._initial = frames
        self._ring: Block = np.zeros(self._max + _CHUNK, np.float32)
        self._rise = equal_gain(crossfade_frames)
        self._write = 0
        self._now = self._next = self._wanted = frames
        self._faded = len(self._rise)

    @property
    def latency_frames(self) -> int:
        """The delay asked for last; a crossfade to it may still be on its way."""
        return self._wanted

    @property
    def settled(self) -> bool:
        """Whether no crossfade is on its way."""
        return self._now == self._wanted

    def set(self, frames: int) -> None:
        """Change the delay from the next frame on, or after a crossfade on its way. ValueError out of range."""
        self._check(frames)
        self._wanted = frames

    def process(self, block: Block) -> Block:
        """Delay a block, shape (frames,)."""
        out = np.empty(len(block), np.float32)
        at = 0
        while at < len(block):
            if self._now == self._next and self._next != self._wanted:
                self._next, self._faded = self._wanted, 0
            size = min(_CHUNK, len(block) - at)
            if self._now != self._next:
                size = min(size, len(self._rise) - self._faded)
            self._step(block[at : at + size], out[at : at + size])
            at += size
        return out

    def reset(self) -> None:
        """Silence, at the delay given at construction."""
        self._ring[:] = 0.0
        self._write = 0
        self._now = self._next = self._wanted = self._initial
        self._faded = len(self._rise)

    def _step(self, block: Block, out: Block) -> None:
        size = len(block)
        self._store(block)
        self._load(self._now, out)
        if self._now != self._next:
            other = np.empty(size, np.float32)
            self._load(self._next, other)
            rise = self._rise[self._faded : self._faded + size]
            out += rise * (other - out)
            self._faded += size
            if self._faded == len(self._rise):
                self._now = self._next
        self._write = (self._write + size) % len(self._ring)

    def _store(self, block: Block) -> None:
        first = min(len(block), len(self._ring) - self._write)
        self._ring[self._write : self._write + first] = block[:first]
        self._ring[: len(block) - first] = block[first:]

    def _load(self, delay: int, out: Block) -> None:
        start = (self._write - delay) % len(self._ring)
        first = min(len(out), len(self._ring) - start)
        out[:first] = self._ring[start : start + first]
        out[first:] = self._ring[: len(out) - first]

    def _check(self, frames: int) -> None:
        if not 0 <= frames <= self._max:
            raise ValueError(f"a delay of {frames} frames is not within 0..{self._max}")
