"""FCPE: convolutions over a log-mel spectrogram give each frame's pitch; needs no attention, and few frames around.

Sizes and order of layers as in the weights that the package torchfcpe brings (MIT), whose attention is left out.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..base import ModelUnusable
from ..rvc import torchfile
from ..rvc.weights import folded
from .mel import BANDS, FLOOR, HOP, RATE_HZ, WINDOW, triangles
from .salience import BINS

Array = NDArray[np.float32]

# Cents over 10 Hz of the bins: evenly from 32.7 to 1975.5 Hz.
CENTS: Final = np.linspace(1200 * np.log2(3.27), 1200 * np.log2(197.55), BINS)
_GROUPS: Final = 4
_LINEAR_HZ: Final = 1000.0  # Slaney's mel scale is linear below, 15 mel to here, and logarithmic above


class Layer(nn.Module):
    """A conformer's convolution module, added to its input."""

    def __init__(self, width: int, inner: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Conv1d(width, 2 * inner, 1)
        self.depth = nn.Conv1d(inner, inner, kernel, padding=kernel // 2, groups=inner)
        self.narrow = nn.Conv1d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, width) → the same."""
        y = F.glu(self.wide(self.norm(x).transpose(1, 2)), dim=1)
        out: Tensor = x + self.narrow(F.silu(self.depth(y))).transpose(1, 2)
        return out


class Fcpe(nn.Module):
    """Log-mel to salience."""

    def __init__(self, *, bands: int, width: int, inner: int, kernel: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.group = nn.GroupNorm(_GROUPS, width)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.layers = nn.ModuleList(Layer(width, inner, kernel) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, BINS)

    def forward(self, mel: Tensor) -> Tensor:
        """(batch, bands, frames) → salience 0..1, (batch, frames, 360)."""
        x = self.second(F.leaky_relu(self.group(self.first(mel)))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return torch.sigmoid(self.out(self.norm(x)))


_NAMES: Final = {
    "input_stack.0": "first",
    "input_stack.1": "group",
    "input_stack.3": "second",
    "norm": "norm",
    "output_proj": "out",
}
_LAYER_NAMES: Final = {"net.0": "norm", "net.2": "wide", "net.4.conv": "depth", "net.6": "narrow"}


def load(path: Path) -> Fcpe:
    """Load the model, sizes taken from its tensors.

    Raises:
        ModelUnusable: another kind of file, a damaged one, or a network with attention.
    """
    content = torchfile.read_file(path)
    inner = content.get("model", content) if isinstance(content, Mapping) else {}
    tensors = dict(torchfile.tensors_in(inner))
    layers = 0
    while f"net.encoder_layers.{layers}.norm.weight" in tensors:
        layers += 1
    names = dict(_NAMES)
    for i in range(layers):
        for theirs, ours in _LAYER_NAMES.items():
            names[f"net.encoder_layers.{i}.conformer.{theirs}"] = f"layers.{i}.{ours}"
    try:
        if any(".attn." in name for name in tensors) or not layers:
            raise KeyError("its layers have attention" if layers else "it has no layers")
        first = tensors["input_stack.0.weight"].shape
        depth = tensors["net.encoder_layers.0.conformer.net.4.conv.weight"].shape
        model = Fcpe(bands=first[1], width=first[0], inner=depth[0], kernel=depth[2], layers=layers)
        if first[1] != BANDS:
            raise KeyError(f"it takes {first[1]} bands")
        read = folded(tensors, where=path.name)
        state = {}
        for name, value in read.items():
            base, _, kind = name.rpartition(".")
            if base in names:
                state[f"{names[base]}.{kind}"] = value
        model.load_state_dict(state, strict=True)
    except (KeyError, IndexError, RuntimeError) as error:
        raise ModelUnusable(
            f"{path.name} is not the pitch model FCPE: {str(error).splitlines()[-1].strip()}", path=str(path)
        ) from error
    return model.eval().requires_grad_(False)


def _slaney_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mel of Slaney's scale to Hz: 200/3 Hz a mel up to 1 kHz, from there a factor 6.4 in 27 mel."""
    linear = mel * (200.0 / 3.0)
    break_mel = _LINEAR_HZ * 3.0 / 200.0
    bent = _LINEAR_HZ * np.exp(np.log(6.4) / 27.0 * (mel - break_mel))
    out: NDArray[np.float64] = np.where(mel < break_mel, linear, bent)
    return out


@lru_cache(maxsize=1)
def filters() -> Array:
    """Triangles evenly spaced from 0 Hz to half the rate on Slaney's mel scale, each of unit area."""
    top = _LINEAR_HZ * 3.0 / 200.0 + 27.0 / np.log(6.4) * np.log(RATE_HZ / 2 / _LINEAR_HZ)
    edges = _slaney_hz(np.linspace(0.0, top, BANDS + 2))
    return triangles(edges)


def log_mel(audio: Array) -> Array:
    """Log-mel of 16 kHz audio, (bands, samples // HOP).

    Frames are centred on multiples of HOP; the package's own stand half a hop later, which is only another grid.
    """
    half = WINDOW // 2
    padded = np.pad(audio, half, mode="reflect" if audio.shape[0] > half else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: audio.shape[0] // HOP]
    window = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
    power = np.square(np.abs(np.fft.rfft(frames * window, axis=1))) + 1e-9
    out: Array = np.log(np.maximum(filters() @ np.sqrt(power).astype(np.float32).T, np.float32(FLOOR)))
    return out.astype(np.float32, copy=False)
