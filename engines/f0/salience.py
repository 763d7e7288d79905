"""From the salience that pitch networks give to pitch; no torch, for an exported network needs none."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

BINS = 360
THRESHOLD = 0.03  # of RMVPE
MULTIPLE = 32  # frames that RMVPE wants whole multiples of: five halvings
_CENTS = 20.0 * np.arange(BINS) + 1997.3794084376191  # of each of RMVPE's bins, over 10 Hz
_REACH = 4


def decode(salience: Array, threshold: float = THRESHOLD) -> NDArray[np.float64]:
    """Pitch of each frame: the salience-weighted mean of the nine bins around the strongest.

    Args:
        salience: (frames, 360).
        threshold: Frames whose strongest bin is not above this are unvoiced.

    Returns:
        Hz, 0 where unvoiced, (frames,).
    """
    cents = weighted_cents(salience)
    voiced = (salience.max(axis=1) > threshold) & (cents > 0)
    hz: NDArray[np.float64] = np.where(voiced, 10.0 * 2.0 ** (cents / 1200.0), 0.0)
    return hz


def weighted_cents(salience: Array, table: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Cents over 10 Hz of each frame, whether voiced or not; 0 for a frame without any salience.

    `table` holds the cents of the 360 bins where they are not RMVPE's.
    """
    of_bin: NDArray[np.floating] = _CENTS if table is None else table
    centre = salience.argmax(axis=1)
    near = centre[:, None] + np.arange(-_REACH, _REACH + 1)[None, :]
    inside = (near >= 0) & (near < BINS)
    near = np.clip(near, 0, BINS - 1)
    weights = np.take_along_axis(salience, near, axis=1).astype(np.float64) * inside
    total = weights.sum(axis=1)
    cents: NDArray[np.float64] = (weights * of_bin[near]).sum(axis=1) / np.where(total > 0, total, 1.0)
    return cents
