"""Shape a pitch curve and cut it into the 255 bins that voices were trained on."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MIN_HZ, MAX_HZ = 50.0, 1100.0
BINS = 255
_A4_HZ = 440.0


def _mel(hz: NDArray[np.floating]) -> NDArray[np.floating]:
    out: NDArray[np.floating] = 1127.0 * np.log(1.0 + hz / 700.0)
    return out


def coarse(hz: Array) -> NDArray[np.int64]:
    """Bin of each frame: 1 for unvoiced and everything up to 50 Hz, 255 from 1100 Hz up, mel steps between.

    The edges are in mel, as in training, so that 50 Hz is bin 1 and 1100 Hz is bin 255 (226 Hz is bin 62).
    """
    low, high = float(_mel(np.float64(MIN_HZ))), float(_mel(np.float64(MAX_HZ)))  # type: ignore[arg-type]
    mel = _mel(hz.astype(np.float32))
    bins = np.where(mel > 0, (mel - low) * (BINS - 1) / (high - low) + 1, 1)
    out: NDArray[np.int64] = np.rint(np.clip(bins, 1, BINS)).astype(np.int64)
    return out


def transposed(hz: Array, semitones: float) -> Array:
    """The curve moved by `semitones`; unvoiced stays unvoiced."""
    out: Array = (hz * 2.0 ** (semitones / 12.0)).astype(np.float32)
    return out


def gaps_filled(hz: Array) -> Array:
    """Unvoiced gaps bridged linearly in Hz, the ends held; an unvoiced curve stays as it is."""
    voiced = np.flatnonzero(hz > 0)
    if voiced.size == 0:
        return hz.astype(np.float32, copy=True)
    return np.interp(np.arange(hz.shape[0]), voiced, hz[voiced]).astype(np.float32)


def autotuned(hz: Array, amount: float) -> Array:
    """Pulled towards the nearest semitone (A4 = 440 Hz) by `amount`, 0 not at all, 1 onto it."""
    if amount <= 0:
        return hz
    voiced = hz > 0
    notes = 12.0 * np.log2(np.where(voiced, hz, _A4_HZ) / _A4_HZ)
    pulled = notes + min(amount, 1.0) * (np.rint(notes) - notes)
    out: Array = np.where(voiced, _A4_HZ * 2.0 ** (pulled / 12.0), 0.0).astype(np.float32)
    return out


def on_grid(times_s: NDArray[np.float64], hz: NDArray[np.float64], frames: int) -> Array:
    """A curve sampled at `times_s` (0 = unvoiced) put on the 10 ms grid, frame t at t × 10 ms.

    Between two voiced points it runs linearly; beside an unvoiced one the nearer point decides.
    """
    grid = np.arange(frames) * 0.01
    if hz.shape[0] == 0:
        return np.zeros(frames, np.float32)
    voiced = hz > 0
    if not voiced.any():
        return np.zeros(frames, np.float32)
    curve = np.interp(grid, times_s[voiced], hz[voiced])
    after = np.clip(np.searchsorted(times_s, grid), 0, hz.shape[0] - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(times_s[after] - grid) < np.abs(grid - times_s[before]), after, before)
    out: Array = np.where(voiced[nearest], curve, 0.0).astype(np.float32)
    return out
