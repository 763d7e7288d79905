"""Speaks unvoiced sound anew: the input's spectrum, with phases of our own."""

import zlib

import numpy as np
from numpy.typing import NDArray

from myna.engines.formant.reader import Signal

_LOW_HZ = (100.0, 200.0)  # nothing below, all above: what noise is there is rumble, or the pitch at the edges of voice


class NoiseVoice:
    """Overlapping frames, each with the magnitudes of the input and random phases.

    A frame's phases are keyed by the samples it was made from, by a counter-based generator. So no split of the
    input into blocks, no rerun, and no cut of a recording on the hop's grid changes them.
    """

    def __init__(self, rate_hz: float, hop: int, overlap: int, smooth_hz: float, whispered: bool) -> None:
        """Make frames of `overlap` hops.

        Args:
            rate_hz: Rate.
            hop: Frames from one window to the next.
            overlap: Hops per window, >= 2.
            smooth_hz: Width of the spectral smoothing; more than the pitch hides it.
            whispered: Take away what a whisper lacks below about 500 Hz.
        """
        self.size = hop * overlap
        self._hop = hop
        phase = (np.arange(self.size) + 0.5) / self.size
        # Power-complementary: independent frames add up to an even level.
        self._analysis = np.sqrt(2.0 / overlap) * np.sin(np.pi * phase)
        self._synthesis = np.sqrt(2.0 / overlap) * np.sin(np.pi * phase)
        self._rise = np.sqrt(overlap)  # a frame's energy was that of one hop and is spread over the window
        hz = np.fft.rfftfreq(self.size, 1.0 / rate_hz)
        low, high = _LOW_HZ
        self._shape = np.clip((hz - low) / (high - low), 0.0, 1.0)
        if whispered:
            self._shape = self._shape * (hz / np.hypot(hz, 500.0))
        bins = max(1, round(smooth_hz * self.size / rate_hz))
        self._smooth = np.hanning(2 * bins + 1)[1:-1] if bins > 1 else np.array([0.25, 0.5, 0.25])
        self._smooth = self._smooth / self._smooth.sum()

    def frame(self, sound: Signal, formant: float, key: bytes) -> Signal:
        """Resynthesise one window of sound, shape (size,), to be overlapped and added every hop.

        Args:
            sound: The input under the window, shape (size,).
            formant: Ratio by which its envelope moves up.
            key: What the phases are drawn from: equal keys, equal phases.
        """
        power = np.abs(np.fft.rfft(sound * self._analysis)) ** 2
        edge = len(self._smooth) // 2
        padded = np.concatenate((power[edge:0:-1], power, power[-2 : -edge - 2 : -1]))
        power = np.convolve(padded, self._smooth, "valid")
        if formant != 1.0:
            bins = np.arange(len(power))
            power = np.interp(bins / formant, bins, power, right=0.0) / formant
        draw = np.random.Generator(np.random.Philox(key=zlib.crc32(key)))
        turn = draw.random(len(power))
        spectrum = np.sqrt(power) * self._shape * np.exp(2j * np.pi * turn)
        out: NDArray[np.float64] = np.fft.irfft(spectrum, self.size)
        return np.asarray(out * self._synthesis * self._rise, np.float64)
