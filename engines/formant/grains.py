"""Speaks voiced sound: one grain per new period, cut at the marks of the old ones."""

from collections import deque
from collections.abc import Callable

import numpy as np

from myna.engines.formant.reader import Reader, Signal, cut

_REACH = 0.75  # of an interval: how far a grain sounds, half an interval and half a crossfade
_SEARCH = 0.2  # of a period: how far a mark may lie from where it was expected
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
        """Forget the sound, not the time."""
        self.full[:] = 0.0
        self.low[:] = 0.0

    def full_index(self, position: float) -> float:
        """Where a position lies in `full`."""
        return position - (self.heard - len(self.full))

    def low_index(self, position: float) -> float:
        """Where a position lies in `low`: its last sample is of frame heard - 1 - delay."""
        return (position - (self.heard - 1 - self._delay)) / self.decimation + len(self.low) - 1

    def position(self, low_index: float) -> float:
        """The position of a place in `low`."""
        return (low_index - len(self.low) + 1) * self.decimation + self.heard - 1 - self._delay


class GrainVoice:
    """Pitch-synchronous overlap-add with fractional marks.

    Between two new marks the sound is one grain, then, after a crossfade of half an interval, the next: windows
    are flat, so that unchanged pitch is unchanged sound. A grain never reaches the pulse after its own, which
    matters where the new interval is the longer one.

    Source: Moulines & Charpentier, Speech Communication 1990; the flat windows are ours.
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
        self._next = self._marks[0]
        self._left = 0.0
        self._left_reach = max(self._next - position, 1.0)
        self._first = True
        self.active = True

    def begins(self, reach: float) -> float:
        """Position from which the next grain may sound, should it reach this far."""
        return self._next - (self._left_reach if self._first else min(_REACH * self._left, reach))

    @property
    def at(self) -> float:
        """Position of the next new mark."""
        return self._next

    def render(
        self,
        out: Signal,
        origin: int,
        period_at: Callable[[float], float],
        interval: float,
        formant: float,
    ) -> None:
        """Add the next grain to `out`, whose first frame is `origin`, and move on by `interval`.

        Args:
            out: Shape (frames,); what falls outside is lost.
            origin: Position of out[0].
            period_at: Tells the input's period around a position, in frames.
            interval: New period in frames.
            formant: Ratio by which formants move up.
        """
        mark, period = self._mark_near(self._next, period_at)
        reach = period / formant  # to the neighbouring pulse, as the grain plays it
        left_from, left_to = _fade(self._left, reach)
        right_from, right_to = _fade(interval, reach)
        if self._first:
            left_from = left_to = self._left_reach
        low = max(int(np.ceil(self._next - left_to)), origin)
        high = min(int(np.floor(self._next + right_to)) + 1, origin + len(out))
        if high > low:
            offset = np.arange(low, high) - self._next
            window = _ramp(-offset, left_from, left_to) * _ramp(offset, right_from, right_to)
            start = self._sound.full_index(mark + formant * float(offset[0]))
            grain = self._reader.read(self._sound.full, start, formant, high - low)
            # Shorter intervals and slower grains add up to more energy.
            out[low - origin : high - origin] += np.sqrt(formant * interval / period) * window * grain
        self._first = False
        self._left = interval
        self._next += interval

    def _mark_near(self, position: float, period_at: Callable[[float], float]) -> tuple[float, float]:
        """The input's mark nearest to a position, and the period there."""
        marks = self._marks
        while marks[-1] < position:
            last = marks[-1]
            marks.append(self._following(last, period_at(last)))
        best = min(range(len(marks)), key=lambda i: abs(marks[i] - position))
        if len(marks) == 1:
            return marks[0], period_at(marks[0])
        other = best - 1 if best else 1
        return marks[best], abs(marks[best] - marks[other])

    def _following(self, mark: float, period: float) -> float:
        """Where the sound around a mark comes again about a period later."""
        sound = self._sound
        size = period / sound.decimation
        count = max(4, round(size))
        first = round(sound.low_index(mark) - size / 2)
        short = int(np.floor((1 - _SEARCH) * size))
        long = int(np.ceil((1 + _SEARCH) * size))
        if first < 0 or first + long + 1 + count > len(sound.low):
            return mark + period  # not heard yet
        template = sound.low[first : first + count]
        ahead = sound.low[first + short - 1 : first + long + 1 + count]
        views = np.lib.stride_tricks.sliding_window_view(ahead, count)
        energy = np.einsum("ij,ij->i", views, views) * (template @ template)
        match = (views @ template) / np.sqrt(np.maximum(energy, 1e-40))
        lags = np.arange(short - 1, short - 1 + len(views))
        match = match - _STEADY * (lags / size - 1.0) ** 2
        best = int(np.argmax(match[1:-1])) + 1
        if match[best] < _WORTH:
            return mark + period
        left, top, right = match[best - 1], match[best], match[best + 1]
        bend = min(float(left - 2 * top + right), -1e-12)
        lag = float(lags[best]) + min(max(0.5 * float(left - right) / bend, -0.5), 0.5)
        return mark + lag * sound.decimation

    def _loudest(self, position: float, period: float) -> float:
        """The place of most energy in the period after a position."""
        sound = self._sound
        first = int(np.ceil(sound.low_index(position)))
        count = max(1, round(period / sound.decimation))
        piece = cut(sound.low, first - 2, first + count + 2) ** 2
        energy = np.convolve(piece, np.ones(5), "valid")
        return max(sound.position(first + int(np.argmax(energy))), position)


def _fade(interval: float, reach: float) -> tuple[float, float]:
    """From where to where a grain fades in the interval beside it, given how far it may sound."""
    return min(0.25 * interval, 0.5 * reach), min(_REACH * interval, reach)


def _ramp(offset: Signal, start: float, end: float) -> Signal:
    """1 before `start`, 0 after `end`, a raised cosine between."""
    if end <= start:
        return np.where(offset <= end, 1.0, 0.0)
    place = np.clip((offset - start) / (end - start), 0.0, 1.0)
    return np.asarray(0.5 + 0.5 * np.cos(np.pi * place), np.float64)
