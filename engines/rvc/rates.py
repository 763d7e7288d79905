"""Exact changes of sample rate: whole blocks in, whole blocks out, the same bits for the same sound."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_CROSSINGS = 16  # of the sinc on each side, at the lower of the two rates
_ROLLOFF = 0.95  # of the lower Nyquist frequency
_BETA = 8.6  # Kaiser window: about 86 dB of stop band


@lru_cache(maxsize=64)
def kernel(up: int, down: int) -> tuple[Array, int]:
    """The low-pass filter for a change by up/down, and its delay in input frames (whole).

    Its centre lies on tap delay × up of the up-sampled axis.
    """
    widest = max(1.0, down / up)  # input frames between crossings
    delay = math.ceil(_CROSSINGS * widest)
    taps = np.arange(-delay * up, delay * up + 1, dtype=np.float64)
    cutoff = _ROLLOFF / (widest * up)  # of the up-sampled Nyquist frequency
    shape = np.sinc(taps * cutoff) * np.kaiser(taps.shape[0], _BETA)
    return (shape * (up / shape.sum())).astype(np.float32), delay


class StreamResampler:
    """A block at one rate to a block at another, continuing from the last.

    Every block must span a whole number of output frames, e.g. 441 frames at 44.1 kHz → 160 at 16 kHz.
    """

    def __init__(self, rate_in_hz: int, rate_out_hz: int) -> None:
        divisor = math.gcd(rate_in_hz, rate_out_hz)
        self._up, self._down = rate_out_hz // divisor, rate_in_hz // divisor
        self._kernel, self._delay = kernel(self._up, self._down)
        # As many old frames as the filter reaches, rounded so that output falls on the same phases every time.
        self._kept = math.ceil(2 * self._delay / self._down) * self._down
        self._history: Array
        self.reset()

    @property
    def latency_frames(self) -> int:
        """Delay in input frames."""
        return 0 if self._up == self._down else self._delay

    def process(self, block: Array) -> Array:
        """(frames,) → (frames × out / in,). ValueError where that is not whole."""
        if block.shape[0] * self._up % self._down:
            raise ValueError(f"{block.shape[0]} frames are no whole number of frames at the other rate")
        if self._up == self._down:
            return block
        joined = np.concatenate((self._history, block))
        self._history = joined[-self._kept :].copy()
        first = self._kept * self._up // self._down
        count = block.shape[0] * self._up // self._down
        return _polyphase(self._kernel, joined, self._up, self._down, first, count)

    def reset(self) -> None:
        """Forget what was heard."""
        self._history = np.zeros(self._kept, np.float32)


def resampled(audio: Array, up: int, down: int, *, start: int, frames: int) -> Array:
    """A stretch of `audio` at up/down times its rate, without delay.

    Args:
        audio: (frames,); beyond its ends is silence.
        up: Numerator of the rate change.
        down: Denominator.
        start: Input frame that becomes the first output frame.
        frames: Output frames wanted.

    Returns:
        (frames,).
    """
    divisor = math.gcd(up, down)
    up, down = up // divisor, down // divisor
    if up == down:
        out = audio[start : start + frames]
        return out if out.shape[0] == frames else np.pad(out, (0, frames - out.shape[0]))
    taps, delay = kernel(up, down)
    # Cut so that the wanted first frame lies on a phase of the output grid, with the filter's reach before it.
    before = math.ceil(delay / down) * down
    lead = max(before - start, 0)
    piece = audio[max(start - before, 0) :]
    if lead:
        piece = np.concatenate((np.zeros(lead, np.float32), piece))
    needed = before + math.ceil(frames * down / up) + 2 * delay + 1
    piece = piece[:needed] if piece.shape[0] >= needed else np.pad(piece, (0, needed - piece.shape[0]))
    # The filter delays by `delay` input frames; shifting the input back by as many makes it none.
    shifted = piece[delay % down :] if delay % down else piece
    whole = delay - delay % down
    first = (before + whole) * up // down
    return _polyphase(taps, shifted, up, down, first, frames)


def whole(audio: Array, rate_in_hz: int, rate_out_hz: int) -> Array:
    """All of `audio` at another rate, without delay; round(frames × out / in) frames."""
    if rate_in_hz == rate_out_hz or audio.shape[0] == 0:
        return audio
    frames = round(audio.shape[0] * rate_out_hz / rate_in_hz)
    return resampled(audio, rate_out_hz, rate_in_hz, start=0, frames=frames)


def _polyphase(taps: Array, audio: Array, up: int, down: int, first: int, count: int) -> Array:
    """Frames first … first + count − 1 of `audio` with `up` − 1 zeros after each frame, filtered, every `down`-th kept.

    Every `up`-th frame of the result has the same taps, those that meet no zeros: each such phase is one product.
    """
    reach = -(-len(taps) // up)
    phases = np.pad(taps, (0, reach * up - len(taps))).reshape(reach, up).T[:, ::-1]
    last = (first + count - 1) * down // up
    padded = np.concatenate((np.zeros(reach - 1, np.float32), audio[: last + 1]))
    padded = np.pad(padded, (0, max(0, last + reach - len(padded))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach)  # row k ends with frame k of `audio`
    out = np.empty(count, np.float32)
    for turn in range(min(up, count)):
        at, phase = divmod((first + turn) * down, up)
        wanted = out[turn::up]
        np.einsum("ij,j->i", windows[at : at + (len(wanted) - 1) * down + 1 : down], phases[phase], out=wanted)
    return out
