"""Pitch: every extractor finds it, and curves are shaped as told."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from myna.engines.base import ParameterRefused
from myna.engines.f0 import mel, pitch, rmvpe
from myna.engines.f0.extractors import PitchExtractor, Rmvpe, Swift, World, available, refuse

Array = NDArray[np.float32]


def sung(hz: float, seconds: float = 1.0) -> Array:
    t = np.arange(int(16000 * seconds)) / 16000
    return np.sum([0.3 / k * np.sin(2 * np.pi * hz * k * t) for k in range(1, 12)], axis=0).astype(np.float32)


EXTRACTORS = {"swift": lambda: Swift(), "dio": lambda: World("dio"), "harvest": lambda: World("harvest")}


@pytest.fixture(scope="module", params=EXTRACTORS)
def extractor(request: pytest.FixtureRequest) -> PitchExtractor:
    return EXTRACTORS[request.param]()


@pytest.mark.parametrize("hz", [90.0, 220.0, 440.0])
def test_finds_a_steady_pitch(extractor: PitchExtractor, hz: float) -> None:
    track = extractor.track(sung(hz))
    assert track.shape == (100,)
    assert track.dtype == np.float32
    inner = track[15:85]
    assert (inner > 0).all()
    assert np.abs(1200 * np.log2(np.median(inner) / hz)) < 20


def test_silence_noise_and_short_windows(extractor: PitchExtractor) -> None:
    assert not extractor.track(np.zeros(8000, np.float32)).any()
    draw = np.random.default_rng(0)
    noise = (0.1 * draw.standard_normal(16000)).astype(np.float32)
    assert (extractor.track(noise) > 0).mean() < 0.4
    assert extractor.track(sung(200)[:1600]).shape == (10,)
    assert np.isfinite(extractor.track(5 * noise)).all()


def test_a_window_is_as_good_as_the_whole(extractor: PitchExtractor) -> None:
    """The newest frames from a window equal those from everything heard, so that live pays for what is new only."""
    t = np.arange(32000) / 16000
    glide = 150 * 2 ** (0.4 * np.sin(2 * np.pi * 0.8 * t))
    phase = 2 * np.pi * np.cumsum(glide) / 16000
    audio = np.sum([0.3 / k * np.sin(k * phase) for k in range(1, 10)], axis=0).astype(np.float32)
    fresh = 15
    window = extractor.window(fresh)
    assert window % 160 == 0
    whole, part = extractor.track(audio)[-fresh:], extractor.track(audio[-window:])[-fresh:]
    both = (whole > 0) & (part > 0)
    assert both[:-3].all()
    assert np.abs(1200 * np.log2(part[both] / whole[both])).max() < 30


def test_rmvpe_windows_are_whole_multiples_and_its_frames_stand_on_the_grid() -> None:
    seen: list[tuple[int, ...]] = []

    made: list[int] = []

    def salience(frames: int) -> Callable[[Array], Array]:
        made.append(frames)

        def run(spectrum: Array) -> Array:
            seen.append(spectrum.shape)
            out = np.zeros((1, frames, 360), np.float32)
            out[:, :, 200] = 1.0
            return out

        return run

    extractor = Rmvpe(salience)
    assert extractor.window(15) == 31 * 160
    assert extractor.window(30) == 63 * 160
    extractor.prepare(31 * 160)
    assert made == [32]
    track = extractor.track(np.zeros(31 * 160, np.float32))
    assert made == [32, 32]
    assert seen == [(1, 128, 32)]
    assert track.shape == (31,)
    assert np.allclose(track, 10 * 2 ** ((20 * 200 + 1997.3794084376191) / 1200))
    assert not rmvpe.decode(np.zeros((3, 360), np.float32)).any()


def test_mel_of_short_audio() -> None:
    for samples in (0, 1, 300, 513, 2000):
        spectrum = mel.log_mel(np.ones(samples, np.float32))
        assert spectrum.shape == (128, samples // 160 + 1)
        assert np.isfinite(spectrum).all()


def test_bins_have_their_edges_in_mel() -> None:
    assert pitch.coarse(np.array([0, 1, 49.9, 50, 226, 1100, 5000], np.float32)).tolist() == [1, 1, 1, 1, 62, 255, 255]


def test_gaps_and_autotune() -> None:
    curve = np.array([0, 100, 0, 0, 130, 0], np.float32)
    assert pitch.gaps_filled(curve).tolist() == [100, 100, 110, 120, 130, 130]
    assert not pitch.gaps_filled(np.zeros(4, np.float32)).any()
    assert pitch.autotuned(curve, 0.0) is curve
    tuned = pitch.autotuned(np.array([0, 430, 450], np.float32), 1.0)
    assert np.allclose(tuned, [0, 440, 440])
    half = pitch.autotuned(np.array([450.0], np.float32), 0.5)
    assert 440 < half[0] < 450


def test_grid_holds_gaps() -> None:
    times = np.arange(5) * 0.016
    hz = np.array([100, 110, 0, 0, 120.0])
    curve = pitch.on_grid(times, hz, 8)
    assert (curve[:3] > 0).all()
    assert not curve[3:6].any()
    assert curve[7] == 120
    assert not pitch.on_grid(times[:0], hz[:0], 3).any()


@dataclass
class Case:
    there: bool
    method: str


@pytest.mark.parametrize("case", [Case(False, "rmvpe"), Case(True, "rmvpe")])
def test_what_is_available(case: Case) -> None:
    assert (case.method in available(case.there)) == case.there
    assert "swift" in available(case.there)
    error = refuse("pm", case.there)
    assert isinstance(error, ParameterRefused)
    assert error.facts["parameter"] == "f0_method"


def test_on_real_speech(speech_dir: Path, speech_16k: Array) -> None:
    swift, dio = Swift().track(speech_16k), World("dio").track(speech_16k)
    both = (swift > 0) & (dio > 0)
    assert both.mean() > 0.3
    assert np.median(np.abs(1200 * np.log2(swift[both] / dio[both]))) < 30
