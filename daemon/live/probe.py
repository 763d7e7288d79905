"""Measuring the real delay of a running session: bursts out, bursts found at the input."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from myna.dsp.correlation import find_bursts, noise_burst
from myna.dsp.stage import Block

LEAD_S = 0.3  # silence first: the voice's last words must not stand in the recording
SPACING_S = 0.45
LONGEST_S = 2.0  # delay looked for


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found; a figure that was not is None."""

    reason: Literal["ok", "no_signal", "inconsistent"]
    delay_ms: float | None
    delays_ms: tuple[float, ...]
    peak_over_floor_db: tuple[float, ...]
    correlation: tuple[float, ...]
    correlation_step_ms: float


class LatencyProbe:
    """Stands in for the voice for a few seconds: the loop gives it each input block and plays what it returns.

    What comes back is measured from block in to block in, through the output device, whatever carries its sound to
    the input (air, a cable, a loopback), and the input device; the stages of the voice are not in it.
    """

    def __init__(self, rate_hz: int, bursts: int) -> None:
        self._rate = rate_hz
        self._bursts = [noise_burst(rate_hz, seed) for seed in range(1, bursts + 1)]
        self._starts = [round((LEAD_S + n * SPACING_S) * rate_hz) for n in range(bursts)]
        self.seconds = LEAD_S + bursts * SPACING_S + LONGEST_S
        self._played = np.zeros(round(self.seconds * rate_hz), np.float32)
        for start, burst in zip(self._starts, self._bursts, strict=True):
            self._played[start : start + len(burst)] = burst
        self._heard = np.zeros(len(self._played), np.float32)
        self._at = 0
        self.finished = False

    def exchange(self, block: Block) -> Block:
        """Keep an input block, shape (frames,); returns what to play in its place."""
        out = np.zeros(len(block), np.float32)
        n = min(len(block), len(self._played) - self._at)
        self._heard[self._at : self._at + n] = block[:n]
        out[:n] = self._played[self._at : self._at + n]
        self._at += n
        if self._at == len(self._played):
            self.finished = True
        return out

    def result(self) -> ProbeResult:
        """Find the bursts. Call once `finished` is set, outside the audio path."""
        report = find_bursts(self._heard, self._bursts, self._starts, self._rate, max_delay_ms=1000.0 * LONGEST_S)
        return ProbeResult(
            reason=report.verdict,
            delay_ms=report.delay_ms,
            delays_ms=report.delays_ms,
            peak_over_floor_db=report.peak_over_floor_db,
            correlation=tuple(float(v) for v in report.correlation),
            correlation_step_ms=report.correlation_step_ms,
        )
