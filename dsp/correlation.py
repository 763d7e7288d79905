"""Finding a known sound in a recording: delays by cross-correlation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from myna.dsp.fades import equal_gain
from myna.dsp.filters import fast_length
from myna.dsp.stage import Block

BURST_LOW_HZ, BURST_HIGH_HZ = 300.0, 6000.0
BURST_DB = -12.0
LEAST_PEAK_DB = 20.0
MOST_SPREAD_MS = 2.0
_BESIDE_MS = 5.0  # around the peak, not counted as floor
_SINC = 16  # frames on either side, in the interpolation of a peak

Verdict = Literal["ok", "no_signal", "inconsistent"]


@dataclass(frozen=True, slots=True)
class Match:
    """Where a sound was found, and how far it stands out."""

    lag_frames: float
    peak_over_floor_db: float
    inverted: bool


@dataclass(frozen=True, slots=True)
class BurstReport:
    """What became of the bursts. Tuples have one entry for each burst, also for those not found."""

    verdict: Verdict
    delay_ms: float | None  # median of those found; None unless verdict is ok
    delays_ms: tuple[float, ...]  # of those found, in order
    peak_over_floor_db: tuple[float, ...]
    spread_ms: float | None  # None below two found
    correlation: NDArray[np.float32]  # envelope over delay, mean over the bursts, peak 1; shape (steps,)
    correlation_step_ms: float


def noise_burst(rate_hz: int, seed: int, *, seconds: float = 0.2, fade_ms: float = 5.0) -> Block:
    """Noise from 300 Hz to 6 kHz (or 0.45 × rate) at −12 dBFS RMS, its ends faded, shape (frames,).

    The same seed gives the same burst; different seeds do not resemble each other.
    """
    frames = round(rate_hz * seconds)
    spectrum = np.zeros(frames // 2 + 1, np.complex128)
    frequency = np.arange(len(spectrum)) * rate_hz / frames
    inside = (frequency >= BURST_LOW_HZ) & (frequency <= min(BURST_HIGH_HZ, 0.45 * rate_hz))
    phases = np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi, int(inside.sum()))
    spectrum[inside] = np.exp(1j * phases)
    noise = np.fft.irfft(spectrum, frames)
    rise = equal_gain(min(frames // 2, max(1, round(rate_hz * fade_ms / 1000.0))))
    noise[: len(rise)] *= rise
    noise[frames - len(rise) :] *= rise[::-1]
    # Peaks of noise are about 11 dB over its RMS; never let one reach the ceiling of a limiter.
    gain = min(10.0 ** (BURST_DB / 20.0) / np.sqrt(np.mean(noise**2)), 0.85 / np.max(np.abs(noise)))
    return np.asarray(noise * gain, np.float32)


def cross_correlation(recording: Block, sound: Block) -> NDArray[np.float64]:
    """Sum over n of recording[n + lag] × sound[n], for lags 0..len(recording) − 1.

    Beyond its end the recording counts as silence. Shape (len(recording),).
    """
    size = fast_length(len(recording) + len(sound))
    spectrum = np.fft.rfft(recording.astype(np.float64), size) * np.conj(np.fft.rfft(sound.astype(np.float64), size))
    return np.asarray(np.fft.irfft(spectrum, size)[: len(recording)], np.float64)


def find_lag(recording: Block, sound: Block, rate_hz: int) -> Match | None:
    """Find `sound` (either polarity) in `recording`, to a fraction of a frame.

    Args:
        recording: Shape (frames,), at least as long as `sound`.
        sound: Shape (frames,).

    Returns:
        None if the recording is silent or shorter than the sound. The floor is the RMS of the correlation
        further than 5 ms from its peak.
    """
    if len(recording) < len(sound) or not np.isfinite(recording).all():
        return None
    return _match(_scores(recording, sound, len(recording) - len(sound)), rate_hz)


def find_bursts(
    recording: Block,
    bursts: Sequence[Block],
    starts_frames: Sequence[int],
    rate_hz: int,
    *,
    max_delay_ms: float = 2000.0,
    step_ms: float = 1.0,
) -> BurstReport:
    """Find each burst at its own delay after it was played.

    Args:
        recording: What came back, shape (frames,); its frame 0 is the moment from which `starts_frames`
            count.
        bursts: What was played.
        starts_frames: When each was played, in frames of the recording.
        max_delay_ms: Longest delay looked for.
        step_ms: Resolution of the correlation envelope in the report.

    Returns:
        `ok`: at least half of the bursts, and two, stand 20 dB over the floor, and their delays lie within 2
        ms.
        `inconsistent`: enough were found, further apart. `no_signal`: too few were found.

    Raises:
        ValueError: unequal numbers of bursts and starts.
    """
    if len(bursts) != len(starts_frames):
        raise ValueError(f"{len(bursts)} bursts, {len(starts_frames)} starts")
    longest = round(rate_hz * max_delay_ms / 1000.0)
    step = max(1, round(rate_hz * step_ms / 1000.0))
    envelope = np.zeros(-(-(longest + 1) // step))
    matches: list[Match | None] = []
    for burst, start in zip(bursts, starts_frames, strict=True):
        heard = np.nan_to_num(recording[start : start + longest + len(burst)], posinf=0.0, neginf=0.0)
        if len(heard) < len(burst):
            matches.append(None)
            continue
        scores = _scores(heard, burst, min(longest, len(heard) - len(burst)))
        matches.append(_match(scores, rate_hz))
        folded = np.zeros(len(envelope) * step)
        folded[: len(scores) - _SINC] = np.abs(scores[_SINC:])
        envelope += folded.reshape(-1, step).max(axis=1)
    found = [m for m in matches if m is not None and m.peak_over_floor_db >= LEAST_PEAK_DB]
    delays = [1000.0 * m.lag_frames / rate_hz for m in found]
    spread = max(delays) - min(delays) if len(delays) >= 2 else None
    verdict: Verdict = "ok"
    if len(found) < 2 or 2 * len(found) < len(bursts):
        verdict = "no_signal"
    elif spread is not None and spread > MOST_SPREAD_MS:
        verdict = "inconsistent"
    return BurstReport(
        verdict=verdict,
        delay_ms=float(np.median(delays)) if verdict == "ok" else None,
        delays_ms=tuple(delays),
        peak_over_floor_db=tuple(m.peak_over_floor_db if m else 0.0 for m in matches),
        spread_ms=spread,
        correlation=(envelope / max(float(envelope.max()), 1e-30)).astype(np.float32),
        correlation_step_ms=1000.0 * step / rate_hz,
    )


def _scores(recording: Block, sound: Block, most_lag: int) -> NDArray[np.float64]:
    """Cross-correlation for lags −_SINC..most_lag: a peak at lag 0 can be refined only from both its sides."""
    early = np.concatenate([np.zeros(_SINC, np.float32), recording])
    return cross_correlation(early, sound)[: _SINC + most_lag + 1]


def _match(scores: NDArray[np.float64], rate_hz: int) -> Match | None:
    size = np.abs(scores[_SINC:])
    peak = int(np.argmax(size))
    if size[peak] <= 0.0:
        return None
    beside = max(1, round(rate_hz * _BESIDE_MS / 1000.0))
    rest = np.concatenate([size[: max(0, peak - beside)], size[peak + beside + 1 :]])
    floor = float(np.sqrt(np.mean(np.square(rest)))) if len(rest) else 0.0
    over = 20.0 * np.log10(size[peak] / max(floor, 1e-10 * size[peak]))
    inverted = bool(scores[_SINC + peak] < 0.0)
    lag = _refined(-scores if inverted else scores, _SINC + peak) - _SINC
    return Match(max(0.0, lag), float(over), inverted)


def _refined(scores: NDArray[np.float64], peak: int) -> float:
    """The maximum near a whole-frame peak: band-limited interpolation to 1/16 frame, then a parabola."""
    taps = np.arange(max(0, peak - _SINC), min(len(scores), peak + _SINC + 1))
    grid = peak + np.arange(-18, 19) / 16.0
    distance = grid[:, None] - taps[None, :]
    window = np.square(np.cos(0.5 * np.pi * np.clip(distance / (_SINC + 2), -1.0, 1.0)))
    fine = (np.sinc(distance) * window) @ scores[taps]
    top = int(np.clip(np.argmax(fine), 1, len(fine) - 2))
    left, middle, right = fine[top - 1 : top + 2]
    bend = left - 2.0 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0.0 else 0.0
    return float(grid[top] + np.clip(shift, -1.0, 1.0) / 16.0)
