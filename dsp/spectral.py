"""Noise suppression by spectral arithmetic: no network, the least delay."""

import numpy as np
from numpy.typing import NDArray

from myna.dsp.fifo import Reblocker
from myna.dsp.stage import Block

_HOP_MS = 5.0
_OVERLAP = 4  # windows of 20 ms
_SMOOTH = 0.88  # of the power whose minimum is tracked, per 5 ms
_MINIMUM_HOPS = 80  # half of the memory of the minimum tracker: 0.4–0.8 s
_SPEECH_RATIO = 4.0  # power over minimum above which a bin is taken for speech
_PRESENCE = 0.8
_NOISE = 0.96
_DECISION = 0.97
_TINY = 1e-20


class SpectralDenoise:
    """Wiener gains on a 20 ms spectrum, with the noise tracked in pauses and under speech.

    The noise of each bin follows the power where a bin is near its minimum of the last 0.8 s (minima-controlled
    recursive averaging), so that speech is not learned as noise. Gains never go below `floor_db`: what is left sounds
    like a quieter room, not like a closed door. Delay: one window less a frame, 20 ms.

    Source: Cohen & Berdugo, IEEE SPL 9(1), 2002; Ephraim & Malah, IEEE ASSP 32(6), 1984.
    """

    def __init__(self, rate_hz: int, *, floor_db: float = -18.0) -> None:
        self._hop = max(16, round(rate_hz * _HOP_MS / 1000.0))
        size = _OVERLAP * self._hop
        # Root of a Hann window twice: squares of four shifted windows add to 2.
        hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)
        self._window = np.sqrt(hann).astype(np.float32)
        self._join = (self._window * (2.0 / _OVERLAP)).astype(np.float32)
        self._floor = 10.0 ** (floor_db / 20.0)
        self._blocks = Reblocker(self._hop, self._step, inner_latency_frames=size - self._hop, inner_reset=self._clear)
        self._clear()

    @property
    def latency_frames(self) -> int:
        """A window less one frame."""
        return self._blocks.latency_frames

    def process(self, block: Block) -> Block:
        """Denoise a block, shape (frames,)."""
        return self._blocks.process(block)

    def reset(self) -> None:
        """Forget all sound, and the noise."""
        self._blocks.reset()

    def _clear(self) -> None:
        size, bins = len(self._window), len(self._window) // 2 + 1
        self._heard: Block = np.zeros(size, np.float32)
        self._sum: Block = np.zeros(size, np.float32)
        self._hops = 0
        self._power: NDArray[np.float64] = np.zeros(bins)
        self._least: NDArray[np.float64] = np.zeros(bins)
        self._coming: NDArray[np.float64] = np.zeros(bins)
        self._noise: NDArray[np.float64] = np.zeros(bins)
        self._speech: NDArray[np.float64] = np.zeros(bins)
        self._clean: NDArray[np.float64] = np.zeros(bins)

    def _step(self, hop: Block) -> Block:
        keep = len(self._heard) - self._hop
        self._heard[:keep] = self._heard[self._hop :].copy()
        self._heard[keep:] = np.clip(hop, -1e6, 1e6)
        spectrum = np.fft.rfft(self._heard * self._window)
        power = spectrum.real**2 + spectrum.imag**2
        if power.any():
            spectrum *= self._gains(power)
            self._sum += np.fft.irfft(spectrum, len(self._heard)).astype(np.float32) * self._join
        out = self._sum[: self._hop].copy()
        self._sum[:keep] = self._sum[self._hop :].copy()
        self._sum[keep:] = 0.0
        return out

    def _gains(self, power: NDArray[np.float64]) -> NDArray[np.float64]:
        self._learn(power)
        noise = np.maximum(self._noise, _TINY)
        posterior = np.minimum(power / noise, 1e6)
        prior = _DECISION * self._clean / noise + (1.0 - _DECISION) * np.maximum(posterior - 1.0, 0.0)
        gains = np.maximum(prior / (1.0 + prior), self._floor)
        self._clean = np.square(gains) * power
        return np.asarray(gains, np.float64)

    def _learn(self, power: NDArray[np.float64]) -> None:
        # Neighbouring bins are averaged: a single bin's minimum is far below its mean.
        smooth = power.copy()
        smooth[1:-1] = 0.25 * power[:-2] + 0.5 * power[1:-1] + 0.25 * power[2:]
        if self._hops == 0:
            self._power, self._noise = smooth.copy(), smooth.copy()
            self._least, self._coming = smooth.copy(), smooth.copy()
        self._power = _SMOOTH * self._power + (1.0 - _SMOOTH) * smooth
        self._least = np.minimum(self._least, self._power)
        self._coming = np.minimum(self._coming, self._power)
        self._hops += 1
        if self._hops % _MINIMUM_HOPS == 0:
            self._least, self._coming = np.minimum(self._coming, self._power), self._power.copy()
        speaks = self._power > _SPEECH_RATIO * self._least
        self._speech = _PRESENCE * self._speech + (1.0 - _PRESENCE) * speaks
        rate = _NOISE + (1.0 - _NOISE) * self._speech
        self._noise = rate * self._noise + (1.0 - rate) * power
