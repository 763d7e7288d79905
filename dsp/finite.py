"""The guard that no NaN, infinity, denormal or absurdity passes."""

import numpy as np

from myna.dsp.fades import equal_gain
from myna.dsp.stage import Block

MOST = np.float32(1000.0)  # 60 dB over full scale is no sound, and stays in every level that follows it for minutes
_TINY = np.float32(np.finfo(np.float32).tiny)


class Finite:
    """Replaces every block that holds a NaN, an infinity or more than ±1000 by silence, faded at its edges; counts it.

    The whole block goes, since what stands beside a NaN in a model's output is rarely sound. The value last
    played fades out over `fade_frames` while what comes next fades in over as many. Denormals become zero:
    one of them in a recursive filter slows a CPU tenfold. Any other signal passes without delay and unchanged.
    """

    _last: np.float32
    _held: np.float32
    _fallen: int
    _rising: int

    def __init__(self, fade_frames: int = 64) -> None:
        if fade_frames < 1:
            raise ValueError("fade_frames must be at least 1")
        self._rise = equal_gain(fade_frames)
        self._fall = self._rise[::-1].copy()
        self.bad_blocks = 0
        self.reset()

    @property
    def latency_frames(self) -> int:
        """None."""
        return 0

    def process(self, block: Block) -> Block:
        """Pass a good block, shape (frames,); silence instead of a bad one."""
        if len(block) == 0:
            return np.zeros(0, np.float32)
        if np.max(np.abs(block)) <= MOST:  # False for NaN
            out = block.copy()
            self._fade_in(out)
        else:
            self.bad_blocks += 1
            out = np.zeros(len(block), np.float32)
            if self._rising > 0:  # sound was heard since the last bad block: what fades is that
                self._held, self._fallen = self._last, 0
            self._rising = 0
        self._fade_out(out)
        out[np.abs(out) < _TINY] = 0.0
        self._last = out[-1]
        return out

    def reset(self) -> None:
        """Forget all sound; the count of bad blocks stays, it is its owner's to read."""
        self._last = self._held = np.float32(0.0)
        self._fallen = self._rising = len(self._rise)  # frames of each fade already played

    def _fade_in(self, out: Block) -> None:
        size = min(len(self._rise) - self._rising, len(out))
        if size > 0:
            out[:size] *= self._rise[self._rising : self._rising + size]
            self._rising += size

    def _fade_out(self, out: Block) -> None:
        size = min(len(self._fall) - self._fallen, len(out))
        if size > 0:
            out[:size] += self._held * self._fall[self._fallen : self._fallen + size]
            self._fallen += size
