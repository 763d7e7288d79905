"""Files: the same bytes each time, the right length, silence kept, no seam at a cut, and like live."""

import gc
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import EAGER, PLAIN, asset, write_embedder

from myna.engines.rvc import SPEC, file
from myna.engines.rvc.file import RvcFile
from myna.engines.rvc.live import RvcLive
from myna.engines.rvc.rates import whole

Array = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def voice(folder: Path) -> RvcFile:
    return RvcFile(asset(folder), EAGER, PLAIN)


def test_three_times_the_same_bytes_whatever_ran_before(folder: Path, voice: RvcFile, speech_16k: Array) -> None:
    sound = speech_16k[:16000]
    first = voice.convert(sound, 16000).tobytes()
    voice.convert(speech_16k[16000:30000], 16000)
    assert voice.convert(sound, 16000).tobytes() == first
    assert RvcFile(asset(folder), EAGER, PLAIN).convert(sound, 16000).tobytes() == first


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
@pytest.mark.parametrize("seconds", [0.0003, 0.013, 0.5])
def test_length_at_any_rate(voice: RvcFile, rate_hz: int, seconds: float) -> None:
    frames = int(seconds * rate_hz)
    sound = (0.1 * np.sin(np.arange(frames) * 0.05)).astype(np.float32)
    out = voice.convert(sound, rate_hz)
    assert out.shape == (round(frames * voice.rate_hz / rate_hz),)
    assert out.dtype == np.float32
    assert np.isfinite(out).all()


def test_nothing_and_silence(voice: RvcFile, speech_16k: Array) -> None:
    assert voice.convert(np.zeros(0, np.float32), 48000).shape == (0,)
    assert not voice.convert(np.zeros(4800, np.float32), 48000).any()
    sound = speech_16k[:16000].copy()
    sound[6000:12000] = 0
    out = voice.convert(sound, 16000)
    low, high = 6000 * 5 // 2, 12000 * 5 // 2
    assert not out[low + 400 : high - 400].any()
    assert out[: low - 400].any()
    assert out[high + 400 :].any()


def test_what_is_not_finite_counts_as_silence(voice: RvcFile, speech_16k: Array) -> None:
    sound = speech_16k[:8000].copy()
    sound[100], sound[2000:2100] = np.inf, np.nan
    assert np.isfinite(voice.convert(sound, 16000)).all()


