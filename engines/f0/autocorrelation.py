"""Pitch by autocorrelation, with the cheapest path through each frame's candidates; the method that Praat is known for.

Source: Boersma, Accurate short-term analysis of the fundamental frequency and the harmonics-to-noise ratio of a
sampled sound, IFA Proceedings 17, 1993.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .mel import HOP, RATE_HZ
from .pitch import MAX_HZ, MIN_HZ

Array = NDArray[np.float32]
Wide = NDArray[np.float64]

WINDOW: Final = 3 * RATE_HZ // int(MIN_HZ)  # three periods of the lowest voice
_FINER: Final = 4  # lags are read at four times the rate: 1 kHz has a period of 16 samples
_CANDIDATES: Final = 14  # of a frame, beside "unvoiced"
# The paper's costs, with the voicing threshold that voice conversion uses.
_SILENCE, _VOICING = 0.03, 0.6
_OCTAVE, _JUMP, _SWITCH = 0.01, 0.35, 0.14


@lru_cache(maxsize=1)
def _window() -> tuple[Wide, Wide, int]:
    """The Hann window, its own normalised autocorrelation at the finer lags, and the size of the transform."""
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(WINDOW) + 0.5) / WINDOW)
    size = 1 << int(np.ceil(np.log2(1.5 * WINDOW)))
    own = _autocorrelation(shape[None], size)[0]
    return shape, own / own[0], size


def _autocorrelation(framed: Wide, size: int) -> Wide:
    """(frames, WINDOW) → (frames, lags), lags in quarter samples; zeros appended to the spectrum interpolate it."""
    power = np.square(np.abs(np.fft.rfft(framed, size, axis=1)))
    lags = _FINER * RATE_HZ // int(MIN_HZ) + 2
    return np.fft.irfft(power, size * _FINER, axis=1)[:, :lags]


def track(audio: Array) -> Array:
    """Pitch of 16 kHz audio: Hz, 0 where unvoiced, frame t at sample 160 t, (samples // 160,)."""
    count = audio.shape[0] // HOP
    if count == 0 or not np.any(audio):
        return np.zeros(count, np.float32)
    shape, own, size = _window()
    padded = np.pad(audio.astype(np.float64), (WINDOW // 2, WINDOW))
    framed = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:count]
    framed = framed - framed.mean(axis=1, keepdims=True)
    loudest = float(np.abs(audio - audio.mean(dtype=np.float64)).max())
    peak = np.abs(framed[:, WINDOW // 3 : -WINDOW // 3]).max(axis=1)  # within a period of the middle
    correlation = _autocorrelation(framed * shape, size)
    energy = correlation[:, :1]
    normal = np.where(energy > 0, correlation / np.where(energy > 0, energy, 1.0), 0.0) / own[: correlation.shape[1]]
    hz, strength = _candidates(normal)
    unvoiced = _VOICING + np.maximum(0.0, 2.0 - (peak / max(loudest, 1e-12)) * (1.0 + _VOICING) / _SILENCE)
    return _cheapest(hz, strength, unvoiced)


def _candidates(normal: Wide) -> tuple[Wide, Wide]:
    """The highest peaks of each frame: Hz and strength, (frames, _CANDIDATES), strength −inf where there are fewer."""
    first = int(_FINER * RATE_HZ / MAX_HZ)
    left, middle, right = normal[:, first - 1 : -2], normal[:, first:-1], normal[:, first + 1 :]
    peaks = (middle > left) & (middle >= right) & (middle > 0.5 * _VOICING)
    bend = left - 2 * middle + right
    shift = np.where(peaks, 0.5 * (left - right) / np.where(peaks, bend, 1.0), 0.0)  # the parabola's summit
    lags = np.arange(first, first + middle.shape[1]) + shift
    height = middle - 0.25 * (left - right) * shift
    height = np.where(height > 1.0, 1.0 / np.maximum(height, 1e-12), height)  # an error of the division by `own`
    strength = np.where(peaks, height - _OCTAVE * np.log2(MIN_HZ * lags / (_FINER * RATE_HZ)), -np.inf)
    best = np.argpartition(-strength, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    return (
        _FINER * RATE_HZ / np.take_along_axis(lags, best, axis=1),
        np.take_along_axis(strength, best, axis=1),
    )


def _cheapest(hz: Wide, strength: Wide, unvoiced: Wide) -> Array:
    """The path with the highest sum of strengths less the costs of jumps; candidate 0 is "unvoiced"."""
    frames = hz.shape[0]
    score = np.concatenate((unvoiced[:, None], strength), axis=1)
    notes = np.log2(np.where(np.isfinite(strength), hz, 1.0))
    came = np.zeros(score.shape, np.int64)
    total = score[0]
    for t in range(1, frames):
        cost = np.empty((score.shape[1], score.shape[1]))  # from, to
        cost[1:, 1:] = _JUMP * np.abs(notes[t - 1][:, None] - notes[t][None, :])
        cost[0, :] = cost[:, 0] = _SWITCH
        cost[0, 0] = 0.0
        paths = total[:, None] - cost
        came[t] = paths.argmax(axis=0)
        total = np.take_along_axis(paths, came[t][None], axis=0)[0] + score[t]
    out = np.zeros(frames, np.float32)
    at = int(total.argmax())
    for t in range(frames - 1, -1, -1):
        out[t] = hz[t, at - 1] if at else 0.0
        at = int(came[t, at])
    return out
