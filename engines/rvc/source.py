"""The sine source of a voice with f0: a sine where there is pitch, noise where there is none."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

AMPLITUDE = 0.1
VOICED_NOISE = 0.003  # deviation of the noise added to a sine
UNVOICED_NOISE = AMPLITUDE / 3


@dataclass(frozen=True, slots=True)
class Merge:
    """The trained last step of the source: tanh(weight · s + bias)."""

    weight: float
    bias: float


def restarting(f0_hz: Array, hop: int, rate_hz: int, noise: Array | None, merge: Merge) -> Array:
    """The source as the original computes it: phase 0 at the start of every call.

    Args:
        f0_hz: (frames,), 0 where unvoiced.
        hop: Samples a frame.
        rate_hz: The voice's rate.
        noise: Standard normal, (frames × hop,), or None for none.
        merge: The trained last step.

    Returns:
        (frames × hop,).
    """
    # Double where the original is single: it stands nearer to the original than its single-precision twin on
    # another vector unit does, for the error is multiplied by up to ten in the decoder.
    step = f0_hz.astype(np.float64) / rate_hz
    start = np.concatenate(([0.0], np.cumsum(step * hop)[:-1]))
    cycles = start[:, None] + step[:, None] * np.arange(1, hop + 1)
    return continuing(cycles.reshape(-1), np.repeat(f0_hz > 0, hop), noise, merge)


def continuing(cycles: NDArray[np.float64], voiced: NDArray[np.bool_], noise: Array | None, merge: Merge) -> Array:
    """The source from a phase that runs on.

    Args:
        cycles: Phase of each sample in turns, float64, (samples,).
        voiced: Where there is pitch, (samples,).
        noise: Standard normal, (samples,), or None for none.
        merge: The trained last step.

    Returns:
        (samples,).
    """
    turns = (cycles - np.floor(cycles)).astype(np.float32)  # small before it is rounded
    return _merged(np.sin(np.float32(2 * np.pi) * turns), voiced, noise, merge)


def _merged(sine: Array, voiced: NDArray[np.bool_], noise: Array | None, merge: Merge) -> Array:
    wave = sine * np.where(voiced, np.float32(AMPLITUDE), np.float32(0))
    if noise is not None:
        wave = wave + noise * np.where(voiced, np.float32(VOICED_NOISE), np.float32(UNVOICED_NOISE))
    out: Array = np.tanh(np.float32(merge.weight) * wave + np.float32(merge.bias)).astype(np.float32)
    return out
