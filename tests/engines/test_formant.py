"""The built-in voice holds the stage laws, and its delay, at every rate and with every preset."""

from collections.abc import Callable
from dataclasses import replace

import laws
import numpy as np
import pytest
import soxr
from numpy.typing import NDArray

from myna.engines.base import Block, LiveVoice, ParameterRefused, Placement, VoiceAsset, VoiceParameters
from myna.engines.formant import SPEC

RATES = (8000, 11025, 16000, 44100, 48000, 192000)
VOICES = {asset.id: asset for asset in SPEC.built_in}
CHANGING = [name for name, asset in VOICES.items() if not asset.unchanged]


def live(name: str = "formant", rate_hz: int = 16000, pitch: float = 0.0, formant: float = 0.0) -> LiveVoice:
    parameters = VoiceParameters(pitch=pitch, formant=formant)
    return SPEC.open_live(VOICES[name], Placement(), parameters, rate_hz)


@pytest.fixture(scope="module")
def phrase(speech_16k: NDArray[np.float32]) -> Block:
    """0.7 s of speech with voiced, unvoiced and silent parts, 16 kHz."""
    part = speech_16k[16000:25000].copy()
    part[:300] = part[-2000:] = 0.0
    return part


@pytest.mark.parametrize(
    ("name", "pitch", "formant"),
    [("formant", 5.0, 0.0), ("formant", -5.0, 3.0), ("robot", 0.0, 0.0), ("breathy", 0.0, 0.0)],
)
def test_stage_laws(name: str, pitch: float, formant: float, phrase: Block) -> None:
    def make() -> LiveVoice:
        return live(name, 16000, pitch, formant)

    whole = make().process(phrase)
    assert np.abs(whole).max() > 0.01
    laws.check_repeatable(make, phrase, whole)
    laws.check_any_split(make, phrase, whole, tolerance=0.0)
    laws.check_causal(make, phrase, whole, tolerance=0.0)
    laws.check_reset(make, phrase, whole)


def test_neutral_holds_all_stage_laws_and_is_an_exact_delay(phrase: Block) -> None:
    laws.check_stage_laws(lambda: live("neutral"), 16000, tolerance=0.0)
    voice = live("neutral", pitch=7.0, formant=-3.0)
    late = voice.latency_frames
    out = voice.process(phrase)
    np.testing.assert_array_equal(out[late:], phrase[: len(phrase) - late])
    assert not out[:late].any()


@pytest.mark.parametrize("name", [*VOICES])
def test_whatever_comes_in_what_goes_out_is_finite(name: str) -> None:
    laws.check_finite(lambda: live(name), 16000)
    frames = 4000
    clicks = np.zeros(frames, np.float32)
    clicks[::397] = 1.0
    square = np.where(np.arange(frames) % 160 < 80, 1.0, -1.0).astype(np.float32)
    broken = laws.noise(frames)
    broken[100:200], broken[700], broken[900] = np.nan, np.inf, -np.inf
    voice = live(name, pitch=12.0, formant=6.0)
    for heard in (np.ones(frames, np.float32), clicks, square, broken, np.zeros(frames, np.float32), -square):
        out = voice.process(heard)
        assert np.isfinite(out).all()
        assert np.abs(out).max() < 8.0


def test_a_broken_sample_leaves_no_trace() -> None:
    voice, fresh = live(), live()
    voice.process(np.full(1600, np.nan, np.float32))
    fresh.process(np.zeros(1600, np.float32))
    sound = laws.noise(8000)
    np.testing.assert_array_equal(voice.process(sound), fresh.process(sound))


@pytest.mark.parametrize("rate_hz", RATES)
def test_the_delay_is_under_40_ms_the_same_for_all_and_true(rate_hz: int, envelope_delay: Callable[..., float]) -> None:
    declared = {live(name, rate_hz).latency_frames for name in VOICES}
    assert len(declared) == 1
    late = declared.pop()
    assert late <= 0.040 * rate_hz
    at = np.arange(round(0.9 * rate_hz)) / rate_hz
    bursts = laws.noise(len(at), level=0.2) * (np.sin(2 * np.pi * (2 * at + 6 * at**2)) > 0.3)
    heard = bursts.astype(np.float32)
    voice = live("formant", rate_hz, pitch=5.0)
    measured = envelope_delay(heard, voice.process(heard), rate_hz)
    assert measured == pytest.approx(late / rate_hz, abs=0.002)


@pytest.mark.parametrize("rate_hz", RATES)
def test_every_preset_speaks_at_every_rate(rate_hz: int, phrase: Block) -> None:
    heard = soxr.resample(phrase[:5000], 16000, rate_hz).astype(np.float32)
    for name in VOICES:
        out = live(name, rate_hz).process(heard)
        assert np.isfinite(out).all()
        assert 0.2 < out.std() / heard.std() < 2.0, name


@pytest.mark.parametrize("name", [*VOICES])
def test_after_silence_of_its_tail_a_voice_is_exactly_silent(name: str, phrase: Block) -> None:
    voice = live(name, pitch=3.0)
    voice.process(phrase[:6000])
    voice.process(np.zeros(voice.tail_frames, np.float32))
    assert not voice.process(np.zeros(4000, np.float32)).any()
    assert not live(name).process(np.zeros(4000, np.float32)).any()


