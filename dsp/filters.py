"""Filters over blocks of any length, and their coefficients, with numpy alone.

scipy.signal has all of this, but takes a second of a processor to import and 45 MiB (measured): too much for a worker
that must be back at once after a crash.
"""

import math

import numpy as np
from numpy.typing import NDArray

Signal = NDArray[np.float64]

_CHUNK = 128  # frames that are one product of matrices


class RecursiveFilter:
    """Streaming: an IIR filter, y[n] = Σ b[k] x[n − k] − Σ a[k] y[n − k], from zeros.

    A chunk's output is what its own input gives from rest, and what the sound before it rings on to; only the latter,
    as a state of `order` numbers, goes from chunk to chunk. Equal to the recursion to float64 rounding, however the
    sound is split.
    """

    _state: Signal

    def __init__(self, forward: Signal, backward: Signal) -> None:
        """`forward` is b, `backward` is a, both of shape (order + 1,), order >= 1; the first of a is 1."""
        if len(forward) != len(backward) or len(backward) < 2 or backward[0] != 1.0:
            raise ValueError("a recursive filter has as many coefficients forward as backward, the first of these 1")
        order = len(backward) - 1
        # Transposed direct form II as a state space: state' = turn · state + feed · x, y = state[0] + b[0] x.
        turn = np.eye(order, k=1)
        turn[:, 0] = -backward[1:]
        feed = forward[1:] - backward[1:] * forward[0]
        ringing, self._turns = np.zeros((_CHUNK, order)), np.zeros((_CHUNK + 1, order, order))
        power = np.eye(order)
        for n in range(_CHUNK):
            ringing[n], self._turns[n] = power[0], power
            power = turn @ power
        self._turns[_CHUNK] = power
        self._ringing = np.ascontiguousarray(ringing.T)
        impulse = np.concatenate([forward[:1], ringing[:-1] @ feed])
        lag = np.subtract.outer(np.arange(_CHUNK), np.arange(_CHUNK))
        self._own = np.ascontiguousarray(np.where(lag >= 0, impulse[np.maximum(lag, 0)], 0.0).T)
        self._fed = np.ascontiguousarray(self._turns[_CHUNK - 1 :: -1] @ feed)
        self.reset()

    def process(self, block: Signal) -> Signal:
        """Filter a block, shape (frames,)."""
        out = np.empty(len(block))
        for at in range(0, len(block), _CHUNK):
            chunk = block[at : at + _CHUNK]
            count = len(chunk)
            np.matmul(chunk, self._own[:count, :count], out=out[at : at + count])
            out[at : at + count] += self._state @ self._ringing[:, :count]
            self._state = self._turns[count] @ self._state + chunk @ self._fed[_CHUNK - count :]
        return out

    def reset(self) -> None:
        """Forget what was heard."""
        self._state = np.zeros(len(self._turns[0]))


def one_pole(decay: float) -> RecursiveFilter:
    """A running mean in which a frame's weight falls by `decay` (0..1) with each frame after it."""
    return RecursiveFilter(np.array([1.0 - decay, 0.0]), np.array([1.0, -decay]))


def highpass(order: int, cutoff_hz: float, rate_hz: float) -> RecursiveFilter:
    """A Butterworth high-pass of order 1 or 2, by the bilinear transform; ValueError for another order."""
    k = math.tan(math.pi * cutoff_hz / rate_hz)
    if order == 1:
        return RecursiveFilter(np.array([1.0, -1.0]) / (1.0 + k), np.array([1.0, (k - 1.0) / (k + 1.0)]))
    if order != 2:
        raise ValueError(f"order {order} is neither 1 nor 2")
    whole = 1.0 + math.sqrt(2.0) * k + k * k
    backward = np.array([1.0, 2.0 * (k * k - 1.0) / whole, (1.0 - math.sqrt(2.0) * k + k * k) / whole])
    return RecursiveFilter(np.array([1.0, -2.0, 1.0]) / whole, backward)


def lowpass_taps(taps: int, cutoff_hz: float, rate_hz: float) -> Signal:
    """A windowed-sinc low-pass (Hamming), shape (taps,), gain 1 at 0 Hz; `taps` odd."""
    at = np.arange(taps) - (taps - 1) / 2
    shape = np.sinc(2.0 * cutoff_hz / rate_hz * at) * np.hamming(taps)
    return np.asarray(shape / shape.sum(), np.float64)


def quarter_turn_taps(reach: int) -> Signal:
    """A Hilbert transformer (Kaiser window, beta 4), shape (2 reach + 1,): cosines become sines `reach` frames later.

    At 48 kHz and a reach of 96 its gain is within 0.5 dB of 1 from 390 Hz on, and falls towards 0 Hz.
    """
    at = np.arange(-reach, reach + 1)
    ideal = np.where(at % 2 == 1, 2.0 / (np.pi * np.where(at == 0, 1, at)), 0.0)
    return np.asarray(ideal * np.kaiser(2 * reach + 1, 4.0), np.float64)


def fast_length(least: int) -> int:
    """The smallest length from `least` on that has no prime factor above 5: its Fourier transforms are quick."""
    best = 1 << max(least - 1, 0).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << max(-(-least // odd) - 1, 0).bit_length())
            odd *= 3
        fives *= 5
    return best
