"""Gain curves: how one sound gives way to another, or a gain to another gain, without a click."""

import math

import numpy as np
from numpy.typing import NDArray

from myna.dsp.stage import Block

Curve = NDArray[np.float32]
"""A rising gain, shape (frames,), from about 0 to about 1; the falling gain is its mirror image."""


def linear(frames: int) -> Curve:
    """Straight line, centred on the frames: (n + ½) / frames. Its mirror is 1 − curve."""
    return ((np.arange(frames) + 0.5) / max(frames, 1)).astype(np.float32)


def equal_gain(frames: int) -> Curve:
    """Raised cosine. Its mirror is 1 − curve: amplitudes add to 1, for two sounds that are alike."""
    return np.square(np.sin(0.5 * np.pi * (np.arange(frames) + 0.5) / max(frames, 1))).astype(np.float32)


def equal_power(frames: int) -> Curve:
    """Quarter sine. Squares of curve and mirror add to 1, for two sounds that have nothing in common."""
    return np.sin(0.5 * np.pi * (np.arange(frames) + 0.5) / max(frames, 1)).astype(np.float32)


def crossfade(a: Block, b: Block, curve: Curve) -> Block:
    """Go from `a` to `b`, all of shape (frames,), along a rising `curve`.

    Raises:
        ValueError: lengths differ.
    """
    if not len(a) == len(b) == len(curve):
        raise ValueError(f"crossfade of {len(a)} and {len(b)} frames along a curve of {len(curve)}")
    return (a * curve[::-1] + b * curve).astype(np.float32)


class Switch:
    """A gain that goes between exactly 0 and exactly 1 along a raised cosine, from wherever it is.

    Positions are float64 and move by whole steps, so that any split into blocks gives the same gains.
    """

    def __init__(self, rise_frames: int, fall_frames: int, *, on: bool = False) -> None:
        if rise_frames < 1 or fall_frames < 1:
            raise ValueError("a switch needs at least one frame to rise and to fall")
        self._rise = 1.0 / rise_frames
        self._fall = 1.0 / fall_frames
        self._start = 1.0 if on else 0.0
        self.phase = self._start

    def times(self, rise_frames: int, fall_frames: int) -> None:
        """Take new durations from the next frame on."""
        if rise_frames < 1 or fall_frames < 1:
            raise ValueError("a switch needs at least one frame to rise and to fall")
        self._rise, self._fall = 1.0 / rise_frames, 1.0 / fall_frames

    def apply(self, out: Block, on: bool) -> None:
        """Multiply `out`, shape (frames,), in place while moving towards `on`."""
        frames = len(out)
        if frames == 0:
            return
        if self.phase == (1.0 if on else 0.0):
            if not on:
                out[:] = 0.0
            return
        step = self._rise if on else -self._fall
        phase = np.clip(self.phase + step * np.arange(1, frames + 1), 0.0, 1.0)
        # A rounding error must not leave it a hair short of its end for ever.
        phase[phase > 1.0 - 1e-9] = 1.0
        phase[phase < 1e-9] = 0.0
        self.phase = float(phase[-1])
        out *= np.square(np.sin(0.5 * np.pi * phase)).astype(np.float32)

    def reset(self) -> None:
        """Back to the position right after construction."""
        self.phase = self._start


class Ramp:
    """A gain stage: moves in dB, along a raised cosine, to a new target over `ramp_ms`.

    0 dB at rest passes the input through bit by bit; −inf is exact silence. To and from silence it moves in
    amplitude instead, since no finite slope in dB gets there. Continuous across blocks; a new target during a
    move starts from the gain reached.
    """

    def __init__(self, rate_hz: int, *, gain_db: float = 0.0, ramp_ms: float = 20.0) -> None:
        self._frames = max(1, round(rate_hz * ramp_ms / 1000.0))
        self._initial_db = gain_db
        self._gain = _amplitude(gain_db)
        self._from = self._to = self._gain
        self._at = self._frames

    @property
    def latency_frames(self) -> int:
        """None."""
        return 0

    @property
    def gain_db(self) -> float:
        """Where the gain is, or is going."""
        return 20.0 * math.log10(self._to) if self._to > 0.0 else -math.inf

    def set(self, gain_db: float) -> None:
        """Move to `gain_db` (−inf: silence) from the next frame on. ValueError if it is NaN or +inf."""
        target = _amplitude(gain_db)
        if target == self._to:
            return
        self._from, self._to, self._at = self._gain, target, 0

    def process(self, block: Block) -> Block:
        """Apply the gain to a block, shape (frames,)."""
        moving = min(self._frames - self._at, len(block))
        out = block.copy()
        if moving > 0:
            gains = self._curve(self._at + 1 + np.arange(moving))
            out[:moving] *= gains.astype(np.float32)
            self._gain = float(gains[-1])
            self._at += moving
        if moving < len(block):
            self._gain = self._to
            if self._to == 0.0:
                out[moving:] = 0.0
            elif self._to != 1.0:
                out[moving:] *= np.float32(self._to)
        return out

    def reset(self) -> None:
        """Back to the gain given at construction."""
        self._gain = self._from = self._to = _amplitude(self._initial_db)
        self._at = self._frames

    def _curve(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        way = np.square(np.sin(0.5 * np.pi * index / self._frames))
        if self._from == 0.0 or self._to == 0.0:
            return np.asarray(self._from + way * (self._to - self._from), np.float64)
        return np.asarray(self._from * np.exp(way * math.log(self._to / self._from)), np.float64)


def _amplitude(gain_db: float) -> float:
    if math.isnan(gain_db) or gain_db == math.inf:
        raise ValueError(f"no such gain: {gain_db} dB")
    return float(10.0 ** (gain_db / 20.0))
