"""From content features to what the synthesizer takes: retrieval, protection, doubling."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def doubled(features: Array, frames: int) -> Array:
    """Features of 20 ms repeated to 10 ms, cut to `frames` or held at the end."""
    out = np.repeat(features, 2, axis=0)[:frames]
    if out.shape[0] < frames:
        out = np.concatenate((out, np.repeat(out[-1:], frames - out.shape[0], axis=0)))
    return out


def protected(retrieved: Array, original: Array, f0_hz: Array, keep: float) -> Array:
    """Give unvoiced frames back their own features, so that breath and consonants stay clear.

    Args:
        retrieved: Features after retrieval, (frames, width).
        original: The same before it.
        f0_hz: (frames,); below 1 Hz counts as unvoiced.
        keep: Share of the retrieved features in unvoiced frames; 0.5 and above means no protection.

    Returns:
        (frames, width).
    """
    if keep >= 0.5:
        return retrieved
    share = np.where(f0_hz < 1, np.float32(keep), np.float32(1))[:, None]
    out: Array = (retrieved * share + original * (1 - share)).astype(np.float32)
    return out
