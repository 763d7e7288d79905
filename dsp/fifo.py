"""Re-blocking: frames in by any count, out by any other."""

from collections.abc import Callable

import numpy as np

from myna.dsp.stage import Block


class Fifo:
    """First in, first out, for mono frames. Grows only when more is pushed than it ever held."""

    def __init__(self, capacity_frames: int = 4096) -> None:
        self._store: Block = np.zeros(max(capacity_frames, 1), np.float32)
        self._read = self._write = 0

    def __len__(self) -> int:
        return self._write - self._read

    def push(self, block: Block) -> None:
        """Add a block, shape (frames,), at the end."""
        self._room(len(block))
        self._store[self._write : self._write + len(block)] = block
        self._write += len(block)

    def push_silence(self, frames: int) -> None:
        """Add zeros at the end."""
        self._room(frames)
        self._store[self._write : self._write + frames] = 0.0
        self._write += frames

    def pop(self, frames: int) -> Block:
        """Take the oldest `frames`. ValueError if there are not that many."""
        out = self.peek(frames).copy()
        self._read += frames
        return out

    def peek(self, frames: int) -> Block:
        """A view of the oldest `frames`, valid until the next push. ValueError if there are not that many."""
        if not 0 <= frames <= len(self):
            raise ValueError(f"asked for {frames} of {len(self)} frames")
        return self._store[self._read : self._read + frames]

    def drop(self, frames: int) -> None:
        """Throw the oldest `frames` away. ValueError if there are not that many."""
        if not 0 <= frames <= len(self):
            raise ValueError(f"asked to drop {frames} of {len(self)} frames")
        self._read += frames

    def clear(self) -> None:
        """Empty it."""
        self._read = self._write = 0

    def _room(self, frames: int) -> None:
        if self._write + frames <= len(self._store):
            return
        held = len(self)
        if held + frames > len(self._store) // 2:  # at half full, moving costs less than one copy a frame
            grown = np.zeros(2 * (held + frames), np.float32)
            grown[:held] = self._store[self._read : self._write]
            self._store = grown
        else:
            self._store[:held] = self._store[self._read : self._write].copy()
        self._read, self._write = 0, held


class Reblocker:
    """Feeds a function that wants whole hops from blocks of any length.

    `inner` takes and returns exactly `hop_frames`; `inner_latency_frames` is its own delay. The last frame of
    a hop must be there before its first can come out, hence hop − 1 frames of delay: with a hop of 480, frame
    0 comes out when frame 479 goes in.
    """

    def __init__(
        self,
        hop_frames: int,
        inner: Callable[[Block], Block],
        *,
        inner_latency_frames: int = 0,
        inner_reset: Callable[[], None] | None = None,
    ) -> None:
        if hop_frames < 1:
            raise ValueError("hop_frames must be at least 1")
        self._hop, self._inner, self._inner_reset = hop_frames, inner, inner_reset
        self.latency_frames = hop_frames - 1 + inner_latency_frames
        self._in, self._out = Fifo(4 * hop_frames), Fifo(4 * hop_frames)
        self._out.push_silence(hop_frames - 1)

    def process(self, block: Block) -> Block:
        """Take a block, shape (frames,), and return as many frames."""
        self._in.push(block)
        while len(self._in) >= self._hop:
            self._out.push(self._inner(self._in.pop(self._hop)))
        return self._out.pop(len(block))

    def reset(self) -> None:
        """Forget all frames, and have the inner state reset too."""
        self._in.clear()
        self._out.clear()
        self._out.push_silence(self._hop - 1)
        if self._inner_reset is not None:
            self._inner_reset()
