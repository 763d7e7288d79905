"""The shape of a streaming stage."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.float32]
"""Mono audio, shape (frames,), float32, nominally within ±1. A frame is one sample per channel."""


class Stage(Protocol):
    """A stateful stage: as many frames out as in, shifted by `latency_frames`.

    Every stage holds the stage laws (tests/laws.py): any split into blocks gives the same output, a longer
    input never changes earlier output, `reset()` equals a new object, an impulse comes out exactly at
    `latency_frames`, the input is never written to, finite in gives finite out.
    """

    @property
    def latency_frames(self) -> int:
        """Delay from input to output, in frames; constant after construction."""
        ...

    def process(self, block: Block) -> Block:
        """Take `block`, shape (frames,), frames >= 0, and return exactly as many frames."""
        ...

    def reset(self) -> None:
        """Go back to the state right after construction."""
        ...
