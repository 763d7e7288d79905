"""Tiny ONNX exports of golden voices, with the inputs and the inner layout that users' exports have."""

import contextlib
import io
import warnings
from pathlib import Path
from unittest.mock import patch

import onnx
import torch
from tiny_models import GOLDEN
from torch import Tensor, nn

from myna.engines.rvc import decoder
from myna.engines.rvc.checkpoint import open_voice
from myna.engines.rvc.synthesizer import NOISE_SCALE, Synthesizer, build

INPUTS = ("phone", "phone_lengths", "pitch", "pitchf", "ds", "rnd")


class SineSource(nn.Module):
    """A sine that starts at phase 0 in every call, noise drawn inside, and the trained last step."""

    def __init__(self, voice: Synthesizer) -> None:
        super().__init__()
        assert voice.merge is not None
        self.hop, self.rate_hz = voice.hop, voice.rate_hz
        self.l_linear = nn.Linear(1, 1)
        nn.init.constant_(self.l_linear.weight, voice.merge.weight)
        nn.init.constant_(self.l_linear.bias, voice.merge.bias)

    def forward(self, f0: Tensor) -> Tensor:
        """(1, frames) → (1, 1, samples)."""
        steps = (f0 / self.rate_hz).unsqueeze(1)
        steps = nn.functional.interpolate(steps, scale_factor=float(self.hop)).transpose(1, 2)
        voiced = (steps > 0).to(steps.dtype)
        wave = torch.sin(torch.cumsum(steps, 1) * 2 * torch.pi) * 0.1 * voiced
        noise = (voiced * 0.003 + (1 - voiced) * 0.1 / 3) * torch.randn_like(wave)
        out: Tensor = torch.tanh(self.l_linear(wave + noise)).transpose(1, 2)
        return out


class Whole(nn.Module):
    """A voice from features and pitch to audio in one network, as exporters write it."""

    def __init__(self, voice: Synthesizer, *, scaled: bool = False) -> None:
        super().__init__()
        self.enc_p, self.flow, self.emb_g = voice.front.enc_p, voice.front.flow, voice.front.emb_g
        self.dec = voice.back.dec
        self.scale = NOISE_SCALE if scaled else None
        self.source = SineSource(voice) if voice.merge is not None else None

    def _latent(self, phone: Tensor, lengths: Tensor, pitch: Tensor | None, ds: Tensor, rnd: Tensor) -> Tensor:
        frames = torch.arange(phone.shape[1])
        mask = (frames[None, :] < lengths[:, None]).to(phone.dtype).unsqueeze(1)
        mean, log_deviation = self.enc_p(phone, pitch, mask)
        drawn = torch.exp(log_deviation) * rnd
        z = (mean + (drawn if self.scale is None else drawn * self.scale)) * mask
        out: Tensor = self.flow(z, mask, self.emb_g(ds).unsqueeze(-1)) * mask
        return out


class WithPitch(Whole):
    def forward(self, phone, phone_lengths, pitch, pitchf, ds, rnd):  # type: ignore[no-untyped-def]
        assert self.source is not None
        z = self._latent(phone, phone_lengths, pitch, ds, rnd)
        return self.dec(z, self.emb_g(ds).unsqueeze(-1), self.source(pitchf))


class WithoutPitch(Whole):
    def forward(self, phone, phone_lengths, ds, rnd):  # type: ignore[no-untyped-def]
        return self.dec(self._latent(phone, phone_lengths, None, ds, rnd), self.emb_g(ds).unsqueeze(-1))


class DrawingItself(Whole):
    def forward(self, phone, phone_lengths, pitch, pitchf, ds):  # type: ignore[no-untyped-def]
        assert self.source is not None
        rnd = torch.randn_like(self.enc_p(phone, pitch, torch.ones_like(phone[:, None, :, 0]))[0])
        z = self._latent(phone, phone_lengths, pitch, ds, rnd)
        return self.dec(z, self.emb_g(ds).unsqueeze(-1), self.source(pitchf))


def write_export(
    path: Path,
    voice: str = "v1_40k_f0",
    *,
    kind: type[Whole] | None = None,
    scaled: bool = False,
    fixed: bool = False,
    half: bool = False,
    names: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Export a golden voice.

    `fixed` keeps the traced length; `half` is in fp16 throughout; `names` renames inputs; `metadata` is put beside.
    """
    torch.manual_seed(0)
    made = build(open_voice(GOLDEN / "synth" / f"{voice}.pth"))
    kind = kind or (WithPitch if made.merge is not None else WithoutPitch)
    network = kind(made, scaled=scaled).eval()
    frames = 40
    example = {
        "phone": torch.randn(1, frames, made.features),
        "phone_lengths": torch.tensor([frames]),
        "pitch": torch.full((1, frames), 60),
        "pitchf": torch.full((1, frames), 150.0),
        "ds": torch.zeros(1, dtype=torch.int64),
        "rnd": torch.randn(1, made.channels, frames),
    }
    if half:
        network = network.half()
        example = {n: v.half() if v.is_floating_point() else v for n, v in example.items()}
    taken = [n for n in INPUTS if n in kind.forward.__code__.co_varnames[: kind.forward.__code__.co_argcount]]
    renamed = names or {}
    axes = {renamed.get(n, n): {2 if n == "rnd" else 1: "frames"} for n in taken if n not in ("phone_lengths", "ds")}
    # Users' exports hold the voice's layers as they are, not in the form that our own exports give them.
    as_trained = patch.object(decoder, "exporting", lambda: False)
    with as_trained, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # tracing warns of every size that it takes for a constant
        torch.onnx.export(
            network,
            tuple(example[n] for n in taken),
            str(path),
            input_names=[renamed.get(n, n) for n in taken],
            output_names=["audio"],
            dynamic_axes=None if fixed else axes,
            opset_version=17,
            do_constant_folding=False,
            dynamo=False,
        )
    if metadata:
        model = onnx.load(str(path))
        onnx.helper.set_model_props(model, metadata)
        onnx.save(model, str(path))
    return path
