"""Speaks voiced sound: one grain per new period, cut at the marks of the old ones, and between two its turned twin."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from myna.engines.formant.reader import Reader, Signal, cut
from myna.engines.formant.sound import Sound

_AFTER = 0.15  # of a period: marks are set so far after the loudest place
_UNLIKE = 0.19  # by how much unlike grains are raised, from three semitones on
_SEARCH = 0.2  # of a period: how far a mark may lie from where it was expected
_BEFORE = 0.65  # of the period that is looked for around a mark: so much lies before it, and need not be waited for
_LONGEST = 1.5  # times the last period: no following one is longer
_WORTH = 0.3  # correlation under which a mark is where it was expected
_STEADY = 0.5  # weight of the expected place against the correlation
# New pitches below which grains have twins, and below which these are as strong as they. At 110 to 150 Hz, where pulses
# are not heard one by one, twins cost 0.1 points of DNSMOS.
_TWINS_HZ, _FULL_TWINS_HZ = 115.0, 90.0


class _Grain(NamedTuple):
    """A piece of the input, and where it is put."""

    mark: float  # its middle in the input
    period: float  # of the input there
    at: float  # its middle in the output
    lag: float  # frames after which its twin follows
    share: float  # radians: the grain is spoken with the cosine of it, its twin with the sine


class _Half(NamedTuple):
    """Half a grain: what is to be added to the output."""

    grain: _Grain
    span: tuple[float, float]  # positions in the output between which it sounds
    fade: float  # frames in which it is faded to nothing
    formant: float
    gain: float


class GrainVoice:
    """Pitch-synchronous overlap-add with fractional marks, and dispersed pulses where the pitch goes down.

    A grain fades out while the next one fades in, over the whole interval between two new marks, so that
    unchanged pitch is unchanged sound. It never reaches the pulse after its own, which matters where the new
    interval is the longer one.

    Pulses that are further apart than they were spoken are heard one by one, as a buzz. So half an interval after each
    grain its twin follows, whose waves are a quarter ahead: harmonics stay as strong as they are (under 300 Hz up to
    2.7 dB less), even ones where they were, odd ones turned, but the sound's energy comes twice as often. DNSMOS gives
    0.4 points for it at −5 semitones.

    Source: Moulines & Charpentier, Speech Communication 1990; dispersed pulses against buzz: McCree & Barnwell, IEEE
    Transactions on Speech and Audio Processing 1995.
    """

    def __init__(self, sound: Sound, rate_hz: int) -> None:
        """Read from `sound`, which has this rate."""
        self._sound = sound
        self._reader = Reader()
        self._marks: deque[float] = deque(maxlen=32)
        self._twins: list[_Half] = []  # yet to sound
        self._alone, self._followed = rate_hz / _TWINS_HZ, rate_hz / _FULL_TWINS_HZ  # intervals
        self.active = False

    def stop(self) -> None:
        """End the stretch: the next one starts with marks of its own."""
        self.active = False
        self._marks.clear()
        self._twins.clear()

    def start(self, position: float, period: float) -> None:
        """Begin a voiced stretch at a position: the first mark is the loudest place of its first period."""
        self._marks.clear()
        self._marks.append(self._loudest(position, period))
        self._begun = position
        self._grain: _Grain | None = None
        self._falling = False
        self.active = True

    def render(
        self,
        out: Signal,
        origin: int,
        until: int,
        period_at: Callable[[float], float],
        pitch: float,
        formant: float,
        interval: float | None = None,
        dispersed: float = 0.0,
    ) -> bool:
        """Add the next half of a grain to `out`, whose first frame is `origin`, if it begins to sound before `until`.

        Halves, each as late as may be: a whole grain asks for a period more of the future, before its first half is
        heard. That was 12 ms of delay for a voice of 80 Hz.

        Args:
            out: Shape (frames,); what falls outside is lost.
            origin: Position of out[0].
            until: Position before which a half must begin.
            period_at: Tells the input's period around a position, in frames.
            pitch: Ratio by which the pitch moves up.
            formant: Ratio by which formants move up.
            interval: New period in frames, whatever the old one is; None: the old one by `pitch`.
            dispersed: How strong twins are, 0…1; 1 is as strong as their grains.

        Returns:
            False if no half begins before `until`: nothing was added.
        """
        grain = self._grain
        if grain is None:
            if self._begun >= until:
                return False
            expected = interval or period_at(self._begun) / pitch
            grain = self._grain_at(max(self._marks[0], self._begun + 1.0), period_at, expected, dispersed)
            # The first of a stretch is faded in by the mix.
            self._speak(out, origin, grain, (self._begun, grain.at), np.inf, formant, grain.period)
            self._grain, self._falling = grain, True
            return True
        if grain.at >= until:
            return False
        if interval is None:
            interval = self._advance(grain.at, 1.0 / pitch, period_at)
        if self._falling:
            fade = min(interval, grain.period / formant)  # to the neighbouring pulse, as the grain plays it
            self._speak(out, origin, grain, (grain.at, grain.at + fade), fade, formant, interval)
            self._falling = False
            return True
        # The marks around the next new one may still be unheard while it is far off.
        if grain.at + interval - min(interval, _LONGEST * grain.period / formant) >= until:
            return False
        following = self._grain_at(grain.at + interval, period_at, interval, dispersed)
        fade = min(interval, following.period / formant)
        if following.at - fade >= until:
            return False
        self._speak(out, origin, following, (following.at - fade, following.at), fade, formant, interval)
        self._grain, self._falling = following, True
        return True

    def follow(self, out: Signal, origin: int, until: int) -> None:
        """Add the twins that begin to sound before `until` to `out`, whose first frame is `origin`.

        They wait until then because the turned sound is heard later: by less than they lag behind their grains.
        """
        waiting = []
        for half in self._twins:
            if half.span[0] < until:
                self._add(out, origin, half, self._sound.turned, self._sound.turned_index(half.grain.mark))
            else:
                waiting.append(half)
        self._twins = waiting

    def _speak(
        self,
        out: Signal,
        origin: int,
        grain: _Grain,
        span: tuple[float, float],
        fade: float,
        formant: float,
        interval: float,
    ) -> None:
        """Add what a grain is in a span of positions to `out`, and have its twin follow."""
        # Longer intervals and faster grains hold less energy; crossfaded grains that are not the same sound
        # lose 1.5 dB (measured on speech at ±5 semitones).
        change = interval / grain.period
        gain = np.sqrt(formant * max(change, 1.0)) * (1 + _UNLIKE * min(1.0, 4 * abs(np.log2(change))))
        half = _Half(grain, span, fade, formant, gain * np.cos(grain.share))
        self._add(out, origin, half, self._sound.full, self._sound.full_index(grain.mark))
        if grain.share > 0.0:
            twin = grain._replace(at=grain.at + grain.lag)
            later = (span[0] + grain.lag, span[1] + grain.lag)
            self._twins.append(_Half(twin, later, fade, formant, -gain * np.sin(grain.share)))

    def _add(self, out: Signal, origin: int, half: _Half, sound: Signal, mark: float) -> None:
        """Add half a grain to `out`, read from `sound`, in which its mark lies at index `mark`."""
        low = max(int(np.ceil(half.span[0])), origin)
        high = min(int(np.ceil(half.span[1])), origin + len(out))
        if high <= low:
            return
        offset = np.arange(low, high, dtype=np.float64) - half.grain.at
        piece = self._reader.read(sound, mark + half.formant * float(offset[0]), half.formant, high - low)
        window = 0.5 + 0.5 * np.cos(np.pi / half.fade * offset)  # a raised cosine
        out[low - origin : high - origin] += half.gain * window * piece

    def _grain_at(
        self, position: float, period_at: Callable[[float], float], interval: float, dispersed: float
    ) -> _Grain:
        """The grain to put at a position, `interval` frames after the one before: the one whose mark is nearest."""
        reached = min(max((interval - self._alone) / (self._followed - self._alone), 0.0), 1.0)
        share = 0.25 * np.pi * dispersed * reached
        return _Grain(*self._mark_near(position, period_at), position, 0.5 * interval, share)

    def _mark_near(self, position: float, period_at: Callable[[float], float]) -> tuple[float, float]:
        """The input's mark nearest to a position, and the period there."""
        marks = self._marks
        while marks[-1] < position and self._extend(period_at):
            pass
        last = marks[-1]
        if last < position:  # not heard yet: as the last period went on
            period = self._last_period(period_at)
            return last + period * round((position - last) / period), period
        best = min(range(len(marks)), key=lambda i: abs(marks[i] - position))
        if len(marks) == 1:
            return marks[0], period_at(marks[0])
        return marks[best], abs(marks[best] - marks[best - 1 if best else 1])

    def _advance(self, position: float, periods: float, period_at: Callable[[float], float]) -> float:
        """Frames in which, from a position on, so many periods of the input pass.

        Following the marks, not their mean rate, keeps the output's pitch in time with the input's: with one
        interval per period estimate it lagged, and half of all frames were more than 15 cents off.
        """
        marks = self._marks
        at, left = position, periods
        i = max((i for i in range(len(marks)) if marks[i] <= position), default=0)
        while True:
            if i + 1 >= len(marks):
                if not self._extend(period_at):
                    return at + left * self._last_period(period_at) - position
                i = min(i, len(marks) - 2)  # the oldest mark may have gone
            period = marks[i + 1] - marks[i]
            here = (marks[i + 1] - at) / period
            if here >= left:
                return at + left * period - position
            left -= here
            at = marks[i + 1]
            i += 1

    def _last_period(self, period_at: Callable[[float], float]) -> float:
        marks = self._marks
        return marks[-1] - marks[-2] if len(marks) > 1 else period_at(marks[-1])

    def _extend(self, period_at: Callable[[float], float]) -> bool:
        """Find the mark after the last; False if its sound was not heard yet."""
        following = self._following(self._marks[-1], period_at(self._marks[-1]))
        if following is None:
            return False
        self._marks.append(following)
        return True

    def _following(self, mark: float, period: float) -> float | None:
        """Where the sound around a mark comes again about a period later; None if not heard yet."""
        sound = self._sound
        size = period / sound.decimation
        count = max(4, round(size))
        first = round(sound.low_index(mark) - _BEFORE * size)
        short = int(np.floor((1 - _SEARCH) * size))
        long = int(np.ceil((1 + _SEARCH) * size))
        if first + long + 1 + count > len(sound.low):
            return None
        if first + short < 1:  # a stretch that outlived its sound
            return mark + period
        template = cut(sound.low, first, first + count)
        ahead = sound.low[first + short - 1 : first + long + 1 + count]
        squares = np.concatenate(([0.0], np.cumsum(ahead * ahead)))
        energy = (squares[count:] - squares[:-count]) * (template @ template)
        match = np.correlate(ahead, template, "valid") / np.sqrt(np.maximum(energy, 1e-40))
        lags = np.arange(short - 1, short - 1 + len(match))
        match = match - _STEADY * (lags / size - 1.0) ** 2
        best = int(np.argmax(match[1:-1])) + 1
        if match[best] < _WORTH:
            return mark + period
        left, top, right = match[best - 1], match[best], match[best + 1]
        bend = min(float(left - 2 * top + right), -1e-12)
        lag = float(lags[best]) + min(max(0.5 * float(left - right) / bend, -0.5), 0.5)
        return mark + lag * sound.decimation

    def _loudest(self, position: float, period: float) -> float:
        """Just after the place of most energy in the period that follows a position."""
        sound = self._sound
        first = int(np.ceil(sound.low_index(position)))
        count = max(1, round(period / sound.decimation))
        piece = cut(sound.low, first - 2, first + count + 2) ** 2
        energy = np.convolve(piece, np.ones(5), "valid")
        return max(sound.position(first + int(np.argmax(energy))) + _AFTER * period, position)
