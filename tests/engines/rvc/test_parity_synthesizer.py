"""Our synthesizer equals the reference on every golden voice."""

from pathlib import Path

import numpy as np
import pytest
import torch

from myna.engines.rvc.checkpoint import open_voice
from myna.engines.rvc.source import restarting
from myna.engines.rvc.synthesizer import Synthesizer, build

SYNTH = Path(__file__).parents[2] / "golden" / "synth"
NAMES = [path.stem for path in sorted(SYNTH.glob("*.pth"))]
AUDIO = 2e-5


def test_parity_has_all_voices() -> None:
    assert len(NAMES) == 10


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(SYNTH / f"{name.removesuffix('_paramnorm')}.npz") as stored:
        return {key: stored[key] for key in stored}


class Case:
    def __init__(self, name: str) -> None:
        self.voice: Synthesizer = build(open_voice(SYNTH / f"{name}.pth"))
        self.z = arrays(name)
        self.phone = torch.from_numpy(self.z["phone"])
        self.pitch = torch.from_numpy(self.z["pitch"]) if self.voice.merge else None
        self.sid = torch.from_numpy(self.z["sid"]).reshape(-1)
        self.frames = self.phone.shape[1]
        self.mask = torch.ones(1, 1, self.frames)

    def source(self, frames: slice, noise: np.ndarray | None = None) -> torch.Tensor | None:
        if self.voice.merge is None:
            return None
        f0 = self.z["pitchf"][0, frames]
        made = restarting(f0, self.voice.hop, self.voice.rate_hz, noise, self.voice.merge)
        return torch.from_numpy(made)[None, None]


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def relative(ours: object, theirs: np.ndarray) -> float:
    return float(np.abs(np.asarray(ours) - theirs).max() / max(np.abs(theirs).max(), 1e-9))


def absolute(ours: object, theirs: np.ndarray) -> float:
    return float(np.abs(np.asarray(ours) - theirs).max())


def test_parity_prior_and_latent(case: Case) -> None:
    mean, log_deviation = case.voice.front.enc_p(case.phone, case.pitch, case.mask)
    assert relative(mean, case.z["m_p"]) < 1e-4
    assert relative(log_deviation, case.z["logs_p"]) < 1e-4
    silent = torch.zeros(1, case.voice.channels, case.frames)
    assert relative(case.voice.front(case.phone, case.pitch, case.mask, silent, case.sid), case.z["z_zero"]) < 1e-4


def test_parity_audio_without_noise(case: Case) -> None:
    silent = torch.zeros(1, case.voice.channels, case.frames)
    z = case.voice.front(case.phone, case.pitch, case.mask, silent, case.sid)
    source = case.source(slice(None))
    if source is not None:
        assert absolute(source.numpy().reshape(-1), case.z["har_source_zero"].reshape(-1)) < 1e-5
    assert absolute(case.voice.back(z, case.sid, source), case.z["out_zero"]) <= AUDIO


def test_parity_audio_with_injected_noise(case: Case) -> None:
    noise = torch.from_numpy(case.z["noise_z"])
    z = case.voice.front(case.phone, case.pitch, case.mask, noise, case.sid)
    assert relative(z, case.z["z_noise"]) < 1e-4
    source = None
    if case.voice.merge is not None:
        source = case.source(slice(None), case.z["noise_sine"].reshape(-1))
        assert source is not None
        assert absolute(source.numpy().reshape(-1), case.z["har_source_noise"].reshape(-1)) < 1e-5
    assert absolute(case.voice.back(z, case.sid, source), case.z["out_noise"]) <= AUDIO


def test_parity_masked_end(case: Case) -> None:
    sounding = int(case.z["lengths_masked"][0])
    mask = torch.from_numpy((np.arange(case.frames) < sounding).astype(np.float32))[None, None]
    assert absolute(mask, case.z["x_mask_masked"]) == 0
    silent = torch.zeros(1, case.voice.channels, case.frames)
    z = case.voice.front(case.phone, case.pitch, mask, silent, case.sid)
    out = case.voice.back(z, case.sid, case.source(slice(None)))
    assert absolute(out, case.z["out_zero_masked"]) <= AUDIO


@pytest.mark.parametrize("rendered", [10, 12, 9])
def test_parity_live_slice(case: Case, rendered: int) -> None:
    skip, returned = 28, 10
    silent = torch.zeros(1, case.voice.channels, case.frames - (skip - 24))
    z = case.voice.front(case.phone, case.pitch, case.mask, silent, case.sid, skip)[:, :, :returned]
    source = case.source(slice(skip, skip + returned))
    if rendered != returned:
        z = torch.nn.functional.interpolate(z, size=rendered, mode="linear")
        if source is not None:
            source = torch.nn.functional.interpolate(source, size=rendered * case.voice.hop, mode="linear")
    assert absolute(case.voice.back(z, case.sid, source), case.z[f"out_zero_live_28_10_{rendered}"]) <= AUDIO
