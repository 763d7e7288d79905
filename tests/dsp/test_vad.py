"""The gate that opens on speech: real speech passes whole, other sound and silence do not."""

from pathlib import Path

import numpy as np
import pytest
from laws import check_stage_laws, noise
from noisy import speech

from myna.dsp.stage import Block
from myna.dsp.vad import VoiceActivity

CLEAN = "north_wind_rms.flac"  # synthesised: digital silence around its words, so that onsets are exact


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_stage_laws(rate: int, speech_dir: Path) -> None:
    sound = speech(str(speech_dir / CLEAN), rate)[: round(0.9 * rate)]
    check_stage_laws(lambda: VoiceActivity(rate), rate, signal=sound, impulse=False)


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
@pytest.mark.parametrize("offset_ms", [0, 5, 11, 17, 23, 29])
def test_an_onset_loses_at_most_five_milliseconds(rate: int, offset_ms: int, speech_dir: Path) -> None:
    words = speech(str(speech_dir / CLEAN), rate)[: round(1.0 * rate)]
    sound = np.concatenate([np.zeros(rate // 2 + rate * offset_ms // 1000, np.float32), words])
    stage = VoiceActivity(rate)
    lag = stage.latency_frames
    out = stage.process(np.concatenate([sound, np.zeros(lag, np.float32)]))[lag:]
    starts = int(np.argmax(np.abs(sound) > 10 ** (-35 / 20)))
    whole_from = starts + round(0.005 * rate)
    np.testing.assert_array_equal(out[whole_from : starts + rate // 4], sound[whole_from : starts + rate // 4])


@pytest.mark.parametrize("name", ["austen_0870.flac", "austen_0880.flac", "austen_0920.flac", CLEAN])
def test_hardly_any_speech_is_lost(name: str, speech_dir: Path) -> None:
    sound = np.concatenate([np.zeros(8000, np.float32), speech(str(speech_dir / name), 16000)])
    stage = VoiceActivity(16000)
    lag = stage.latency_frames
    out = stage.process(np.concatenate([sound, np.zeros(lag, np.float32)]))[lag:]
    lost = np.sum((out - sound).astype(np.float64) ** 2) / np.sum(sound.astype(np.float64) ** 2)
    assert 10 * np.log10(lost) < -28.0  # the room's own noise before the first word is most of it


def test_closes_to_exact_zeros_after_the_hold(speech_dir: Path) -> None:
    words = speech(str(speech_dir / CLEAN), 16000)
    stage = VoiceActivity(16000)
    stage.process(words[: 16000 * 2])
    assert stage.is_open
    assert stage.probability > 0.5
    hum = noise(32000, level=0.003)
    out = stage.process(hum)
    assert not stage.is_open
    assert stage.probability < 0.5
    passed_ms = (np.flatnonzero(out)[-1] - stage.latency_frames) / 16.0  # of the hum, after the last word
    assert 250.0 < passed_ms < 700.0  # 300 of hold, what the model takes to let go, 20 of release
    np.testing.assert_array_equal(out[-8000:], 0.0)


def _tone() -> Block:
    return (0.3 * np.sin(2 * np.pi * 1000 / 16000 * np.arange(32000))).astype(np.float32)


@pytest.mark.parametrize("sound", [noise(32000, level=0.2), _tone(), np.zeros(32000, np.float32)])
def test_loud_sound_that_is_no_speech_stays_out(sound: Block) -> None:
    stage = VoiceActivity(16000)
    np.testing.assert_array_equal(stage.process(sound), 0.0)
    assert not stage.is_open


def test_delay_is_declared() -> None:
    assert VoiceActivity(48000).latency_frames == 2688
    assert VoiceActivity(16000, lookahead_ms=0.0).latency_frames == 0
