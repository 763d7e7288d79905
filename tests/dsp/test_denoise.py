"""Every noise reducer lowers noise and leaves speech, at any rate, and is a proper stage."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from laws import check_stage_laws, measured_latency, noise, run_split
from noisy import in_noise, lowered_db, speech

from myna.dsp import denoise
from myna.dsp.denoise import DeepFilterDenoise, RnnoiseDenoise, SpectralDenoise
from myna.dsp.stage import Stage

Make = Callable[[int], Stage]
ALL: tuple[Make, ...] = (SpectralDenoise, RnnoiseDenoise, DeepFilterDenoise)


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
@pytest.mark.parametrize("make", [SpectralDenoise, RnnoiseDenoise])
def test_stage_laws(make: Make, rate: int, speech_dir: Path) -> None:
    sound = speech(str(speech_dir / "austen_0880.flac"), rate)[rate // 2 : round(1.1 * rate)]
    # RNNoise's high-pass turns the phase of low voices: correlation finds those a frame or two early.
    check_stage_laws(lambda: make(rate), rate, signal=sound, impulse=make is SpectralDenoise)


@pytest.mark.parametrize("rate", [44100, 48000])
def test_stage_laws_of_deepfilter(rate: int, speech_dir: Path) -> None:
    # By hand: a state takes half a second to make, and the laws ask for some twenty.
    sound = speech(str(speech_dir / "austen_0880.flac"), rate)[rate // 2 : round(1.1 * rate)]
    kept = sound.copy()
    stage = DeepFilterDenoise(rate)
    latency = stage.latency_frames
    whole = stage.process(sound)
    np.testing.assert_array_equal(sound, kept)
    assert whole.dtype == np.float32
    assert whole.shape == sound.shape
    for sizes in ([0, 1, 997], [480, 7]):
        reset(stage)
        np.testing.assert_array_equal(run_split(stage, sound, sizes), whole, f"split {sizes}")
    reset(stage)
    assert stage.latency_frames == latency
    assert measured_latency(stage, sound) == latency
    for value in (1e30, -3e38, 1e-42):
        assert np.isfinite(stage.process(np.full(2000, value, np.float32))).all()
    reset(stage)
    np.testing.assert_array_equal(stage.process(sound[: rate // 4]), whole[: rate // 4])
    np.testing.assert_array_equal(DeepFilterDenoise(rate).process(sound), whole, "a reset stage is not a new one")


def reset(stage: DeepFilterDenoise) -> None:
    """Reset it when that is exact at once."""
    stage.settle()
    stage.reset()


def test_deepfilter_reset_again_is_silent_until_it_is_new_and_never_waits(
    speech_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = speech(str(speech_dir / "austen_0880.flac"), 48000)[24000:48000]
    stage = DeepFilterDenoise(48000)
    whole = stage.process(sound)
    stage.settle()
    go, make = threading.Event(), denoise._Spare._make

    def hold(spare: denoise._Spare) -> None:
        go.wait(60.0)
        make(spare)

    monkeypatch.setattr(denoise._Spare, "_make", hold)
    stage.reset()
    np.testing.assert_array_equal(stage.process(sound), whole)
    stage.reset()  # finds no spare: were it to wait, it would do so for a minute
    assert not stage.process(sound).any()
    go.set()
    stage.settle()
    stage.reset()
    np.testing.assert_array_equal(stage.process(sound), whole)


@pytest.mark.parametrize("rate", [16000, 48000])
@pytest.mark.parametrize("make", ALL)
def test_noise_in_pauses_is_lowered_and_speech_is_not(make: Make, rate: int, speech_dir: Path) -> None:
    noisy = in_noise(speech(str(speech_dir / "austen_0880.flac"), rate), rate)
    pauses, words = lowered_db(make(rate), noisy, rate)
    assert pauses >= 6.0
    assert abs(words) < 3.0


@pytest.mark.parametrize("make", ALL)
def test_delay_in_milliseconds(make: Make) -> None:
    expected = {SpectralDenoise: 20.0, RnnoiseDenoise: 30.0, DeepFilterDenoise: 40.0}[make]
    assert make(48000).latency_frames / 48.0 == pytest.approx(expected, abs=0.05)


def test_silence_stays_silent() -> None:
    for make in (SpectralDenoise, RnnoiseDenoise):
        assert np.max(np.abs(make(48000).process(np.zeros(24000, np.float32)))) < 1e-6


def test_spectral_passes_a_signal_unchanged_until_it_knows_the_noise() -> None:
    stage, sound = SpectralDenoise(48000), np.zeros(4800, np.float32)
    sound[100:300] = noise(200)
    out = stage.process(sound)
    lag = stage.latency_frames
    assert lag == 959
    np.testing.assert_allclose(out[lag : lag + 300], sound[:300], atol=1e-6)


def test_spectral_learns_of_noise_that_grows() -> None:
    stage = SpectralDenoise(48000)
    stage.process(noise(48000, 1, 0.001))
    out = stage.process(noise(3 * 48000, 2, 0.01))
    first, last = (np.mean(x.astype(np.float64) ** 2) for x in (out[4800:24000], out[-24000:]))
    assert 10 * np.log10(first / last) > 6.0
