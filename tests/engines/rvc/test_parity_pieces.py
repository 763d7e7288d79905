"""Everything around the synthesizer equals the reference."""

from pathlib import Path

import numpy as np
import pytest
import torch

from myna.engines.f0 import mel, pitch, rmvpe, salience
from myna.engines.index import Retrieval, neighbour_weights
from myna.engines.rvc import features, hubert, loudness
from myna.engines.rvc.checkpoint import open_voice
from myna.engines.rvc.reference import ReferenceLive
from myna.engines.rvc.synthesizer import build

GOLDEN = Path(__file__).parents[2] / "golden"


def apart(ours: object, theirs: object) -> float:
    return float(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).max())


@pytest.mark.parametrize("file", ["hubert_tiny_hf", "hubert_tiny_fairseq.pt"])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("clip", ["1s", "live"])
def test_parity_content_encoder(file: str, version: str, clip: str) -> None:
    stored = np.load(GOLDEN / "hubert_tiny.npz")
    encoder = hubert.load(GOLDEN / file, version, heads=4)
    wav = torch.from_numpy(stored[f"wav_{clip}"])
    assert apart(encoder.feature_extractor(wav), stored[f"conv_{clip}"]) < 1e-4
    out = encoder(wav)
    assert out.shape[1] == hubert.frames_of(wav.shape[1])
    assert apart(out, stored[f"{version}_{clip}"]) < 1e-4


def test_parity_rmvpe_network() -> None:
    stored = np.load(GOLDEN / "rmvpe_tiny.npz")
    spectrum = mel.log_mel(stored["wav"])
    assert apart(spectrum, stored["mel"][0]) < 1e-4
    frames = spectrum.shape[1]
    padded = np.pad(spectrum, ((0, 0), (0, -frames % salience.MULTIPLE)))
    made = rmvpe.load(GOLDEN / "rmvpe_tiny.pt")(torch.from_numpy(padded)[None])[0, :frames].numpy()
    assert apart(made, stored["hidden"][0]) < 2e-5
    np.testing.assert_allclose(salience.decode(made, 0.03), stored["f0_thr003"], rtol=1e-4)


@pytest.mark.parametrize(("threshold", "name"), [(0.03, "f0_thr003"), (0.3, "f0_thr0_3")])
def test_parity_rmvpe_decoding(threshold: float, name: str) -> None:
    stored = np.load(GOLDEN / "rmvpe_decode.npz")
    f0 = salience.decode(stored["salience"], threshold)
    np.testing.assert_allclose(f0, stored[name], rtol=1e-4)
    assert np.array_equal(f0 == 0, stored[name] == 0)
    told = stored["cents"] > 0
    np.testing.assert_allclose(salience.weighted_cents(stored["salience"])[told], stored["cents"][told], rtol=1e-4)


def test_parity_pitch_bins() -> None:
    stored = np.load(GOLDEN / "f0_coarse.npz")
    assert np.array_equal(pitch.coarse(stored["f0"]), stored["coarse_live"])
    for name, semitones in (("key0", 0), ("key7", 7)):
        moved = pitch.transposed(pitch.gaps_filled(stored["f0"]), semitones)
        np.testing.assert_allclose(moved, stored[f"f0_offline_{name}"], rtol=1e-6)
        assert np.array_equal(pitch.coarse(moved), stored[f"coarse_offline_{name}"])
    moved = pitch.transposed(pitch.gaps_filled(stored["f0_gaps"]), -3)
    np.testing.assert_allclose(moved, stored["f0_gaps_keym3"], rtol=1e-6)
    assert np.array_equal(pitch.coarse(moved), stored["coarse_gaps_keym3"])


def test_parity_retrieval_and_protection() -> None:
    stored = np.load(GOLDEN / "index_protect.npz")
    retrieval = Retrieval(GOLDEN / "index_v2.index", 768)
    feats, frames = stored["feats"][0], int(stored["plen"][0])
    distances, numbers = retrieval.neighbours(feats)
    assert apart(distances, stored["score"]) < 1e-5 * stored["score"].max()
    assert np.array_equal(numbers, stored["ix"])
    own = features.doubled(feats, frames)
    tried = 0
    for name in stored.files:
        if not name.startswith("phone_rate"):
            continue
        rate, keep = (float(x) for x in name.removeprefix("phone_rate").split("_protect"))
        retrieved = features.doubled(retrieval.blended(feats, rate), frames)
        ours = features.protected(retrieved, own, stored["pitchf"][0, :frames], keep)
        assert apart(ours, stored[name][0]) < 1e-5, name
        tried += 1
    assert tried == 6
    assert apart(features.doubled(retrieval.blended(feats, 0.75), frames), stored["phone_nof0_rate0.75"][0]) < 1e-5
    assert np.array_equal(stored["pitch"][:, :frames], stored["pitch_out"])


def test_parity_exact_hit_is_weight_one_where_the_reference_has_nan() -> None:
    stored = np.load(GOLDEN / "index_protect.npz")
    assert np.isnan(stored["exact_hit_weight_reference"]).any()
    weights = neighbour_weights(stored["exact_hit_score"], np.ones((1, 8), bool))
    assert weights.tolist() == [[1, 0, 0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("keep", [0.0, 0.25, 0.8])
def test_parity_loudness_of_files(keep: float) -> None:
    stored = np.load(GOLDEN / "rms_mix_offline.npz")
    ours = loudness.matched(stored["src_16k"], 16000, stored["out_40k"], 40000, keep)
    assert apart(ours, stored[f"mixed_rate{keep}"]) < 1e-5


STEPS = sorted(GOLDEN.glob("live_step_*.npz"))


def test_parity_has_all_live_steps() -> None:
    assert len(STEPS) == 5


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_parity_live_step(path: Path) -> None:
    stored = np.load(path)
    name = path.stem.removeprefix("live_step_").rsplit("_", 1)[0]
    voice = build(open_voice(GOLDEN / "synth" / f"{name}.pth"))
    live = ReferenceLive(voice, Retrieval(GOLDEN / "index_v2.index", 768), index_rate=float(stored["index_rate"]))
    total, block, skip, returned, key, formant, _window = (int(x) for x in stored["meta"])
    for call in range(3):
        out = live.step(
            stored["feats"][call],
            stored["f0_raw"][call] if voice.merge else None,
            total=total,
            block=block,
            skip=skip,
            returned=returned,
            pitch=key,
            formant=formant,
        )
        assert apart(out, stored["out"][call]) < 3e-5
    assert np.array_equal(live.pitch[-total:], stored["cache_pitch"])
    np.testing.assert_allclose(live.f0_hz[-total:], stored["cache_pitchf"], rtol=1e-6)
