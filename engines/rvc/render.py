"""Join the two halves of the synthesizer on exact grids: stretch the latent, run the sine source on.

Time has three axes: frames of 10 ms, numbered from the start of the session; decoder samples, of which `step` make
up a frame (`step` is the hop, or a little more or less when the formant is moved); and decoder frames, of `hop`
decoder samples each. With hop 400 and step 449, frame 100 begins at decoder sample 44900, which lies in decoder
frame 112.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .noise import KeyedNoise
from .source import Merge, continuing

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """The decoder frames of one render, in absolute numbers."""

    first: int  # decoder frame
    count: int
    hop: int
    step: int

    @property
    def start_sample(self) -> int:
        """Its first decoder sample."""
        return self.first * self.hop

    def offset(self, frame: int) -> int:
        """Where frame `frame` (10 ms) begins, in decoder samples from the start of the span."""
        return frame * self.step - self.start_sample


def span_until(end_frame: int, count: int, hop: int, step: int) -> Span:
    """The `count` decoder frames that end with or just after frame `end_frame` begins."""
    last = -(-end_frame * step // hop)
    return Span(last - count, count, hop, step)


def stretched(z: Array, first_frame: int, span: Span) -> Array:
    """Latent frames read off at the decoder's frames.

    Args:
        z: (channels, frames).
        first_frame: Absolute number of its first frame.
        span: Wanted decoder frames.

    Returns:
        (channels, span.count). Without a formant shift a plain copy; beyond the ends the end is held.
    """
    frames = z.shape[1]
    if span.step == span.hop:
        at = np.clip(np.arange(span.first, span.first + span.count) - first_frame, 0, frames - 1)
        return z[:, at]
    # Centres are aligned: decoder frame k covers frames [k, k+1) × hop / step.
    centres = (np.arange(span.first, span.first + span.count) + 0.5) * (span.hop / span.step) - 0.5 - first_frame
    centres = np.clip(centres, 0, frames - 1)
    low = np.floor(centres).astype(np.int64)
    high = np.minimum(low + 1, frames - 1)
    share = (centres - low).astype(np.float32)
    out: Array = z[:, low] * (1 - share) + z[:, high] * share
    return out


class SineTrack:
    """The phase of a voice's sine, carried in double precision at one frame."""

    def __init__(self, merge: Merge, noise: KeyedNoise) -> None:
        self._merge = merge
        self._noise = noise
        self.reset(0)

    def reset(self, frame: int) -> None:
        """Start with phase 0 at `frame`."""
        self._frame = frame
        self._cycles = 0.0

    def advance(self, f0_hz: Array, first_frame: int, to_frame: int) -> None:
        """Move the carried phase on to `to_frame` along the curve whose first frame is `first_frame`.

        Frames that the curve no longer holds count as unvoiced.
        """
        begin = max(self._frame - first_frame, 0)
        end = min(to_frame - first_frame, f0_hz.shape[0])
        if end > begin:
            self._cycles = float((self._cycles + f0_hz[begin:end].astype(np.float64).sum() * 0.01) % 1.0)
        self._frame = max(to_frame, self._frame)

    def source(self, f0_hz: Array, first_frame: int, span: Span) -> Array:
        """The source for `span`.

        Args:
            f0_hz: Pitch that is to be heard, (frames,), 0 where unvoiced; its ends are held beyond.
            first_frame: Absolute number of its first frame.
            span: Decoder frames to make.

        Returns:
            (span.count × hop,).
        """
        sample = span.start_sample + np.arange(span.count * span.hop)
        frame = sample // span.step
        within = sample - frame * span.step
        low, high = int(frame[0]), int(frame[-1]) + 1
        curve = f0_hz[
            np.clip(np.arange(min(low, self._frame), max(high, self._frame)) - first_frame, 0, None).clip(
                max=f0_hz.shape[0] - 1
            )
        ].astype(np.float64)
        base = min(low, self._frame)
        turns = np.concatenate(([0.0], np.cumsum(curve * 0.01)))  # at the start of each frame
        turns += self._cycles - turns[self._frame - base]
        hz = curve[frame - base]
        cycles = turns[frame - base] + hz * ((within + 1) * (0.01 / span.step))
        noise = self._noise.rows(span.first, span.count).reshape(-1)
        return continuing(cycles, hz > 0, noise, self._merge)
