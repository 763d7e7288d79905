"""The synthesizer's decoder: latent frames and a sine source to audio.

Source: HiFi-GAN, Kong et al., NeurIPS 2020; the source injected at every scale after NSF, Wang et al., 2019.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .exporting import exporting

# Frames each way that reach one output frame; more context changes nothing.
REACH_FRAMES = 11


class Upsampling(nn.ConvTranspose1d):
    """A transposed convolution; in an export it is written as a plain one, whose outputs are interleaved.

    Each of the `rate` phases of the output is a plain convolution of its own over the neighbours of an input frame.
    The same products are summed, but runtimes have fast plain convolutions and slow transposed ones.
    """

    def __init__(self, inner: int, out: int, kernel: int, rate: int) -> None:
        self.cut = (kernel - rate) // 2
        super().__init__(inner, out, kernel, rate, padding=self.cut)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """(batch, inner, frames) → (batch, out, frames × rate)."""
        if exporting() and self.kernel_size[0] - self.stride[0] == 2 * self.cut:
            return self.interleaved(x)
        return super().forward(x, output_size)

    def interleaved(self, x: Tensor) -> Tensor:
        """What `forward` gives, by a plain convolution; where kernel − rate is even."""
        kernel, rate = self.kernel_size[0], self.stride[0]
        inner, out = self.weight.shape[:2]
        # Output sample q·rate + r − cut meets input frame q − d in tap d·rate + r. Counted from `cut` before the first
        # one, kernel 16 at rate 10 has two taps in each phase; counted from the first itself it would have three.
        reach = math.ceil(kernel / rate)
        taps = F.pad(self.weight, (0, reach * rate - kernel)).reshape(inner, out, reach, rate).flip(2)
        weight = taps.permute(3, 1, 0, 2).reshape(rate * out, inner, reach)
        bias = None if self.bias is None else self.bias.repeat(rate)
        phases = F.conv1d(x, weight, bias, padding=reach - 1)
        batch, _, frames = phases.shape
        joined = phases.view(batch, rate, out, frames).permute(0, 2, 3, 1).reshape(batch, out, frames * rate)
        return joined[:, :, self.cut : self.cut + x.shape[2] * rate]


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
            self.ups.append(Upsampling(2 * width, width, kernel, rate))
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
