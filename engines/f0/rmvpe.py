"""RMVPE: a deep U-Net and a recurrent layer from a log-mel spectrogram to pitch salience.

Source: Wei et al., Interspeech 2023.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..base import ModelUnusable
from ..rvc import torchfile
from ..rvc.weights import folded
from .salience import BINS

WANTED = "wanted is rmvpe.pt, RVC's pitch model (181 MB)"


class ResidualConvolution(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, inner: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(inner, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )
        self.shortcut = nn.Conv2d(inner, out, 1) if inner != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inner, frames, bands) → (batch, out, frames, bands)."""
        out: Tensor = self.conv(x) + self.shortcut(x)
        return out


class Down(nn.Module):
    """Residual convolutions at one scale."""

    def __init__(self, inner: int, out: int, blocks: int) -> None:
        super().__init__()
        self.conv = nn.ModuleList(ResidualConvolution(inner if i == 0 else out, out) for i in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inner, frames, bands) → (batch, out, frames, bands)."""
        for block in self.conv:
            x = block(x)
        return x


class Up(nn.Module):
    """Doubles both axes and joins what the same scale had on the way down."""

    def __init__(self, inner: int, out: int, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            nn.ConvTranspose2d(inner, out, 3, 2, padding=1, output_padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )
        self.conv2 = nn.ModuleList(ResidualConvolution(2 * out if i == 0 else out, out) for i in range(blocks))

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        """(batch, inner, frames, bands) → (batch, out, 2·frames, 2·bands)."""
        x = torch.cat((self.conv1(x), beside), dim=1)
        for block in self.conv2:
            x = block(x)
        return x


class Layers(nn.Module):
    """A named list, so that tensor names match the file's."""

    def __init__(self, layers: list[nn.Module], first_norm: int = 0) -> None:
        super().__init__()
        if first_norm:
            self.bn = nn.BatchNorm2d(first_norm)
        self.layers = nn.ModuleList(layers)


class UNet(nn.Module):
    """Down, across, and up again."""

    def __init__(self, start: int, depth: int, across: int, blocks: int) -> None:
        super().__init__()
        widths = [start << i for i in range(depth)]
        self.encoder = Layers(
            [Down(1 if i == 0 else widths[i - 1], width, blocks) for i, width in enumerate(widths)], first_norm=1
        )
        bottom = widths[-1] * 2
        self.intermediate = Layers([Down(widths[-1] if i == 0 else bottom, bottom, blocks) for i in range(across)])
        self.decoder = Layers([Up(2 * width, width, blocks) for width in reversed(widths)])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, frames, bands) → (batch, start, frames, bands)."""
        x = self.encoder.bn(x)
        beside = []
        for layer in self.encoder.layers:
            x = layer(x)
            beside.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        for layer in self.intermediate.layers:
            x = layer(x)
        for layer, kept in zip(self.decoder.layers, reversed(beside), strict=True):
            x = layer(x, kept)
        return x


class Recurrent(nn.Module):
    """A GRU in both directions."""

    def __init__(self, inner: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inner, hidden, num_layers=layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, inner) → (batch, frames, 2·hidden)."""
        out: Tensor = self.gru(x)[0]
        return out


class Rmvpe(nn.Module):
    """Log-mel to salience."""

    def __init__(
        self, *, start: int, depth: int, across: int, blocks: int, hidden: int, recurrent: int, bands: int
    ) -> None:
        super().__init__()
        self.unet = UNet(start, depth, across, blocks)
        self.cnn = nn.Conv2d(start, 3, 3, padding=1)
        self.fc = nn.Sequential(Recurrent(3 * bands, hidden, recurrent), nn.Linear(2 * hidden, BINS))

    def forward(self, mel: Tensor) -> Tensor:
        """(batch, bands, frames), frames a multiple of 32 → salience 0..1, (batch, frames, 360)."""
        x = self.cnn(self.unet(mel.transpose(1, 2).unsqueeze(1)))
        return torch.sigmoid(self.fc(x.transpose(1, 2).flatten(2)))


def load(path: Path) -> Rmvpe:
    """Load the model, sizes taken from its tensors.

    Raises:
        ModelUnusable: another kind of file, or a damaged one.
    """
    content = torchfile.read_file(path)
    if isinstance(content, Mapping):
        inner = content.get("model", content.get("weight", content))
        tensors = dict(torchfile.tensors_in(inner))
    else:
        tensors = {}
    if "unet.encoder.bn.weight" not in tensors or "fc.1.bias" not in tensors:
        raise ModelUnusable(f"{path.name} is not the RMVPE pitch model; {WANTED}", path=str(path))

    def count(prefix: str, suffix: str) -> int:
        number = 0
        while f"{prefix}.{number}.{suffix}" in tensors:
            number += 1
        return number

    try:
        model = Rmvpe(
            start=tensors["unet.encoder.layers.0.conv.0.conv.0.weight"].shape[0],
            depth=count("unet.encoder.layers", "conv.0.conv.0.weight"),
            across=count("unet.intermediate.layers", "conv.0.conv.0.weight"),
            blocks=count("unet.encoder.layers.0.conv", "conv.0.weight"),
            hidden=tensors["fc.0.gru.weight_hh_l0"].shape[1],
            recurrent=sum(1 for i in range(8) if f"fc.0.gru.weight_hh_l{i}" in tensors),
            bands=tensors["fc.0.gru.weight_ih_l0"].shape[1] // 3,
        )
        state = folded(tensors, where=path.name)
        model.load_state_dict(state, strict=False)
        missing = {n for n in model.state_dict() if not n.endswith("num_batches_tracked")} - state.keys()
    except (KeyError, RuntimeError) as error:
        raise ModelUnusable(f"{path.name} is damaged: {str(error).splitlines()[-1].strip()}") from error
    if missing:
        raise ModelUnusable(f"{path.name} is damaged: {sorted(missing)[0]} is missing")
    return model.eval().requires_grad_(False)
