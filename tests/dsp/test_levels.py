"""Levels are what they are called, and one sound can take another's."""

from pathlib import Path

import numpy as np
import pytest
from laws import noise
from numpy.typing import NDArray

from myna.dsp.levels import SILENCE_DB, LoudnessMix, Meter, frame_rms, match_loudness, peak_db, rms_db
from myna.dsp.stage import Block

RATE = 48000


def _sine(amplitude: float, frames: int = RATE) -> Block:
    return (amplitude * np.sin(2 * np.pi * 1000 / RATE * np.arange(frames))).astype(np.float32)


def test_levels_of_known_sounds() -> None:
    assert rms_db(_sine(1.0)) == pytest.approx(-3.01, abs=0.01)
    assert peak_db(_sine(0.5)) == pytest.approx(-6.02, abs=0.01)
    assert rms_db(np.full(10, -1.0, np.float32)) == pytest.approx(0.0)
    assert rms_db(np.zeros(10, np.float32)) == SILENCE_DB
    assert rms_db(np.zeros(0, np.float32)) is None
    assert peak_db(np.zeros(0, np.float32)) is None


def test_meter_sums_over_blocks_and_starts_anew() -> None:
    meter, sound = Meter(), noise(9000)
    for at in range(0, 9000, 450):
        meter.add(sound[at : at + 450])
    rms, peak = meter.take()
    assert rms == pytest.approx(rms_db(sound), abs=1e-6)
    assert peak == pytest.approx(peak_db(sound), abs=1e-6)
    assert meter.take() == (None, None)


def test_frame_rms_equals_its_slow_twin() -> None:
    sound, window, hop = noise(1003), 400, 100
    padded = np.concatenate([np.zeros(200), sound.astype(np.float64), np.zeros(200)])
    slow = [np.sqrt(np.mean(padded[at : at + window] ** 2)) for at in range(0, 1004, hop)]
    np.testing.assert_allclose(frame_rms(sound, window, hop), slow, rtol=1e-6)


@pytest.mark.parametrize("rate_hz", [32000, 40000, 48000])
def test_match_loudness_equals_recorded_figures(golden: Path, rate_hz: int) -> None:
    with np.load(golden / f"sola_{rate_hz // 1000}k_100ms.npz") as data:
        for voice, source, mixed in zip(data["blocks"], data["rms_input"], data["rms_mixed_025"], strict=True):
            got = match_loudness(voice, source, 0.25, hop_frames=rate_hz // 100)
            # The recorded run summed windows in float32, and interpolated in float32.
            np.testing.assert_allclose(got, mixed, atol=2e-5)


def test_match_loudness_ends() -> None:
    voice, source = _sine(0.5), _sine(0.05)
    np.testing.assert_array_equal(match_loudness(voice, source, 1.0, hop_frames=480), voice)
    assert rms_db(match_loudness(voice, source, 0.0, hop_frames=480)) == pytest.approx(rms_db(source), abs=0.1)
    with pytest.raises(ValueError, match="voice of"):
        match_loudness(voice, source[1:], 0.5, hop_frames=480)


def _mix(mix: LoudnessMix, voice: Block, source: Block, size: int = 480) -> Block:
    return np.concatenate(
        [mix.process(voice[at : at + size], source[at : at + size]) for at in range(0, len(voice), size)]
    )


def test_mix_follows_the_source_in_proportion() -> None:
    voice, source = _sine(0.5), _sine(0.05)
    settled = slice(RATE // 2, None)
    for rate, expected_db in ((0.0, -20.0), (0.5, -10.0), (1.0, 0.0)):
        out = _mix(LoudnessMix(RATE, rate), voice, source)
        change = (rms_db(out[settled]) or 0.0) - (rms_db(voice[settled]) or 0.0)
        assert change == pytest.approx(expected_db, abs=0.1)
    np.testing.assert_array_equal(_mix(LoudnessMix(RATE, 1.0), voice, source), voice)


def test_mix_never_amplifies_beyond_its_limit_nor_makes_sound_of_silence() -> None:
    quiet, loud, silence = _sine(1e-4), _sine(1.0), np.zeros(RATE, np.float32)
    out = _mix(LoudnessMix(RATE, 0.0), quiet, loud)
    assert np.max(np.abs(out)) <= 1e-4 * 10 ** (24 / 20) * 1.001
    np.testing.assert_array_equal(_mix(LoudnessMix(RATE, 0.0), silence, loud), 0.0)
    gone = _mix(LoudnessMix(RATE, 0.0), np.concatenate([loud, loud]), np.concatenate([loud, silence]))
    assert (rms_db(gone[-4800:]) or 0.0) < -100.0


def test_mix_moves_to_a_new_rate_without_a_step_for_any_split() -> None:
    voice, source = _sine(0.5), _sine(0.05)
    results = []
    for size in (100, 480, 4800):
        mix = LoudnessMix(RATE, 1.0)
        head = _mix(mix, voice[:24000], source[:24000], size)
        mix.set(0.0)
        results.append(np.concatenate([head, _mix(mix, voice[24000:], source[24000:], size)]))
    steepest = np.max(np.abs(np.diff(voice)))
    assert np.max(np.abs(np.diff(results[0]))) < 1.05 * steepest
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)
    np.testing.assert_allclose(results[0], results[2], atol=1e-6)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        mix.set(1.5)


def test_mix_reset_equals_new(speech_16k: NDArray[np.float32]) -> None:
    mix = LoudnessMix(16000, 0.3)
    voice, source = speech_16k[:16000], noise(16000)
    first = _mix(mix, voice, source)
    mix.reset()
    np.testing.assert_array_equal(_mix(mix, voice, source), first)