def test_cut_or_not_the_inside_is_the_same(folder: Path, speech_16k: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding in pieces is exact; so the cut shows only as far as the encoder hears its whole window."""
    sound = speech_16k[:32000]
    voice = RvcFile(asset(folder), EAGER, PLAIN)
    uncut = voice.convert(sound, 16000)
    monkeypatch.setattr(file, "_DECODED_FRAMES", 37)
    pieces = voice.convert(sound, 16000)
    assert np.abs(pieces - uncut).max() < 2e-5
    monkeypatch.setattr(file, "LONGEST_FRAMES", 100)
    monkeypatch.setattr(file, "_LOOK_FRAMES", 40)
    cut = voice.convert(sound, 16000)
    assert cut.shape == uncut.shape
    jumps, cuts = np.abs(np.diff(cut)), file._cuts(whole(sound, 16000, 16000), 200)
    assert len(cuts) >= 2
    for first, _ in cuts[1:]:
        assert jumps[first * 400 - 2 : first * 400 + 2].max() <= jumps.max()  # no step where there is a seam


def test_pieces_cover_everything_once_and_cut_where_it_is_quiet() -> None:
    draw = np.random.default_rng(1)
    sound = draw.standard_normal(160 * 9000).astype(np.float32)
    sound[160 * 2750 : 160 * 2770] *= 1e-3
    pieces = file._cuts(sound, 9000)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == 9000
    assert all(a[1] == b[0] for a, b in pairwise(pieces))
    assert all(last - first <= file.LONGEST_FRAMES for first, last in pieces)
    assert 2750 <= pieces[0][1] <= 2770


def test_parameters_are_heard(folder: Path, voice: RvcFile, speech_16k: Array) -> None:
    sound = speech_16k[16000:28000]
    plain = voice.convert(sound, 16000)
    for change in ({"pitch": 5.0}, {"formant": 1.5}, {"speaker_id": 1}, {"autotune": 1.0}, {"rms_mix": 0.25}):
        other = RvcFile(asset(folder), EAGER, replace(PLAIN, **change)).convert(sound, 16000)  # type: ignore[arg-type]
        assert other.shape == plain.shape
        assert not np.array_equal(other, plain), change


def local_features(width: int = 256) -> object:
    """An encoder that hears 25 ms at a time, so that a window's length and level cannot change a frame."""
    matrix = 0.05 * np.random.default_rng(0).standard_normal((201, width)).astype(np.float32)

    def features(wav: Array) -> Array:
        frames = np.lib.stride_tricks.sliding_window_view(wav[0], 400)[::320]
        spectrum = np.abs(np.fft.rfft(frames * np.hanning(400), axis=1))
        return (np.log(spectrum + 1e-2).astype(np.float32) @ matrix)[None]

    return features


@pytest.mark.parametrize(("formant", "least"), [(0.0, 0.93), (1.5, 0.90)])
def test_file_and_live_give_the_same_sound(
    folder: Path, speech_16k: Array, formant: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings, the same sound: what differs is what a live block cannot know of the future.

    The voice is one without pitch, whose waves could drift apart by phase, and hears through an encoder of short
    reach; a live block's last frames are rendered without what follows them, which leaves the correlation below 1.
    """
    monkeypatch.setattr(file, "_without_rumble", lambda heard: heard)
    parameters = replace(PLAIN, formant=formant)
    offline = RvcFile(asset(folder, "v1_40k_nof0"), EAGER, parameters)
    live = RvcLive(asset(folder, "v1_40k_nof0"), EAGER, parameters, 16000)
    for models in (offline._models, live._models):
        made = models.stage

        def stage(network, shapes, made=made):  # type: ignore[no-untyped-def]
            return local_features() if network.role == "content" else made(network, shapes)

        monkeypatch.setattr(models, "stage", stage)
    sound = speech_16k[:48000]
    blocks = [live.process(sound[i : i + 1600]) for i in range(0, 48000, 1600)]
    heard = np.concatenate(blocks)[live.latency_frames :]
    read = whole(offline.convert(sound, 16000), 40000, 16000)
    a, b = heard[8000:44000], read[8000:44000]
    assert np.corrcoef(a, b)[0, 1] > least
    assert abs(a.std() / b.std() - 1) < 0.05


def test_through_the_engine_s_front_door(folder: Path, speech_16k: Array) -> None:
    opened = SPEC.open_file(asset(folder), EAGER, PLAIN)
    assert opened.rate_hz == 40000
    assert opened.context_ms >= 500
    assert opened.facts.backend == "eager"
    assert opened.convert(speech_16k[:8000], 16000).shape == (20000,)
    opened.close()


def test_voices_of_one_process_hold_equal_networks_together(tmp_path: Path, speech_16k: Array) -> None:
    write_embedder(tmp_path / "hubert_base.pt", seed=9)  # one that no other test holds
    sung = replace(PLAIN, f0_method="rmvpe")
    plain = RvcFile(asset(tmp_path, rmvpe=True), EAGER, sung)
    higher = RvcFile(asset(tmp_path, rmvpe=True), EAGER, replace(sung, pitch=5.0))
    other = RvcFile(asset(tmp_path, "v1_40k_nof0", rmvpe=True), EAGER, PLAIN)
    for voice in (plain, higher, other):
        voice.convert(speech_16k[:8000], 16000)
    content = [id(voice._models.content.module) for voice in (plain, higher, other)]
    decoders = [id(voice._models.audio.module) for voice in (plain, higher, other)]
    assert len(set(content)) == 1
    assert decoders[0] == decoders[1] != decoders[2]
    assert {model.id for model in plain.facts.shared} == {"hubert_base.pt", "rmvpe_tiny.pt"}
    assert all(model.model_bytes for model in plain.facts.shared)

    # What one voice lets go of stays as long as another needs it, and goes with the last.
    expected = higher.convert(speech_16k[:8000], 16000)
    held = weakref.ref(plain._models.content.module)
    plain.close()
    other.close()
    assert np.array_equal(higher.convert(speech_16k[:8000], 16000), expected)
    higher.close()
    gc.collect()
    assert held() is None
