"""Speaks voiced sound: one grain per new period, cut at the marks of the old ones."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from myna.engines.formant.reader import Reader, Signal, cut

_AFTER = 0.15  # of a period: marks are set so far after the loudest place
_UNLIKE = 0.19  # by how much unlike grains are raised, from three semitones on
_SEARCH = 0.2  # of a period: how far a mark may lie from where it was expected
_BEFORE = 0.65  # of the period that is looked for around a mark: so much lies before it, and need not be waited for
_LONGEST = 1.5  # times the last period: no following one is longer
_WORTH = 0.3  # correlation under which a mark is where it was expected
_STEADY = 0.5  # weight of the expected place against the correlation


class Sound:
    """The newest sound as grains see it: full rate for reading, decimated for finding marks.

    Positions are absolute, in frames at the full rate, counted from the stream's first.
    """

    def __init__(self, length: int, decimation: int, filter_delay: int) -> None:
        """Hold `length` frames; the decimated signal lags by `filter_delay` frames."""
        self.full = np.zeros(length)
        self.low = np.zeros(length // decimation)
        self.decimation = decimation
        self._delay = filter_delay
        self.heard = 0  # frames pushed

    def push(self, full: Signal, low: Signal) -> None:
        """Append one hop."""
        for kept, new in ((self.full, full), (self.low, low)):
            kept[: -len(new)] = kept[len(new) :]
            kept[-len(new) :] = new
        self.heard += len(full)

    def clear(self) -> None:
        """Forget the sound and begin time anew."""
        self.full[:] = 0.0
        self.low[:] = 0.0
        self.heard = 0

    def full_index(self, position: float) -> float:
        """Where a position lies in `full`."""
        return position - (self.heard - len(self.full))

    def low_index(self, position: float) -> float:
        """Where a position lies in `low`: its last sample is of frame heard - 1 - delay."""
        return (position - (self.heard - 1 - self._delay)) / self.decimation + len(self.low) - 1

    def position(self, low_index: float) -> float:
        """The position of a place in `low`."""
        return (low_index - len(self.low) + 1) * self.decimation + self.heard - 1 - self._delay


class _Grain(NamedTuple):
    """A piece of the input, and where it is put."""

    mark: float  # its middle in the input
    period: float  # of the input there
    at: float  # its middle in the output


class GrainVoice:
    """Pitch-synchronous overlap-add with fractional marks.

    A grain fades out while the next one fades in, over the whole interval between two new marks, so that
    unchanged pitch is unchanged sound. It never reaches the pulse after its own, which matters where the new
    interval is the longer one.

    Source: Moulines & Charpentier, Speech Communication 1990.
    """

    def __init__(self, sound: Sound) -> None:
        """Read from `sound`."""
        self._sound = sound
        self._reader = Reader()
        self._marks: deque[float] = deque(maxlen=32)
        self.active = False

    def stop(self) -> None:
        """End the stretch: the next one starts with marks of its own."""
        self.active = False
        self._marks.clear()

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

        Returns:
            False if no half begins before `until`: nothing was added.
        """
        grain = self._grain
        if grain is None:
            if self._begun >= until:
                return False
            grain = self._grain_at(max(self._marks[0], self._begun + 1.0), period_at)
            # The first of a stretch is faded in by the mix.
            self._add(out, origin, grain, (self._begun, grain.at), np.inf, formant, grain.period)
            self._grain, self._falling = grain, True
            return True
        if grain.at >= until:
            return False
        if interval is None:
            interval = self._advance(grain.at, 1.0 / pitch, period_at)
        if self._falling:
            fade = min(interval, grain.period / formant)  # to the neighbouring pulse, as the grain plays it
            self._add(out, origin, grain, (grain.at, grain.at + fade), fade, formant, interval)
            self._falling = False
            return True
        # The marks around the next new one may still be unheard while it is far off.
        if grain.at + interval - min(interval, _LONGEST * grain.period / formant) >= until:
            return False
        following = self._grain_at(grain.at + interval, period_at)
        fade = min(interval, following.period / formant)
        if following.at - fade >= until:
            return False
        self._add(out, origin, following, (following.at - fade, following.at), fade, formant, interval)
        self._grain, self._falling = following, True
        return True

    def _add(
        self,
        out: Signal,
        origin: int,
        grain: _Grain,
        span: tuple[float, float],
        fade: float,
        formant: float,
        interval: float,
    ) -> None:
        """Add what a grain is in a span of positions to `out`; it is faded to nothing in `fade` frames."""
        low = max(int(np.ceil(span[0])), origin)
        high = min(int(np.ceil(span[1])), origin + len(out))
        if high <= low:
            return
        offset = np.arange(low, high, dtype=np.float64) - grain.at
        start = self._sound.full_index(grain.mark + formant * float(offset[0]))
        piece = self._reader.read(self._sound.full, start, formant, high - low)
        # Longer intervals and faster grains hold less energy; crossfaded grains that are not the same sound
        # lose 1.5 dB (measured on speech at ±5 semitones).
        change = interval / grain.period
        gain = np.sqrt(formant * max(change, 1.0)) * (1 + _UNLIKE * min(1.0, 4 * abs(np.log2(change))))
        window = 0.5 + 0.5 * np.cos(np.pi / fade * offset)  # a raised cosine
        out[low - origin : high - origin] += gain * window * piece

    def _grain_at(self, position: float, period_at: Callable[[float], float]) -> _Grain:
        """The grain to put at a position: the one whose mark is nearest."""
        return _Grain(*self._mark_near(position, period_at), position)

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
