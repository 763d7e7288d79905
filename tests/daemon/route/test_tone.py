"""The tone that proves a route: found where it is, not where it is not."""

import numpy as np
import pytest

from myna.daemon.route.names import RATE_HZ
from myna.daemon.route.tone import LENGTH_S, TONE_DB, find_tone, prove, tone


def test_the_tone_is_quiet_and_starts_and_ends_at_zero() -> None:
    signal = tone()
    assert signal.size == LENGTH_S * RATE_HZ
    assert abs(signal[0]) < 1e-6
    assert abs(signal[-1]) < 1e-4
    assert np.abs(signal).max() == pytest.approx(10 ** (TONE_DB / 20), rel=1e-3)


@pytest.mark.parametrize("gain", [1.0, 0.1])
def test_its_level_is_measured(gain: float) -> None:
    quiet = np.zeros(RATE_HZ // 3, np.float32)
    found = find_tone(np.concatenate([quiet, gain * tone(), quiet]))
    assert found.reason == "ok"
    assert found.level_db == pytest.approx(TONE_DB + 20 * np.log10(gain), abs=0.2)


def test_it_is_found_in_some_noise_and_not_in_much() -> None:
    noise = np.random.default_rng(1).standard_normal(RATE_HZ).astype(np.float32)
    assert find_tone(tone() + 0.0003 * noise).reason == "ok"
    assert find_tone(tone() + 0.3 * noise).reason == "no_signal"


@pytest.mark.parametrize("size", [0, 100, RATE_HZ])
def test_silence_is_no_proof_and_has_no_figures(size: int) -> None:
    found = find_tone(np.zeros(size, np.float32))
    assert (found.reason, found.level_db, found.snr_db) == ("no_signal", None, None)


def test_another_tone_is_no_proof() -> None:
    t = np.arange(RATE_HZ) / RATE_HZ
    assert find_tone((0.01 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)).reason == "no_signal"


def test_nobody_who_listens_hears_it() -> None:
    assert prove(listeners=1).reason == "in_use"
