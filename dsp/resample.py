"""Sample rate conversion of a stream: at a fixed ratio, or at one that follows a drifting clock."""

import math
from functools import lru_cache

import numpy as np
import soxr
from numpy.typing import NDArray

from myna.dsp.fifo import Fifo
from myna.dsp.stage import Block

# --- fixed ratio, highest quality -----------------------------------------------------------------------


@lru_cache(maxsize=64)
def _soxr_lag_frames(rate_in_hz: int, rate_out_hz: int, quality: str) -> int:
    """Most frames that soxr is ever behind, in output frames: measured, since it tells only what it holds now.

    Its lag repeats with its internal blocks, which are shorter than a quarter of a second.
    """
    stream = soxr.ResampleStream(rate_in_hz, rate_out_hz, 1, dtype="float32", quality=quality)
    step, fed, made, lag = max(1, rate_in_hz // 8000), 0, 0, 0
    silence = np.zeros(step, np.float32)
    while fed < rate_in_hz // 3:
        fed += step
        lag = max(lag, -(-fed * rate_out_hz // rate_in_hz) - made)
        made += len(stream.resample_chunk(silence))
    return lag + 1


class StreamingResampler:
    """Fixed ratio by soxr: its best quality, at a delay of 20–40 ms; the choice for files.

    Live paths want `FractionalResampler`, whose delay is below 2 ms. After N input frames exactly
    ceil(N × out / in) frames have come out, for any split into blocks.
    """

    def __init__(self, rate_in_hz: int, rate_out_hz: int, *, quality: str = "HQ") -> None:
        if rate_in_hz < 1 or rate_out_hz < 1:
            raise ValueError(f"no such rates: {rate_in_hz} to {rate_out_hz} Hz")
        self._in, self._out = rate_in_hz, rate_out_hz
        self._stream = soxr.ResampleStream(rate_in_hz, rate_out_hz, 1, dtype="float32", quality=quality)
        self._same = rate_in_hz == rate_out_hz
        self.latency_frames: int = 0 if self._same else _soxr_lag_frames(rate_in_hz, rate_out_hz, quality)
        """Delay in output frames: input frame p comes out at p × out / in + latency."""
        self._ready = Fifo()
        self.reset()

    def process(self, block: Block) -> Block:
        """Take a block, shape (frames,), and return what has become due, shape (any,)."""
        if self._same:
            return block.copy()
        before = self._due(self._fed)
        self._fed += len(block)
        if len(block):
            self._ready.push(self._stream.resample_chunk(np.ascontiguousarray(block, np.float32)))
        return self._ready.pop(self._due(self._fed) - before)

    def reset(self) -> None:
        """Back to the state right after construction."""
        self._stream.clear()
        self._ready.clear()
        self._ready.push_silence(self.latency_frames)
        self._fed = 0

    def _due(self, fed: int) -> int:
        return -(-fed * self._out // self._in)


# --- steerable ratio, low delay -------------------------------------------------------------------------

_PASS = 0.42  # of the lower rate: 20.2 kHz at 48 kHz
_STOP = 0.54  # mirror images of what lies below 0.46 are stopped
_ATTENUATION_DB = 94.0
_DEGREE = 5  # of the polynomials that give a tap for any phase; 5 leaves less than the stopband does
_RAMP = 256  # output frames over which a new ratio is taken
_CHUNK = 1024  # output frames made at a time
_MOST_PPM = 2000.0


@lru_cache(maxsize=64)
def _bank(rate_in_hz: int, rate_out_hz: int) -> NDArray[np.float32]:
    """Windowed sinc as polynomials of the phase, shape (taps, degree + 1), lowest power first.

    Tap k at phase μ (0..1) weighs input frame floor(position) − taps/2 + 1 + k, which lies
    (taps/2 − 1 − k) + μ frames before the position. The polynomials are in μ − ½.
    """
    scale = min(1.0, rate_out_hz / rate_in_hz)
    width = (_STOP - _PASS) * scale
    half = int(np.ceil((_ATTENUATION_DB - 8.0) / (2.285 * 2.0 * np.pi * width) / 2.0))
    beta = 0.1102 * (_ATTENUATION_DB - 8.7)
    cutoff = (_STOP + _PASS) * scale  # in units of half the input rate
    nodes = 0.5 - 0.5 * np.cos(np.pi * (np.arange(4 * _DEGREE) + 0.5) / (4 * _DEGREE))
    distance = (half - 1 - np.arange(2 * half))[:, None] + nodes[None, :]
    window = np.i0(beta * np.sqrt(np.maximum(1.0 - (distance / half) ** 2, 0.0))) / np.i0(beta)
    taps = cutoff * np.sinc(cutoff * distance) * window
    powers = np.vander(nodes - 0.5, _DEGREE + 1, increasing=True)
    bank = np.linalg.lstsq(powers, taps.T, rcond=None)[0].T
    bank[:, 0] /= bank[:, 0].sum()  # unity at 0 Hz for the middle phase
    return np.ascontiguousarray(bank, np.float32)


class FractionalResampler:
    """Any ratio, steered in ppm while it runs: rate conversion and drift correction in one.

    Windowed sinc whose taps are polynomials of the phase (Farrow's structure), so that every phase is exact
    and one matrix product serves a block. Passes 0.42 of the lower rate, stops 90 dB down from 0.54. With ppm
    0, after N input frames exactly ceil(N × out / in) frames have come out, for any split into blocks.

    A new ratio is taken linearly over 256 output frames: phase and frequency have no step.

    Source: Farrow, ISCAS 1988; Smith, "Digital Audio Resampling", 2002.
    """

    _ppm: float
    _step: int
    _target: int
    _slope: int
    _ramp_left: int
    _held: int
    _head: int

    def __init__(self, rate_in_hz: int, rate_out_hz: int, *, delay_in_frames: float | None = None) -> None:
        """Convert from one rate to another.

        Args:
            delay_in_frames: The delay wanted, in input frames; None: the least that makes `latency_frames` whole.

        Raises:
            ValueError: a rate below 1, or a delay below `least_delay_in_frames`.
        """
        if rate_in_hz < 1 or rate_out_hz < 1:
            raise ValueError(f"no such rates: {rate_in_hz} to {rate_out_hz} Hz")
        self._bank = _bank(rate_in_hz, rate_out_hz)
        self._half = len(self._bank) // 2
        # Positions are integers, so that no split and no hour shifts them. An input frame is divided into
        # `one` parts of which a nominal output frame takes a whole number: for 44100 → 48000, 160 × 2^32 and
        # 147 × 2^32.
        divisor = math.gcd(rate_in_hz, rate_out_hz)
        scale = 1 << max(0, 40 - (rate_out_hz // divisor).bit_length())
        self._one = rate_out_hz // divisor * scale
        self._nominal = rate_in_hz // divisor * scale
        self._rates = rate_in_hz, rate_out_hz
        least = least_delay_in_frames(rate_in_hz, rate_out_hz)
        if delay_in_frames is None:
            delay_in_frames = -(-least * rate_out_hz // rate_in_hz) * rate_in_hz / rate_out_hz
        elif delay_in_frames < least:
            raise ValueError(f"a delay of {delay_in_frames} input frames is less than {least}")
        self.delay_in_frames = delay_in_frames
        """Exact delay, in input frames."""
        self._delay = round(delay_in_frames * self._one)
        self._keep = int(np.ceil(delay_in_frames)) + self._half + 2
        self._store: Block = np.zeros(self._keep + 8192, np.float32)
        self.reset()

    @property
    def latency_frames(self) -> int:
        """Delay in output frames at the nominal ratio, rounded if a fractional one was asked for."""
        return round(self.delay_in_frames * self._rates[1] / self._rates[0])

    @property
    def ppm(self) -> float:
        """The deviation asked for last."""
        return self._ppm

    def steer(self, ppm: float) -> None:
        """Make `ppm` more output frames than nominal, from the next frame on. ValueError beyond ±2000."""
        if not -_MOST_PPM <= ppm <= _MOST_PPM:
            raise ValueError(f"{ppm} ppm is beyond ±{_MOST_PPM:.0f}")
        if ppm == self._ppm:
            return
        self._ppm = ppm
        target = round(self._nominal / (1.0 + 1e-6 * ppm))
        self._slope = (target - self._step) // _RAMP
        self._ramp_left = _RAMP
        self._target = target

    def process(self, block: Block) -> Block:
        """Take a block, shape (frames,), and return what has become due, shape (any,)."""
        parts = [self._take(block[at : at + 4096]) for at in range(0, len(block), 4096)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def reset(self) -> None:
        """Forget all sound, at the nominal ratio."""
        self._ppm = 0.0
        self._step = self._target = self._nominal
        self._slope = self._ramp_left = 0
        self._store[:] = 0.0
        # Position p of the store is input frame p − held; the head is where the next output is due (before
        # its delay).
        self._held = self._keep
        self._head = self._held * self._one

    def _take(self, block: Block) -> Block:
        if self._held + len(block) > len(self._store):
            gone = self._held - self._keep
            self._store[: self._keep] = self._store[gone : self._held].copy()
            self._held = self._keep
            self._head -= gone * self._one
        self._store[self._held : self._held + len(block)] = block
        self._held += len(block)
        end = self._held * self._one
        parts = []
        while self._head < end:
            parts.append(self._make(end))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _make(self, end: int) -> Block:
        """Make the outputs whose head lies before `end`, up to a chunk or the end of a ramp."""
        step = self._step
        if self._ramp_left:
            count = self._ramp_left
            index = np.arange(count, dtype=np.int64)
            heads = self._head + step * index + self._slope * (index * (index - 1) // 2)
            count = int(np.searchsorted(heads, end))
            self._ramp_left -= count
            heads = heads[:count]
            self._head = int(heads[-1]) + step + self._slope * (count - 1)
            self._step = self._target if self._ramp_left == 0 else step + self._slope * count
        else:
            count = min(_CHUNK, -(-(end - self._head) // step))
            heads = self._head + step * np.arange(count, dtype=np.int64)
            self._head += step * count
        return self._interpolate(heads - self._delay)

    def _interpolate(self, positions: NDArray[np.int64]) -> Block:
        whole, part = np.divmod(positions, self._one)
        phase = (part / self._one - 0.5).astype(np.float32)
        first = int(whole[0]) - self._half + 1
        rows = whole - whole[0]
        span = int(rows[-1]) + 1
        windows = np.lib.stride_tricks.sliding_window_view(
            self._store[first : first + span + 2 * self._half - 1], 2 * self._half
        )
        if span <= 2 * len(positions):  # most windows are used: every product once, rows picked afterwards
            values = (np.ascontiguousarray(windows) @ self._bank)[rows]
        else:
            values = windows[rows] @ self._bank
        out = values[:, _DEGREE]
        for power in range(_DEGREE - 1, -1, -1):
            out = out * phase + values[:, power]
        return np.ascontiguousarray(out, np.float32)


def least_delay_in_frames(rate_in_hz: int, rate_out_hz: int) -> int:
    """Least delay of a FractionalResampler, in input frames: half its filter."""
    return len(_bank(rate_in_hz, rate_out_hz)) // 2
