"""Noise reduction by short-time spectra: no model, little delay."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import exp1

from myna.dsp.fifo import Reblocker
from myna.dsp.stage import Block

_HOP_MS = 5.0
_OVERLAP = 4  # hops a window
_FLOOR_DB = -24.0
_SILENT = 1e-10  # mean square of a hop, −100 dBFS: digital silence says nothing about the room's noise
_MOST = 4.0  # +12 dB: input beyond is clipped, so that no square overflows

# The tracker's constants are for its authors' hop of 8 ms; smoothing is by time here.
_SMOOTH_MS = 35.0  # of the spectrum whose minimum is sought
_MINIMUM_MS = 800.0  # how long a minimum is kept; it takes twice that for louder noise to be believed
_PRESENCE_RATIO = 5.0  # over the minimum, from which a bin counts as speech
_PRESENCE_MS = 5.0
_NOISE_MS = 150.0
_PRIOR_MS = 250.0  # decision-directed: 0.98 at 5 ms
_LEAST_PRIOR = 10.0 ** (-25.0 / 10.0)


class SpectralDenoise:
    """Log-spectral amplitude estimation over a noise floor followed by minima, in windows of 20 ms.

    The noise is learned from the first windows that are not silent, and followed from then on: steady noise
    that grows is believed after 0.8 to 1.6 s, noise that fades at once. No bin is lowered by more than 24 dB,
    which keeps what is left from sounding like chirps.

    Source: Cohen & Berdugo, "Noise estimation by minima controlled recursive averaging", 2002; Ephraim &
    Malah, "Speech enhancement using a minimum mean-square error log-spectral amplitude estimator", 1985.
    """

    def __init__(self, rate_hz: int) -> None:
        hop = max(1, round(rate_hz * _HOP_MS / 1000.0))
        self._hop, self._size = hop, _OVERLAP * hop
        phase = (np.arange(self._size) + 0.5) / self._size
        self._window = np.sin(np.pi * phase).astype(np.float32)  # squares of four, a hop apart, add to 2
        self._floor = 10.0 ** (_FLOOR_DB / 20.0)
        self._minimum_hops = round(_MINIMUM_MS / _HOP_MS)
        self._reblocker = Reblocker(hop, self._step, inner_latency_frames=self._size - hop, inner_reset=self._clear)
        self._clear()

    @property
    def latency_frames(self) -> int:
        """One window, less a frame."""
        return self._reblocker.latency_frames

    def process(self, block: Block) -> Block:
        """Denoise a block, shape (frames,)."""
        return self._reblocker.process(block)

    def reset(self) -> None:
        """Forget all sound, and the noise too."""
        self._reblocker.reset()

    def _clear(self) -> None:
        bins = self._size // 2 + 1
        self._past: Block = np.zeros(self._size, np.float32)
        self._sum: Block = np.zeros(self._size, np.float32)
        self._learned = 0  # windows that were not silent, so far
        self._whole = -_OVERLAP  # windows since sound began; negative while they still reach before it
        self._smooth = np.zeros(bins)
        self._least = np.zeros(bins)
        self._coming_least = np.zeros(bins)
        self._presence = np.zeros(bins)
        self._noise = np.zeros(bins)
        self._clean = np.zeros(bins)  # power of the last window's estimate

    def _step(self, hop: Block) -> Block:
        self._past = np.concatenate((self._past[self._hop :], np.clip(hop, -_MOST, _MOST)))
        spectrum = np.fft.rfft(self._past * self._window)
        power = np.square(np.abs(spectrum), dtype=np.float64)
        sounds = float(np.mean(np.square(self._past[-self._hop :]))) >= _SILENT
        self._whole = self._whole + 1 if sounds else -_OVERLAP
        if self._whole >= 0:
            self._track(power)
        gain = self._gain(power) if self._learned else np.ones_like(power)
        made = np.fft.irfft(spectrum * gain, self._size).astype(np.float32) * self._window
        self._sum = np.concatenate((self._sum[self._hop :], np.zeros(self._hop, np.float32)))
        self._sum += made * np.float32(2.0 / _OVERLAP)
        return self._sum[: self._hop].copy()

    def _track(self, power: NDArray[np.float64]) -> None:
        """Follow the noise floor."""
        around = np.convolve(np.pad(power, 1, mode="edge"), (0.25, 0.5, 0.25), mode="valid")
        if self._learned < _OVERLAP:
            share = 1.0 / (self._learned + 1)
            self._smooth += share * (around - self._smooth)
            self._noise += share * (power - self._noise)
            self._least, self._coming_least = self._smooth.copy(), self._smooth.copy()
            self._learned += 1
            return
        self._smooth += _share(_SMOOTH_MS) * (around - self._smooth)
        self._least = np.minimum(self._least, self._smooth)
        self._coming_least = np.minimum(self._coming_least, self._smooth)
        self._learned += 1
        if self._learned % self._minimum_hops == 0:
            self._least, self._coming_least = self._coming_least, self._smooth.copy()
        speech = self._smooth > _PRESENCE_RATIO * self._least
        self._presence += _share(_PRESENCE_MS) * (speech - self._presence)
        self._noise += (1.0 - self._presence) * _share(_NOISE_MS) * (power - self._noise)

    def _gain(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        noise = np.maximum(self._noise, 1e-20)
        posterior = np.clip(power / noise, 1e-6, 1e6)
        share = _share(_PRIOR_MS)
        prior = (1.0 - share) * self._clean / noise + share * np.maximum(posterior - 1.0, 0.0)
        prior = np.clip(prior, _LEAST_PRIOR, 1e6)
        wiener = prior / (1.0 + prior)
        gain = np.clip(wiener * np.exp(0.5 * exp1(wiener * posterior)), self._floor, 1.0)
        self._clean = np.square(gain) * power
        return np.asarray(gain, np.float64)


def _share(time_ms: float) -> float:
    """Share of a new value in a one-pole average of that time constant, a hop apart."""
    return float(1.0 - np.exp(-_HOP_MS / time_ms))
