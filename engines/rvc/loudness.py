"""Give converted audio the loudness curve of what was said."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def levels(audio: Array, window: int, hop: int) -> Array:
    """RMS over centred windows, zeros beyond the ends; (len // hop + 1,)."""
    half = window // 2
    squares = np.concatenate(([0.0], np.cumsum(np.square(np.pad(audio, (half, half)).astype(np.float64)))))
    starts = np.arange(audio.shape[0] // hop + 1) * hop
    sums = squares[starts + window] - squares[starts]
    return np.asarray(np.sqrt(np.maximum(sums, 0.0) / window), np.float32)


def stretched(curve: Array, frames: int) -> Array:
    """A curve resampled linearly to `frames` points, centres aligned and ends held."""
    at = (np.arange(frames) + 0.5) * (curve.shape[0] / frames) - 0.5
    return np.asarray(np.interp(at, np.arange(curve.shape[0]), curve), np.float32)


def matched(said: Array, said_rate_hz: int, made: Array, made_rate_hz: int, keep: float) -> Array:
    """Scale `made` so that its half-second loudness follows `said`.

    Args:
        said: What was spoken, (frames at said_rate_hz,).
        said_rate_hz: Its rate.
        made: What the voice made of it, (frames at made_rate_hz,).
        made_rate_hz: Its rate.
        keep: 1 keeps the voice's own loudness, 0 takes the speaker's.

    Returns:
        (frames at made_rate_hz,).
    """
    if keep >= 1 or made.shape[0] == 0 or said.shape[0] == 0:
        return made
    wanted = stretched(levels(said, said_rate_hz // 2 * 2, said_rate_hz // 2), made.shape[0])
    own = np.maximum(stretched(levels(made, made_rate_hz // 2 * 2, made_rate_hz // 2), made.shape[0]), np.float32(1e-6))
    return np.asarray(made * (wanted ** np.float32(1 - keep) * own ** np.float32(keep - 1)), np.float32)
