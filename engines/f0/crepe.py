"""CREPE: a convolutional network that reads the pitch off 64 ms of sound.

Source: Kim et al., CREPE: A Convolutional Representation for Pitch Estimation, ICASSP 2018.
"""

from collections.abc import Iterator, Mapping
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
from .salience import BINS

Array = NDArray[np.float32]

WINDOW: Final = 1024
_LAYERS: Final = 6
_EPSILON: Final = 0.0010000000474974513  # of the batch norms, as trained
_TOGETHER: Final = 64  # frames run at once: the largest network holds a megabyte of every one


class Crepe(nn.Module):
    """Windows of sound to salience."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        """`widths` are the channels of the six layers: 128, 16, 16, 16, 32, 64 (tiny) or 1024, 128 … 512 (full)."""
        super().__init__()
        for i, (inner, outer) in enumerate(zip((1, *widths), widths, strict=False), 1):
            kernel, stride = ((512, 1), (4, 1)) if i == 1 else ((64, 1), (1, 1))
            self.add_module(f"conv{i}", nn.Conv2d(inner, outer, kernel, stride))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(outer, eps=_EPSILON))
        self.classifier = nn.Linear(4 * widths[-1], BINS)

    def forward(self, windows: Tensor) -> Tensor:
        """(frames, 1024), each of mean 0 and deviation 1 → salience 0..1, (frames, 360)."""
        x = windows[:, None, :, None]
        for i in range(1, _LAYERS + 1):
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = self.get_submodule(f"conv{i}_BN")(torch.relu(self.get_submodule(f"conv{i}")(x)))
            x = F.max_pool2d(x, (2, 1))
        return torch.sigmoid(self.classifier(x.squeeze(3).transpose(1, 2).flatten(1)))


def load(path: Path) -> Crepe:
    """Load the model, sizes taken from its tensors.

    Raises:
        ModelUnusable: another kind of file, or a damaged one.
    """
    content = torchfile.read_file(path)
    tensors = dict(torchfile.tensors_in(content)) if isinstance(content, Mapping) else {}
    try:
        widths = tuple(tensors[f"conv{i}.weight"].shape[0] for i in range(1, _LAYERS + 1))
        model = Crepe(widths)
        model.load_state_dict(folded(tensors, where=path.name), strict=False)
        missing = {n for n in model.state_dict() if not n.endswith("num_batches_tracked")} - tensors.keys()
        if missing:
            raise KeyError(sorted(missing)[0])
    except (KeyError, IndexError, RuntimeError) as error:
        raise ModelUnusable(
            f"{path.name} is not the pitch model CREPE: {str(error).splitlines()[-1].strip()}", path=str(path)
        ) from error
    return model.eval().requires_grad_(False)


def windows(audio: Array, hop: int) -> Iterator[Array]:
    """Normalised windows of 16 kHz audio, centred on multiples of `hop`, silence beyond the ends; in portions."""
    padded = np.pad(audio, (WINDOW // 2, WINDOW // 2))
    framed = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::hop][: audio.shape[0] // hop]
    for at in range(0, framed.shape[0], _TOGETHER):
        part = framed[at : at + _TOGETHER] - framed[at : at + _TOGETHER].mean(axis=1, keepdims=True)
        yield (part / np.maximum(part.std(axis=1, keepdims=True), 1e-10)).astype(np.float32)
