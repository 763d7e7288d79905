"""The noise gate: exact silence between words."""

import numpy as np

from myna.dsp.delay import DelayLine
from myna.dsp.fades import Switch
from myna.dsp.filters import one_pole
from myna.dsp.stage import Block

_DETECTOR_MS = 2.0


class Gate:
    """Opens when the level passes the threshold, closes to exact zeros when it has stayed below for a while.

    The level is a one-pole mean square of 2 ms (dBFS RMS: a sine of amplitude 1 is −3 dB). It opens at
    `threshold_db`, and closes after `hold_ms` below threshold − hysteresis. A sound 6 dB over the threshold
    is detected within 0.6 ms and fully open `attack_ms` later; `lookahead_ms` delays the sound by as much, so
    that the gate is open before it comes. A threshold of None is off: the input passes bit by bit, at the
    same delay.
    """

    _threshold_db: float | None
    _hold: int
    _hysteresis_db: float
    _attack: int
    _release: int
    _opens_at: float
    _stays_at: float
    _open: bool
    _age: int

    def __init__(
        self,
        rate_hz: int,
        threshold_db: float | None = None,
        *,
        attack_ms: float = 2.0,
        hold_ms: float = 120.0,
        release_ms: float = 80.0,
        hysteresis_db: float = 6.0,
        lookahead_ms: float = 0.0,
    ) -> None:
        self._rate_hz = rate_hz
        self._threshold_db = None
        self._power = one_pole(float(np.exp(-1000.0 / (_DETECTOR_MS * rate_hz))))
        self._delay = DelayLine(round(rate_hz * lookahead_ms / 1000.0))
        self._switch = Switch(1, 1)
        self.set(
            threshold_db,
            attack_ms=attack_ms,
            hold_ms=hold_ms,
            release_ms=release_ms,
            hysteresis_db=hysteresis_db,
        )
        self.reset()

    @property
    def latency_frames(self) -> int:
        """The look-ahead."""
        return self._delay.latency_frames

    @property
    def is_open(self) -> bool:
        """Whether sound passes, or will when the attack is over; always so when off."""
        return self._open

    def set(
        self,
        threshold_db: float | None,
        *,
        attack_ms: float | None = None,
        hold_ms: float | None = None,
        release_ms: float | None = None,
        hysteresis_db: float | None = None,
    ) -> None:
        """Take new settings from the next frame on; a threshold of None is off, other Nones change nothing."""
        if self._threshold_db is None:
            self._power.reset()  # nothing was measured while it was off
        self._threshold_db = threshold_db
        if hold_ms is not None:
            self._hold = round(self._rate_hz * hold_ms / 1000.0)
        if hysteresis_db is not None:
            self._hysteresis_db = hysteresis_db
        if attack_ms is not None:
            self._attack = max(1, round(self._rate_hz * attack_ms / 1000.0))
        if release_ms is not None:
            self._release = max(1, round(self._rate_hz * release_ms / 1000.0))
        if threshold_db is not None:
            self._opens_at = 10.0 ** (threshold_db / 10.0)
            self._stays_at = 10.0 ** ((threshold_db - self._hysteresis_db) / 10.0)
        self._switch.times(self._attack, self._release)

    def process(self, block: Block) -> Block:
        """Gate a block, shape (frames,)."""
        out = self._delay.process(block)
        if len(block) == 0:
            return out
        if self._threshold_db is None:
            self._open, self._age = True, 0
            self._switch.apply(out, True)
            return out
        power = self._power.process(np.square(block, dtype=np.float64))
        index = np.arange(len(block))
        last = np.maximum.accumulate(np.where(power >= self._stays_at, index, -1))
        quiet = np.where(last >= 0, index - last, self._age + 1 + index)  # frames since it was last loud
        self._age = int(quiet[-1])
        closing, opening = quiet > self._hold, power >= self._opens_at
        at = 0
        while at < len(block):
            turns = closing[at:] if self._open else opening[at:]
            found = int(np.argmax(turns))
            end = at + found if turns[found] else len(block)
            self._switch.apply(out[at:end], self._open)
            if end < len(block):
                self._open = not self._open
            at = end
        return out

    def reset(self) -> None:
        """Closed (or open, when off), nothing heard; settings stay."""
        self._delay.reset()
        self._open = self._threshold_db is None
        self._switch = Switch(self._attack, self._release, on=self._open)
        self._power.reset()
        self._age = self._hold + 1
