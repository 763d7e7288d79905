"""The synthesizer's normalising flow, run from the prior to the decoder's latent.

Source: VITS, Kim et al., ICML 2021; coupling after Dinh et al., ICLR 2017; gated convolutions after WaveNet.
"""

import torch
from torch import Tensor, nn

LAYERS = 3
KERNEL = 5
COUPLINGS = 4
# Frames of context each way: COUPLINGS × LAYERS × (KERNEL − 1) / 2.
REACH_FRAMES = 24


class GatedStack(nn.Module):
    """Gated convolutions with residual and skip paths, told the speaker."""

    def __init__(self, channels: int, speaker: int) -> None:
        super().__init__()
        self.channels = channels
        self.in_layers = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, KERNEL, padding=KERNEL // 2) for _ in range(LAYERS)
        )
        self.res_skip_layers = nn.ModuleList(
            nn.Conv1d(channels, channels if last else 2 * channels, 1)
            for last in (i == LAYERS - 1 for i in range(LAYERS))
        )
        self.cond_layer = nn.Conv1d(speaker, 2 * channels * LAYERS, 1)

    def forward(self, x: Tensor, mask: Tensor, speaker: Tensor) -> Tensor:
        """(batch, channels, frames) → the same; `speaker` (batch, speaker, 1)."""
        told = self.cond_layer(speaker).chunk(LAYERS, dim=1)
        total = torch.zeros_like(x)
        for i, (inner, out) in enumerate(zip(self.in_layers, self.res_skip_layers, strict=True)):
            tone, gate = (inner(x) + told[i]).chunk(2, dim=1)
            y = out(torch.tanh(tone) * torch.sigmoid(gate))
            if i == LAYERS - 1:
                total = total + y
            else:
                x = (x + y[:, : self.channels]) * mask
                total = total + y[:, self.channels :]
        return total * mask


class Coupling(nn.Module):
    """Shifts one half of the channels by what a network makes of the other half."""

    def __init__(self, channels: int, hidden: int, speaker: int) -> None:
        super().__init__()
        self.width = channels // 2
        self.pre = nn.Conv1d(self.width, hidden, 1)
        self.enc = GatedStack(hidden, speaker)
        self.post = nn.Conv1d(hidden, self.width, 1)

    def forward(self, x: Tensor, mask: Tensor, speaker: Tensor) -> Tensor:
        """The inverse direction: (batch, channels, frames) → the same."""
        kept, shifted = x[:, : self.width], x[:, self.width :]
        shift = self.post(self.enc(self.pre(kept) * mask, mask, speaker)) * mask
        return torch.cat((kept, (shifted - shift) * mask), dim=1)


class Flip(nn.Module):
    """Reverses the channels, so that the next coupling moves the other half."""

    def forward(self, x: Tensor, mask: Tensor, speaker: Tensor) -> Tensor:
        """(batch, channels, frames) → the same."""
        return torch.flip(x, (1,))


class Flow(nn.Module):
    """Couplings and flips in the order of training; applied from last to first."""

    def __init__(self, channels: int, hidden: int, speaker: int) -> None:
        super().__init__()
        self.flows = nn.ModuleList(
            Coupling(channels, hidden, speaker) if i % 2 == 0 else Flip() for i in range(2 * COUPLINGS)
        )

    def forward(self, x: Tensor, mask: Tensor, speaker: Tensor) -> Tensor:
        """Prior sample (batch, channels, frames) → latent of the same shape."""
        for step in reversed(self.flows):
            x = step(x, mask, speaker)
        return x
