"""The log-mel spectrogram that RMVPE was trained on."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

RATE_HZ = 16000
HOP = 160
WINDOW = 1024
BANDS = 128
FLOOR = 1e-5
_LOW_HZ, _HIGH_HZ = 30.0, 8000.0


def triangles(edges_hz: NDArray[np.float64]) -> Array:
    """Triangles of unit area (Slaney) between these edges, shape (len(edges_hz) − 2, WINDOW/2+1)."""
    bins = np.arange(WINDOW // 2 + 1) * (RATE_HZ / WINDOW)
    rising = (bins[None, :] - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins[None, :]) / np.diff(edges_hz)[1:, None]
    made = np.maximum(0.0, np.minimum(rising, falling))
    return (made * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).astype(np.float32)


@lru_cache(maxsize=1)
def filters() -> Array:
    """Triangles evenly spaced on the HTK mel scale, each of unit area (Slaney); (bands, WINDOW/2+1)."""
    low, high = (2595.0 * np.log10(1.0 + hz / 700.0) for hz in (_LOW_HZ, _HIGH_HZ))
    edges = 700.0 * (10.0 ** (np.linspace(low, high, BANDS + 2) / 2595.0) - 1.0)
    return triangles(edges)


def log_mel(audio: Array) -> Array:
    """Log-mel of 16 kHz audio.

    Args:
        audio: (samples,); frames are centred on multiples of HOP, the ends mirrored.

    Returns:
        (bands, samples // HOP + 1).
    """
    half = WINDOW // 2
    mirrors = audio.shape[0] > half
    padded = np.pad(audio, half, mode="reflect") if mirrors else np.pad(audio, (half, half + WINDOW))
    count = audio.shape[0] // HOP + 1
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:count]
    window = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
    magnitude = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float32)
    out: Array = np.log(np.maximum(filters() @ magnitude.T, np.float32(FLOOR))).astype(np.float32)
    return out
