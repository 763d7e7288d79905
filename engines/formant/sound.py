"""The newest sound, as grains are cut out of it."""

import numpy as np

from myna.engines.formant.reader import Signal


class Sound:
    """The newest sound as grains see it: full rate for reading, turned by a quarter, decimated for finding marks.

    Positions are absolute, in frames at the full rate, counted from the stream's first.
    """

    def __init__(self, length: int, decimation: int, filter_delay: int, turn: Signal) -> None:
        """Hold `length` frames; the decimated signal lags by `filter_delay` frames; `turn`: a Hilbert filter's taps."""
        self.full = np.zeros(length)
        self.turned = np.zeros(length)  # all its waves a quarter behind; see `turned_index`
        self._turn = turn
        self.turning = False
        self.turned_late = len(turn) // 2  # frames by which the turned signal lags
        self.low = np.zeros(length // decimation)
        self.decimation = decimation
        self._delay = filter_delay
        self.heard = 0  # frames pushed

    def push(self, full: Signal, low: Signal) -> None:
        """Append one hop."""
        _push(self.full, full)
        _push(self.low, low)
        if self.turning:
            _push(self.turned, np.convolve(self.full[-len(full) - 2 * self.turned_late :], self._turn, "valid"))
        self.heard += len(full)

    def turn(self, wanted: bool) -> None:
        """Keep the turned signal, or no longer: it is work that only lower voices need."""
        if wanted and not self.turning:
            before = np.zeros(2 * self.turned_late)
            self.turned = np.convolve(np.concatenate((before, self.full)), self._turn, "valid")
        self.turning = wanted

    def clear(self) -> None:
        """Forget the sound and begin time anew."""
        self.full[:] = 0.0
        self.turned[:] = 0.0
        self.low[:] = 0.0
        self.heard = 0

    def full_index(self, position: float) -> float:
        """Where a position lies in `full`."""
        return position - (self.heard - len(self.full))

    def turned_index(self, position: float) -> float:
        """Where a position lies in `turned`."""
        return self.full_index(position) + self.turned_late

    def low_index(self, position: float) -> float:
        """Where a position lies in `low`: its last sample is of frame heard - 1 - delay."""
        return (position - (self.heard - 1 - self._delay)) / self.decimation + len(self.low) - 1

    def position(self, low_index: float) -> float:
        """The position of a place in `low`."""
        return (low_index - len(self.low) + 1) * self.decimation + self.heard - 1 - self._delay


def _push(ring: Signal, new: Signal) -> None:
    """Move `ring` on by `new`, newest last."""
    ring[: -len(new)] = ring[len(new) :]
    ring[-len(new) :] = new
