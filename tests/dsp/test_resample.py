"""Resamplers: exact counts and delays, purity of a sine, steering without lines."""

import numpy as np
import pytest
from laws import noise
from numpy.typing import NDArray

from myna.dsp.resample import FractionalResampler, StreamingResampler
from myna.dsp.stage import Block

PAIRS = [(16000, 48000), (22050, 48000), (44100, 48000), (48000, 44100), (48000, 48000), (96000, 16000)]
Resampler = FractionalResampler | StreamingResampler


def _run(resampler: Resampler, signal: Block, sizes: list[int]) -> Block:
    out, at, turn = [], 0, 0
    while at < len(signal):
        size = sizes[turn % len(sizes)]
        out.append(resampler.process(signal[at : at + size]))
        at, turn = at + size, turn + 1
    return np.concatenate(out)


def _sine(rate: int, seconds: float, hz: float = 997.0) -> Block:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def _spectrum_db(signal: NDArray[np.float32]) -> NDArray[np.float64]:
    """Level of each bin against the strongest."""
    power = np.abs(np.fft.rfft(signal * np.kaiser(len(signal), 24.0))) ** 2
    return np.asarray(10 * np.log10(power / power.max() + 1e-20))


@pytest.mark.parametrize("kind", [FractionalResampler, StreamingResampler])
@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_any_split_gives_the_same_and_counts_are_exact(kind: type[Resampler], rate_in: int, rate_out: int) -> None:
    signal = noise(rate_in // 3)
    whole = kind(rate_in, rate_out).process(signal)
    assert len(whole) == -(-len(signal) * rate_out // rate_in)
    resampler = kind(rate_in, rate_out)
    for sizes in ([1, 0, 7, 997], [480], [rate_in]):
        np.testing.assert_allclose(_run(resampler, signal, sizes), whole, atol=2e-6, rtol=0)
        resampler.reset()


@pytest.mark.parametrize("kind", [FractionalResampler, StreamingResampler])
@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_a_sine_keeps_its_purity_and_comes_at_the_declared_delay(
    kind: type[Resampler], rate_in: int, rate_out: int
) -> None:
    resampler = kind(rate_in, rate_out)
    out = _run(resampler, _sine(rate_in, 1.0), [rate_in // 100])
    n = np.arange(len(out)) - resampler.latency_frames
    wanted = 0.5 * np.sin(2 * np.pi * 997 * n / rate_out)
    settled = slice(resampler.latency_frames + rate_out // 10, None)
    error = np.mean((out[settled] - wanted[settled]) ** 2) / np.mean(wanted[settled] ** 2)
    assert 10 * np.log10(error) < -90


@pytest.mark.parametrize(("rate_in", "rate_out"), [(48000, 44100), (48000, 16000), (96000, 48000)])
def test_what_the_lower_rate_cannot_hold_is_stopped(rate_in: int, rate_out: int) -> None:
    hz = 0.542 * rate_out
    out = FractionalResampler(rate_in, rate_out).process(_sine(rate_in, 0.5, hz))
    assert 20 * np.log10(np.max(np.abs(out[2000:])) / 0.5) < -80


@pytest.mark.parametrize(("rate_in", "rate_out"), [(16000, 48000), (44100, 48000)])
def test_images_are_rejected(rate_in: int, rate_out: int) -> None:
    hz = 0.4 * rate_in
    out = FractionalResampler(rate_in, rate_out).process(_sine(rate_in, 1.0, hz))[rate_out // 5 :]
    level = _spectrum_db(out)
    frequency = np.arange(len(level)) * rate_out / len(out)
    assert level[np.abs(frequency - hz) > 200].max() < -80


def test_a_moving_ratio_leaves_no_line_at_the_block_rate() -> None:
    """Every 10 ms another ppm, as a controller would: lines at 997 ± 100 n Hz stay below −80 dB."""
    resampler, rng = FractionalResampler(48000, 48000), np.random.default_rng(3)
    signal, ppm, out = _sine(48000, 6.0), 0.0, []
    for at in range(0, len(signal), 480):
        ppm = float(np.clip(ppm + rng.uniform(-4, 4), -300, 300))  # 400 ppm/s, the controller's slew limit
        resampler.steer(ppm)
        out.append(resampler.process(signal[at : at + 480]))
    joined = np.concatenate(out)[24000:]
    level = _spectrum_db(joined)
    frequency = np.arange(len(level)) * 48000 / len(joined)
    for side in (-300, -200, -100, 100, 200, 300):
        assert level[np.abs(frequency - 997 - side) < 5].max() < -80


@pytest.mark.parametrize("ppm", [-1000.0, -300.0, 1.0, 300.0, 1000.0])
def test_steering_makes_so_many_more_frames(ppm: float) -> None:
    resampler = FractionalResampler(44100, 48000)
    resampler.steer(ppm)
    silence = np.zeros(441, np.float32)
    made = sum(len(resampler.process(silence)) for _ in range(3000))
    assert made == pytest.approx(30 * 48000 * (1 + 1e-6 * ppm), abs=1.5)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no such rates"):
        FractionalResampler(0, 48000)
    with pytest.raises(ValueError, match="no such rates"):
        StreamingResampler(48000, -1)
    with pytest.raises(ValueError, match="less than"):
        FractionalResampler(48000, 48000, delay_in_frames=3.0)
    with pytest.raises(ValueError, match="beyond"):
        FractionalResampler(48000, 48000).steer(2001.0)