@pytest.mark.parametrize("name", CHANGING)
def test_what_comes_after_a_long_silence_is_as_from_a_new_voice(name: str, phrase: Block) -> None:
    voice, fresh = live(name), live(name)
    voice.process(phrase[:5000])
    hop = 80
    voice.process(np.zeros(10 * 1600 - 5000 % hop, np.float32))
    np.testing.assert_array_equal(voice.process(phrase), fresh.process(phrase))


def test_silence_costs_no_period_search(monkeypatch: pytest.MonkeyPatch) -> None:
    from myna.engines.formant.pitch import PitchTracker

    voice = live()
    voice.process(np.zeros(voice.tail_frames, np.float32))
    searched = []
    measure = PitchTracker.push
    monkeypatch.setattr(PitchTracker, "push", lambda self, heard: searched.append(1) or measure(self, heard))
    voice.process(np.zeros(16000, np.float32))
    assert not searched
    voice.process(laws.noise(800))
    assert len(searched) == 10


@pytest.mark.parametrize("name", ["formant", "deep", "neutral"])
def test_a_file_is_the_live_voice_with_its_delay_taken_out(name: str, phrase: Block) -> None:
    voice = live(name, pitch=4.0)
    late = voice.latency_frames
    expected = voice.process(np.concatenate((phrase, np.zeros(late, np.float32))))[late:]
    file = SPEC.open_file(VOICES[name], Placement(), VoiceParameters(pitch=4.0))
    kept = phrase.copy()
    np.testing.assert_array_equal(file.convert(phrase, 16000), expected)
    np.testing.assert_array_equal(phrase, kept)
    assert file.rate_hz is None
    assert len(file.convert(phrase[:0], 16000)) == 0
    assert len(file.convert(phrase[:7], 16000)) == 7


def test_the_inside_of_a_segment_does_not_depend_on_where_it_was_cut(speech_16k: Block) -> None:
    file = SPEC.open_file(VOICES["formant"], Placement(), VoiceParameters(pitch=4.0))
    assert file.context_ms >= 100
    context = round(file.context_ms * 16)
    context -= context % 80
    whole = file.convert(speech_16k, 16000)
    quiet = np.convolve(speech_16k**2, np.ones(800), "same")
    cut = 40000 + int(np.argmin(quiet[40000:60000]))
    cut -= cut % 80
    part = file.convert(speech_16k[cut - context :], 16000)[context:]
    difference = part - whole[cut:]
    assert 10 * np.log10(np.mean(whole[cut:] ** 2) / np.mean(difference**2)) > 60


def test_parameters_are_added_to_the_presets_own(phrase: Block) -> None:
    deep = VOICES["deep"]
    own = {"pitch": 0.0, "formant": 0.0} | dict(deep.defaults)
    by_session = live("formant", pitch=float(str(own["pitch"])) + 2, formant=float(str(own["formant"])) + 1)
    np.testing.assert_array_equal(live("deep", pitch=2.0, formant=1.0).process(phrase), by_session.process(phrase))


def test_set_is_heard_from_the_next_block_and_ends_where_it_aims(phrase: Block) -> None:
    voice = live("formant", pitch=0.0)
    voice.set(VoiceParameters(pitch=5.0))
    voice.process(np.zeros(8000, np.float32))  # long enough for the ramp
    np.testing.assert_array_equal(voice.process(phrase), live("formant", pitch=5.0).process(phrase))
    voice.set(VoiceParameters(pitch=-5.0))
    voice.reset()
    np.testing.assert_array_equal(voice.process(phrase), live("formant", pitch=-5.0).process(phrase))


def test_every_preset_is_sound_and_moderate() -> None:
    assert {"formant", "deep", "bright", "giant", "small", "robot", "whisper", "neutral"} <= set(VOICES)
    for asset in SPEC.built_in:
        assert SPEC.check(asset) == ()
        assert asset.description
        assert abs(float(str(asset.defaults.get("formant", 0.0)))) < 6
    assert [asset.id for asset in SPEC.built_in if asset.unchanged] == ["neutral"]


@pytest.mark.parametrize(
    ("asset", "told"),
    [
        (VoiceAsset(id="x", engine="rvc"), "belongs to engine"),
        (VoiceAsset(id="x", engine="formant", defaults={"pitch": 25.0}), "pitch must be"),
        (VoiceAsset(id="x", engine="formant", defaults={"formant": "much"}), "formant must be"),
        (VoiceAsset(id="x", engine="formant", defaults={"pitch": float("nan")}), "pitch must be"),
        (VoiceAsset(id="x", engine="formant", defaults={"style": "opera"}), "style must be"),
        (VoiceAsset(id="x", engine="formant", defaults={"style": "unchanged"}), "go together"),
        (replace(VOICES["robot"], defaults={"style": "robot", "robot_hz": 0}), "robot_hz must be"),
    ],
)
def test_an_asset_that_does_not_fit_is_told_and_refused(asset: VoiceAsset, told: str) -> None:
    assert any(told in problem for problem in SPEC.check(asset))
    with pytest.raises(ParameterRefused, match=told):
        SPEC.open_live(asset, Placement(), VoiceParameters(), 48000)
    with pytest.raises(ParameterRefused, match=told):
        SPEC.open_file(asset, Placement(), VoiceParameters())


@pytest.mark.parametrize("rate_hz", [4000, 7999, 192001])
def test_a_rate_out_of_range_is_refused(rate_hz: int) -> None:
    with pytest.raises(ParameterRefused, match="Hz"):
        live("formant", rate_hz)
