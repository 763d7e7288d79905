"""From the input ring to whole blocks at the session's rate."""

from dataclasses import dataclass

import numpy as np

from myna.daemon._core import Core
from myna.dsp.resample import FractionalResampler
from myna.dsp.stage import Block


@dataclass(frozen=True, slots=True)
class Taken:
    """One block, shape (frames,), and the session position of its first frame."""

    block: Block
    position: int
    jumped: bool  # input before it was lost: what the stages remember is not its past


class Intake:
    """Reads a core's input ring, resamples to the session's rate, cuts blocks of any length.

    Session positions count frames at the session's rate on the input device's clock; where no resampling is
    needed they are the core's own positions. A gap in the ring (frames were dropped) throws away the incomplete
    block and starts afresh behind the gap.
    """

    def __init__(self, core: Core, rate_in_hz: int, rate_hz: int, block_frames: int) -> None:
        self._core = core
        self._rate_in, self._rate = rate_in_hz, rate_hz
        self._resampler = None if rate_in_hz == rate_hz else FractionalResampler(rate_in_hz, rate_hz)
        self._pending: Block = np.zeros(0, np.float32)
        self._position = 0  # of the first pending frame, at the session's rate
        self._next_in = -1  # input position expected next; -1: nothing read yet
        self._jumped = False
        self._scratch = np.zeros(1 << 14, np.float32)
        self.block_frames = block_frames

    @property
    def latency_frames(self) -> int:
        """Delay of the resampler in session frames."""
        return self._resampler.latency_frames if self._resampler else 0

    @property
    def backlog_frames(self) -> int:
        """Input that waits, in session frames, without what is needed for one block."""
        waiting = len(self._pending) + int(self._core.readable() * self._rate / self._rate_in)
        return max(0, waiting - self.block_frames)

    def wait(self, timeout_ms: float) -> bool:
        """Wait (without the interpreter lock) until a block is likely complete."""
        missing = self.block_frames - len(self._pending)
        if missing <= 0:
            return True
        return self._core.wait(max(1, -(-missing * self._rate_in // self._rate)), timeout_ms)

    def take(self) -> Taken | None:
        """The next whole block, or None if there is none yet."""
        while len(self._pending) < self.block_frames:
            wanted = -(-(self.block_frames - len(self._pending)) * self._rate_in // self._rate)
            scratch = self._scratch[: min(wanted, len(self._scratch))]
            frames, position = self._core.read(scratch)
            if frames == 0:
                return None
            if position != self._next_in:
                self._start_at(position)
            self._next_in = position + frames
            fresh = scratch[:frames] if self._resampler is None else self._resampler.process(scratch[:frames])
            self._pending = np.concatenate([self._pending, fresh])
        block, self._pending = self._pending[: self.block_frames], self._pending[self.block_frames :]
        taken = Taken(block, self._position, self._jumped)
        self._position += self.block_frames
        self._jumped = False
        return taken

    def drop(self, frames: int) -> int:
        """Throw away the oldest waiting input, `frames` at the session's rate; returns how many went."""
        gone = min(frames, len(self._pending))
        self._pending = self._pending[gone:]
        self._position += gone
        rest = self._core.discard(int((frames - gone) * self._rate_in / self._rate))
        if rest:
            self._next_in = -1  # nothing is pending now; the next read sets the position
        if gone or rest:
            self._jumped = True
        return gone + int(rest * self._rate / self._rate_in)

    def _start_at(self, position: int) -> None:
        self._jumped = self._next_in != -1 or self._jumped
        self._pending = np.zeros(0, np.float32)
        self._position = round(position * self._rate / self._rate_in)
        if self._resampler is not None:
            self._resampler.reset()
