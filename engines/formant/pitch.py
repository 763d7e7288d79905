"""Finds the fundamental period of the newest sound, and whether there is one."""

import numpy as np
from numpy.typing import NDArray

Signal = NDArray[np.float64]

LOWEST_HZ = 65.0
HIGHEST_HZ = 600.0
WINDOW_S = 0.0167
LOOK = 2  # hops that a decision waits for what follows
_CANDIDATES = 5
_UNVOICED = 0.55  # correlation at which voiced and unvoiced cost the same
_SWITCH = 0.15  # cost of a change of voicing: what sounds goes on sounding; 0.08 left more edges at a wrong pitch
_JUMP = 0.35  # cost of an octave's jump
_LONG_LAG = 0.03  # cost per octave of lag: twice the period correlates as well as the period
_FLOOR = 1e-5  # rms under which nothing is called voiced (-100 dBFS)


class PitchTracker:
    """Normalised cross-correlation anchored on the newest sample, and a short-memory dynamic programme.

    A decision comes `LOOK` frames late, which the dynamic programme uses to look back from what followed.

    Source: Talkin, "A robust algorithm for pitch tracking", 1995.
    """

    def __init__(self, rate_hz: float) -> None:
        self.window = round(WINDOW_S * rate_hz)
        self._short = int(rate_hz / HIGHEST_HZ)
        self._long = int(np.ceil(rate_hz / LOWEST_HZ))
        self.needed = self.window + self._long + 2
        lags = np.arange(self._short - 1, self._long + 2)
        self._bias = _LONG_LAG * np.log2(np.maximum(lags, 1) / self._short)
        self.reset()

    def reset(self) -> None:
        """Forget what was heard."""
        self._costs = np.zeros(1)
        self._periods = [np.zeros(1)]  # of the last LOOK + 1 frames; 0: unvoiced
        self._back: list[NDArray[np.intp]] = []

    def push(self, heard: Signal) -> float:
        """Take the newest `needed` frames, shape (needed,); return the period decided for LOOK calls ago.

        Returns:
            The period in frames, or 0 if unvoiced.
        """
        periods, local = self._measure(heard)
        before = self._periods[-1]
        step = np.full((len(periods), len(before)), _SWITCH)
        step[0, 0] = 0.0
        octaves = np.log2(periods[1:, None] / before[1:])
        step[1:, 1:] = _JUMP * np.abs(octaves)
        total = self._costs[None, :] + step
        best = np.argmin(total, axis=1)
        self._costs = total[np.arange(len(periods)), best] + local
        self._costs -= self._costs.min()
        self._periods.append(periods)
        self._back.append(best)
        if len(self._back) > LOOK:
            self._back.pop(0)
            self._periods.pop(0)
        state = int(np.argmin(self._costs))
        if len(self._back) < LOOK:
            return 0.0
        for back in reversed(self._back):
            state = int(back[state])
        return float(self._periods[0][state])

    def _measure(self, heard: Signal) -> tuple[Signal, Signal]:
        """Candidate periods (the first is 0: unvoiced) and what each costs."""
        window, short, long = self.window, self._short, self._long
        newest = heard[-window:]
        energy = float(newest @ newest)
        if energy < window * _FLOOR**2:
            return np.zeros(1), np.zeros(1)
        # Lags short - 1 … long + 1, so that peaks at both ends have neighbours.
        past = heard[-(window + long + 1) : len(heard) - (short - 1)]
        squares = np.concatenate(([0.0], np.cumsum(past * past)))
        energies = (squares[window:] - squares[:-window])[::-1]
        floor = window * _FLOOR**2
        score = np.correlate(past, newest, "valid")[::-1] / np.sqrt(energy * np.maximum(energies, floor))
        middle = score[1:-1]
        peaks = np.flatnonzero((middle > 0.3) & (middle >= score[:-2]) & (middle > score[2:])) + 1
        biased = score - self._bias
        if len(peaks) > _CANDIDATES:
            peaks = peaks[np.argsort(-biased[peaks], kind="stable")[:_CANDIDATES]]
        left, top, right = score[peaks - 1], score[peaks], score[peaks + 1]
        bend = np.minimum(left - 2 * top + right, -1e-12)
        periods = peaks + (short - 1) + np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
        cost = 1.0 - np.minimum(top - 0.125 * (left - right) ** 2 / bend, 1.0) + self._bias[peaks]
        return np.concatenate(([0.0], periods)), np.concatenate(([1.0 - _UNVOICED], cost))
