"""How loud a sound is, and making one as loud as another."""

import numpy as np
from numpy.typing import NDArray

from myna.dsp.filters import RecursiveFilter, one_pole
from myna.dsp.stage import Block

SILENCE_DB = -200.0
"""What silence measures, and the least any level can be: finite, so that it crosses every wire."""


def rms_db(block: Block) -> float | None:
    """RMS level of a block, shape (frames,), in dBFS (a full-scale square wave is 0).

    None for an empty block, which was not measured; SILENCE_DB for silence.
    """
    if len(block) == 0:
        return None
    wide = block.astype(np.float64)
    return _db(float(np.sqrt(np.dot(wide, wide) / len(wide))))


def peak_db(block: Block) -> float | None:
    """Largest absolute value in dBFS; None for an empty block, SILENCE_DB for silence."""
    return _db(float(np.max(np.abs(block)))) if len(block) else None


class Meter:
    """RMS and peak of everything heard since they were last taken."""

    def __init__(self) -> None:
        self._power = 0.0
        self._peak = 0.0
        self._frames = 0

    def add(self, block: Block) -> None:
        """Hear a block, shape (frames,)."""
        if len(block):
            wide = block.astype(np.float64)
            self._power += float(np.dot(wide, wide))
            self._peak = max(self._peak, float(np.max(np.abs(wide))))
            self._frames += len(block)

    def take(self) -> tuple[float | None, float | None]:
        """(RMS, peak) in dBFS, and start anew; (None, None) if nothing was heard."""
        if self._frames == 0:
            return None, None
        levels = _db(float(np.sqrt(self._power / self._frames))), _db(self._peak)
        self._power, self._peak, self._frames = 0.0, 0.0, 0
        return levels


def frame_rms(audio: Block, window_frames: int, hop_frames: int) -> NDArray[np.float64]:
    """RMS in windows centred on every `hop_frames`-th frame, zeros beyond the ends.

    Args:
        audio: Shape (frames,).

    Returns:
        Shape (1 + frames // hop_frames,).
    """
    half = window_frames // 2
    power = np.concatenate([[0.0], np.cumsum(np.square(audio, dtype=np.float64))])
    centres = hop_frames * np.arange(1 + len(audio) // hop_frames)
    low = np.clip(centres - half, 0, len(audio))
    high = np.clip(centres - half + window_frames, 0, len(audio))
    return np.asarray(np.sqrt(np.maximum(power[high] - power[low], 0.0) / window_frames), np.float64)


def match_loudness(voice: Block, source: Block, rate: float, *, hop_frames: int, floor: float = 1e-3) -> Block:
    """Give `voice` the loudness contour of `source`, the way live RVC converters do.

    Args:
        voice: Shape (frames,).
        source: Same shape, same moment.
        rate: 1 keeps the voice's own loudness, 0 takes the source's, in between geometrically.
        hop_frames: Distance of the loudness frames (10 ms); windows are four times as long.
        floor: Least RMS assumed of the voice, so that its silence is not blown up.

    Raises:
        ValueError: lengths differ.
    """
    if len(voice) != len(source):
        raise ValueError(f"voice of {len(voice)} frames, source of {len(source)}")
    if rate >= 1.0 or len(voice) == 0:
        return voice.copy()
    # Envelopes are stretched so that their ends meet those of frames + 1 positions, the last of which is
    # unused.
    heard, wanted = (frame_rms(audio, 4 * hop_frames, hop_frames) for audio in (voice, source))
    at = np.arange(len(voice)) * ((len(heard) - 1) / len(voice))
    gain = np.interp(at, np.arange(len(heard)), wanted) / np.maximum(np.interp(at, np.arange(len(heard)), heard), floor)
    return np.asarray(voice * gain ** (1.0 - rate), np.float32)


class LoudnessMix:
    """Streaming: the voice's loudness follows the source's by `rate` (1: its own, 0: the source's).

    Not a stage, since it hears two signals; the owner delays the source by the voice's latency. Loudness is a
    one-pole mean square of `window_ms`, so that no look-ahead is needed; gain is held within ± `limit_db`.
    Source silence makes the voice silent at rates below 1; silence of the voice stays silent.
    """

    latency_frames = 0

    def __init__(self, rate_hz: int, rate: float = 1.0, *, window_ms: float = 30.0, limit_db: float = 24.0) -> None:
        decay = float(np.exp(-1000.0 / (window_ms * rate_hz)))
        self._heard, self._wanted = one_pole(decay), one_pole(decay)
        self._most = 10.0 ** (limit_db / 20.0)
        self._smooth = float(np.exp(-1.0 / (0.02 * rate_hz)))
        self.set(rate)
        self._rate_now = self._rate
        self.reset()

    def set(self, rate: float) -> None:
        """Take a new rate, 0..1, from the next frame on, ramped over about 20 ms. ValueError out of range."""
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"rate {rate} is not within 0..1")
        self._rate = rate

    def process(self, voice: Block, source: Block) -> Block:
        """Mix a block of the voice with the source of the same moment, both of shape (frames,)."""
        if len(voice) != len(source):
            raise ValueError(f"voice of {len(voice)} frames, source of {len(source)}")
        if len(voice) == 0:
            return voice.copy()
        heard, wanted = _power(voice, self._heard), _power(source, self._wanted)
        left = (self._rate_now - self._rate) * self._smooth ** np.arange(1, len(voice) + 1)
        if abs(left[-1]) < 1e-6:
            left[-1] = 0.0
        self._rate_now = self._rate + float(left[-1])
        if self._rate == 1.0 and not left.any():
            return voice.copy()
        gain = np.minimum(np.sqrt(wanted / np.maximum(heard, 1e-12)), self._most)
        return np.asarray(voice * gain ** np.clip(1.0 - self._rate - left, 0.0, 1.0), np.float32)

    def reset(self) -> None:
        """Forget both signals; the rate stays."""
        self._heard.reset()
        self._wanted.reset()
        self._rate_now = self._rate


def _power(block: Block, mean: RecursiveFilter) -> NDArray[np.float64]:
    return np.maximum(mean.process(np.square(block, dtype=np.float64)), 0.0)


def _db(amplitude: float) -> float:
    return max(SILENCE_DB, float(20.0 * np.log10(amplitude))) if amplitude > 0.0 else SILENCE_DB
