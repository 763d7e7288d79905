"""Synchronised overlap-add: joins blocks that were rendered apart where their waves agree."""

import numpy as np
from numpy.typing import NDArray

from myna.dsp.filters import fast_length
from myna.dsp.stage import Block


def lag_scores(new: Block, tail: Block, search_frames: int) -> NDArray[np.float64]:
    """How well `new` continues `tail` at each lag: correlation over the root of the energy of `new` there.

    Args:
        new: Shape (frames,), frames >= search_frames + len(tail).
        tail: Shape (overlap,), overlap >= 1.

    Returns:
        Shape (search_frames + 1,).

    Raises:
        ValueError: `new` is too short.
    """
    overlap, used = len(tail), search_frames + len(tail)
    if overlap < 1 or search_frames < 0 or len(new) < used:
        raise ValueError(f"{len(new)} frames do not hold a search of {search_frames} and a tail of {overlap}")
    heard = new[:used].astype(np.float64)
    size = fast_length(used)
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(tail.astype(np.float64), size))
    matches = np.fft.irfft(spectrum, size)[: search_frames + 1]
    energy = np.concatenate([[0.0], np.cumsum(np.square(heard))])
    energies = np.maximum(energy[overlap : used + 1] - energy[: search_frames + 1], 0.0)
    return np.asarray(matches / np.sqrt(energies + 1e-8), np.float64)


def best_lag(new: Block, tail: Block, search_frames: int) -> int:
    """Find where `new` continues `tail` most smoothly.

    Args:
        new: Fresh sound, shape (frames,), frames >= search_frames + len(tail).
        tail: What was to be played next, shape (overlap,), overlap >= 1.
        search_frames: Largest lag tried, >= 0.

    Returns:
        Lag in 0..search_frames; the smallest on a tie; 0 for a silent `tail`.

    Raises:
        ValueError: `new` is too short.

    Source: Roucos & Wilgus, ICASSP 1985.
    """
    scores = lag_scores(new, tail, search_frames)
    return int(np.argmax(scores)) if np.any(tail) else 0


class Sola:
    """Joins blocks: each is shifted by up to `search_frames` so that it continues the last, then crossfaded.

    Every block overlaps the last one by `crossfade_frames`. The first one fades in. A block that is not
    finite is taken as silence, so that what is kept for the next crossfade stays clean.
    """

    _tail: Block
    _lag: int

    def __init__(self, block_frames: int, crossfade_frames: int, search_frames: int) -> None:
        if not 1 <= crossfade_frames <= block_frames or search_frames < 0:
            raise ValueError(
                f"a crossfade of {crossfade_frames} frames does not fit a block of {block_frames} "
                f"(search {search_frames})"
            )
        self.block_frames, self.crossfade_frames = block_frames, crossfade_frames
        self.search_frames = search_frames
        phase = np.linspace(0.0, 1.0, crossfade_frames)
        self._rise = np.square(np.sin(0.5 * np.pi * phase)).astype(np.float32)
        self._fall = (1.0 - self._rise).astype(np.float32)
        self.reset()

    @property
    def wanted_frames(self) -> int:
        """Frames that `process` needs."""
        return self.block_frames + self.crossfade_frames + self.search_frames

    @property
    def last_lag(self) -> int:
        """Where the last block was joined, in frames."""
        return self._lag

    def process(self, new: Block) -> Block:
        """Join the next block.

        Args:
            new: Shape (wanted_frames,); its first `block_frames` from lag 0 on would be played without any
                shift.

        Returns:
            Shape (block_frames,).

        Raises:
            ValueError: another length.
        """
        if len(new) != self.wanted_frames:
            raise ValueError(f"{len(new)} frames instead of {self.wanted_frames}")
        if not np.isfinite(new).all():
            new = np.zeros(len(new), np.float32)
        self._lag = best_lag(new, self._tail, self.search_frames)
        joined = new[self._lag :]
        out = joined[: self.block_frames].copy()
        out[: self.crossfade_frames] *= self._rise
        out[: self.crossfade_frames] += self._tail * self._fall
        self._tail = joined[self.block_frames : self.block_frames + self.crossfade_frames].copy()
        return out

    def resized(self, block_frames: int, crossfade_frames: int, search_frames: int) -> "Sola":
        """One for other lengths that goes on from what this one would have played next.

        Raises:
            ValueError: as the constructor.
        """
        other = Sola(block_frames, crossfade_frames, search_frames)
        kept = min(crossfade_frames, self.crossfade_frames)
        other._tail[:kept] = self._tail[:kept]
        return other

    def reset(self) -> None:
        """Forget the last block: the next one fades in."""
        self._tail = np.zeros(self.crossfade_frames, np.float32)
        self._lag = 0
