"""SOLA against recorded behaviour, and against brute force."""

from pathlib import Path

import numpy as np
import pytest
from laws import noise

from myna.dsp.levels import match_loudness
from myna.dsp.sola import Sola, best_lag, lag_scores


@pytest.mark.parametrize("rate_khz", [32, 40, 48])
@pytest.mark.parametrize("matched", [False, True])
def test_same_as_the_recorded_converter(golden: Path, rate_khz: int, matched: bool) -> None:
    """1e-5 is float32 rounding through a sum of some thousand products, as the recording itself has it."""
    with np.load(golden / f"sola_{rate_khz}k_100ms.npz") as recorded:
        data = dict(recorded)
    overlap, search = len(data["fade_in"]), data["cor"].shape[1] - 1
    sola = Sola(data["out"].shape[1], overlap, search)
    names = ("rms_out_025", "rms_offset_025") if matched else ("out", "offset")
    for turn, block in enumerate(data["blocks"]):
        new = block
        if matched:
            new = match_loudness(block, data["rms_input"][turn], 0.25, hop_frames=rate_khz * 10)
            np.testing.assert_allclose(new, data["rms_mixed_025"][turn], atol=1e-5, rtol=0)
        np.testing.assert_allclose(sola.process(new), data[names[0]][turn], atol=1e-5, rtol=0)
        assert sola.last_lag == data[names[1]][turn]


def test_scores_equal_brute_force() -> None:
    new, tail = noise(700, 1), noise(256, 2)
    slow = [
        float(np.dot(new[lag : lag + 256], tail) / np.sqrt(np.sum(new[lag : lag + 256] ** 2) + 1e-8))
        for lag in range(301)
    ]
    np.testing.assert_allclose(lag_scores(new, tail, 300), slow, atol=1e-5)


def test_silent_tail_means_no_lag() -> None:
    assert best_lag(noise(500), np.zeros(100, np.float32), 200) == 0


def test_a_sine_goes_on_without_a_seam() -> None:
    """Blocks that start at any phase are joined to one sine: no step larger than the sine's own."""
    sola = Sola(4800, 1920, 480)
    out = []
    for turn in range(6):
        phase = 1.7 * turn
        t = np.arange(sola.wanted_frames) / 48000
        out.append(sola.process((0.5 * np.sin(2 * np.pi * 220 * t + phase)).astype(np.float32)))
    joined = np.concatenate(out)[4800:]
    assert np.max(np.abs(np.diff(joined))) <= 1.02 * 0.5 * 2 * np.pi * 220 / 48000
    assert np.min(np.abs(joined.reshape(-1, 480)).max(axis=1)) > 0.48


def test_not_finite_is_silence_and_leaves_no_trace() -> None:
    sola = Sola(480, 100, 50)
    sola.process(noise(630))
    bad = noise(630)
    bad[300] = np.nan
    assert np.isfinite(sola.process(bad)).all()
    np.testing.assert_array_equal(sola.process(np.zeros(630, np.float32)), 0.0)
    sola.reset()
    np.testing.assert_array_equal(sola.process(noise(630)), Sola(480, 100, 50).process(noise(630)))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Sola(100, 101, 10)
    with pytest.raises(ValueError, match="instead of"):
        Sola(480, 100, 50).process(np.zeros(629, np.float32))
    with pytest.raises(ValueError, match="do not hold"):
        best_lag(np.zeros(10, np.float32), np.zeros(8, np.float32), 3)
