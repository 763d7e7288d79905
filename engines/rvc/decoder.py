"""The synthesizer's decoder: latent frames and a sine source to audio.

Source: HiFi-GAN, Kong et al., NeurIPS 2020; the source injected at every scale after NSF, Wang et al., 2019.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Frames each way that reach one output frame; more context changes nothing.
REACH_FRAMES = 11


class ResidualBlock(nn.Module):
    """Dilated convolutions (`convs1`), each followed by a plain one (`convs2`) and added to its input."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )
        self.convs2 = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, samples) → the same."""
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class ShortResidualBlock(nn.Module):
    """The lighter block of configuration "2": one dilated convolution per step."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, samples) → the same."""
        for dilated in self.convs:
            x = x + dilated(F.leaky_relu(x, 0.1))
        return x


class Decoder(nn.Module):
    """Upsamples the latent step by step; `source` None or a voice without f0 leaves the sine path out."""

    def __init__(
        self,
        *,
        channels: int,
        start: int,
        speaker: int,
        rates: Sequence[int],
        kernels: Sequence[int],
        block_kernels: Sequence[int],
        block_dilations: Sequence[Sequence[int]],
        short_blocks: bool,
        source: bool,
    ) -> None:
        super().__init__()
        self.hop = math.prod(rates)
        self.per_stage = len(block_kernels)
        self.conv_pre = nn.Conv1d(channels, start, 7, padding=3)
        self.cond = nn.Conv1d(speaker, start, 1)
        self.ups = nn.ModuleList()
        self.noise_convs = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        block = ShortResidualBlock if short_blocks else ResidualBlock
        for i, (rate, kernel) in enumerate(zip(rates, kernels, strict=True)):
            width = start >> (i + 1)
            self.ups.append(nn.ConvTranspose1d(2 * width, width, kernel, rate, padding=(kernel - rate) // 2))
            if source:
                stride = math.prod(rates[i + 1 :])
                self.noise_convs.append(
                    nn.Conv1d(1, width, 2 * stride, stride, padding=stride // 2)
                    if i + 1 < len(rates)
                    else nn.Conv1d(1, width, 1)
                )
            for size, dilations in zip(block_kernels, block_dilations, strict=True):
                self.resblocks.append(block(width, size, dilations))
        self.conv_post = nn.Conv1d(start >> len(rates), 1, 7, padding=3, bias=False)

    def forward(self, z: Tensor, speaker: Tensor, source: Tensor | None = None) -> Tensor:
        """Render.

        Args:
            z: Latent, (batch, channels, frames).
            speaker: (batch, speaker, 1).
            source: Sine source, (batch, 1, frames × hop).

        Returns:
            Audio within ±1, (batch, 1, frames × hop).
        """
        x = self.conv_pre(z) + self.cond(speaker)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if source is not None and len(self.noise_convs):
                x = x + self.noise_convs[i](source)
            blocks = self.resblocks[i * self.per_stage : (i + 1) * self.per_stage]
            total = blocks[0](x)
            for one in blocks[1:]:
                total = total + one(x)
            x = total / self.per_stage
        return torch.tanh(self.conv_post(F.leaky_relu(x, 0.01)))
