"""A known sound is found where it is, and not where it is not."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.correlation import cross_correlation, find_bursts, find_lag, noise_burst
from myna.dsp.levels import rms_db
from myna.dsp.stage import Block

RATE = 48000


def _delayed(sound: Block, frames: float, length: int) -> Block:
    """Delay by a fraction of a frame, exactly, by phase."""
    spectrum = np.fft.rfft(np.concatenate([sound, np.zeros(length - len(sound))]))
    turn = np.exp(-2j * np.pi * np.arange(len(spectrum)) / length * frames)
    return np.asarray(np.fft.irfft(spectrum * turn, length), np.float32)


def test_cross_correlation_equals_its_slow_twin() -> None:
    recording, sound = noise(60, 1), noise(17, 2)
    padded = np.concatenate([recording, np.zeros(17)])
    slow = [np.dot(padded[lag : lag + 17], sound) for lag in range(60)]
    np.testing.assert_allclose(cross_correlation(recording, sound), slow, atol=1e-6)


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_bursts_are_band_limited_level_and_unlike(rate: int) -> None:
    one, two = noise_burst(rate, 1), noise_burst(rate, 2)
    assert len(one) == round(0.2 * rate)
    np.testing.assert_array_equal(one, noise_burst(rate, 1))
    assert rms_db(one) == pytest.approx(-12.0, abs=1.5)
    assert np.max(np.abs(one)) < 0.9
    power = np.abs(np.fft.rfft(one)) ** 2
    hz = np.fft.rfftfreq(len(one), 1 / rate)
    assert power[(hz < 200) | (hz > 6200)].sum() < 0.01 * power.sum()
    alike = np.max(np.abs(cross_correlation(one, two))) / np.dot(one, one)
    assert alike < 0.25


@pytest.mark.parametrize("frames", [0.0, 480.0, 1234.25, 4321.6])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_lag_is_found_to_a_fraction_of_a_frame(frames: float, sign: int) -> None:
    burst = noise_burst(RATE, 3)
    recording = sign * _delayed(burst, frames, 20_000) + noise(20_000, 4, 0.02)
    match = find_lag(recording.astype(np.float32), burst, RATE)
    assert match is not None
    assert match.lag_frames == pytest.approx(frames, abs=0.05)
    assert match.inverted is (sign < 0)
    assert match.peak_over_floor_db > 20


def test_nothing_in_nothing() -> None:
    burst = noise_burst(RATE, 3)
    assert find_lag(np.zeros(20_000, np.float32), burst, RATE) is None
    assert find_lag(burst[:-1], burst, RATE) is None
    assert find_lag(np.full(20_000, np.nan, np.float32), burst, RATE) is None


def _played(delays_ms: list[float], level: float = 0.02) -> tuple[Block, list[Block], list[int]]:
    bursts = [noise_burst(RATE, seed) for seed in range(len(delays_ms))]
    starts = [round(0.5 * RATE * i) for i in range(len(delays_ms))]
    recording = noise(RATE * 3, 9, level)
    for burst, start, delay in zip(bursts, starts, delays_ms, strict=True):
        at = start + round(delay * RATE / 1000)
        recording[at : at + len(burst)] += burst
    return recording, bursts, starts


def test_bursts_that_agree_give_a_delay() -> None:
    report = find_bursts(*_played([150.0, 150.5, 150.0, 149.5]), RATE, max_delay_ms=800)
    assert report.verdict == "ok"
    assert report.delay_ms == pytest.approx(150.0, abs=0.05)
    assert report.spread_ms == pytest.approx(1.0, abs=0.05)
    assert len(report.peak_over_floor_db) == 4
    peak_ms = float(np.argmax(report.correlation)) * report.correlation_step_ms
    assert peak_ms == pytest.approx(150, abs=2)


def test_bursts_that_disagree_give_none() -> None:
    report = find_bursts(*_played([150.0, 150.0, 200.0, 150.0]), RATE, max_delay_ms=800)
    assert report.verdict == "inconsistent"
    assert report.delay_ms is None
    assert report.spread_ms == pytest.approx(50.0, abs=0.1)


def test_no_bursts_no_signal() -> None:
    _, bursts, starts = _played([0.0, 0.0])
    for recording in (np.zeros(3 * RATE, np.float32), noise(3 * RATE, 9), np.zeros(10, np.float32)):
        report = find_bursts(recording, bursts, starts, RATE, max_delay_ms=800)
        assert report.verdict == "no_signal"
        assert report.delay_ms is None
    with pytest.raises(ValueError, match="2 bursts, 1 starts"):
        find_bursts(np.zeros(10, np.float32), bursts, starts[:1], RATE)
