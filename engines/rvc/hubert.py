"""The content encoder (HuBERT base, or ContentVec, which has its shape): 16 kHz audio to 50 features a second.

Source: Hsu et al., 2021 (HuBERT); Qian et al., ICML 2022 (ContentVec).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..base import ModelUnusable
from .embedder import Sizes, needs, read, sizes_of
from .exporting import exporting
from .weights import folded

STRIDES = (5, 2, 2, 2, 2, 2, 2)
HOP_SAMPLES = 320  # 20 ms at 16 kHz


def frames_of(samples: int) -> int:
    """Feature frames made from `samples` at 16 kHz, e.g. 16000 → 49."""
    for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), STRIDES, strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


class Convolutions(nn.Module):
    """Waveform to 50 frames a second. The first layer's norm spans the whole input."""

    def __init__(self, channels: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        layers = []
        for i, (kernel, stride) in enumerate(zip(kernels, STRIDES, strict=True)):
            conv = nn.Conv1d(1 if i == 0 else channels, channels, kernel, stride, bias=False)
            norm = [nn.Identity(), nn.GroupNorm(channels, channels)] if i == 0 else []
            layers.append(nn.Sequential(conv, *norm))
        self.conv_layers = nn.ModuleList(layers)

    def forward(self, wav: Tensor) -> Tensor:
        """(batch, samples) → (batch, channels, frames)."""
        if exporting():
            return self.as_images(wav)
        x = wav.unsqueeze(1)
        for layer in self.conv_layers:
            x = F.gelu(layer(x))
        return x

    def as_images(self, wav: Tensor) -> Tensor:
        """What `forward` gives, over images one sample high.

        OpenVINO norms images as its convolutions lay them out; sequences it turns over before and after.
        """
        x = wav[:, None, None]
        layer: Any
        for layer in self.conv_layers:
            x = F.conv2d(x, layer[0].weight.unsqueeze(2), stride=(1, layer[0].stride[0]))
            if len(layer) > 1:
                norm = layer[2]  # as many groups as channels: each is normed by itself
                x = F.instance_norm(x, weight=norm.weight, bias=norm.bias, eps=norm.eps)
            x = F.gelu(x)
        return x.squeeze(2)


class SelfAttention(nn.Module):
    """Plain multi-head attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, width) → the same."""
        batch, frames, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, frames, self.heads, width // self.heads).transpose(1, 2)

        y = F.scaled_dot_product_attention(split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x)))
        out: Tensor = self.out_proj(y.transpose(1, 2).reshape(batch, frames, width))
        return out


class Layer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, width) → the same."""
        x = self.self_attn_layer_norm(x + self.self_attn(x))
        out: Tensor = self.final_layer_norm(x + self.fc2(F.gelu(self.fc1(x))))
        return out


class Positions(nn.Module):
    """The convolution that tells frames where they are."""

    def __init__(self, width: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.surplus = 1 if kernel % 2 == 0 else 0
        self.pos_conv = nn.Sequential(nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=groups))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, width) → what is to be added to it."""
        y = self.pos_conv(x.transpose(1, 2))
        return F.gelu(y[:, :, : y.shape[2] - self.surplus]).transpose(1, 2)


class Encoder(Positions):
    """Positions and transformer layers."""

    def __init__(self, width: int, hidden: int, heads: int, layers: int, kernel: int, groups: int) -> None:
        super().__init__(width, kernel, groups)
        self.layer_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, hidden, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, frames, width) → the same."""
        x = self.layer_norm(x + super().forward(x))
        for layer in self.layers:
            x = layer(x)
        return x


class ContentEncoder(nn.Module):
    """16 kHz audio to the features of one RVC version."""

    def __init__(self, sizes: Sizes, *, layers: int, project: bool) -> None:
        super().__init__()
        self.feature_extractor = Convolutions(sizes.channels, sizes.kernels)
        self.layer_norm = nn.LayerNorm(sizes.channels)
        self.post_extract_proj = nn.Linear(sizes.channels, sizes.width)
        self.encoder = Encoder(
            sizes.width, sizes.hidden, sizes.heads, layers, sizes.position_kernel, sizes.position_groups
        )
        self.final_proj = nn.Linear(sizes.width, sizes.projected) if project else None

    def forward(self, wav: Tensor) -> Tensor:
        """(batch, samples) at 16 kHz → (batch, frames, features)."""
        x = self.layer_norm(self.feature_extractor(wav).transpose(1, 2))
        x = self.encoder(self.post_extract_proj(x))
        out: Tensor = x if self.final_proj is None else self.final_proj(x)
        return out


def load(path: Path, version: str, *, heads: int | None = None) -> ContentEncoder:
    """Load the encoder for voices of `version` (v1: layer 9 and projection; v2: layer 12).

    Layers beyond the one that is read are left in the file.

    Args:
        path: A fairseq checkpoint, a transformers folder, or a transformers weight file.
        version: "v1" or "v2".
        heads: Attention heads, where the file does not say and they are not 64 wide.

    Raises:
        ModelUnusable: another kind of file, or an encoder without the layers this version needs.
    """
    tensors, configuration = read(path)
    sizes = sizes_of(tensors, configuration, path)
    if heads is not None:
        sizes = replace(sizes, heads=heads)
    layers, project = needs(sizes, version, path)
    encoder = ContentEncoder(sizes, layers=layers, project=project)
    wanted = set(encoder.state_dict())
    kept = {n: t for n, t in tensors.items() if n in wanted or n.removesuffix("_g").removesuffix("_v") in wanted}
    try:
        encoder.load_state_dict(folded(kept, where=path.name), strict=True)
    except RuntimeError as error:
        detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ModelUnusable(f"{path.name} is damaged: {detail}") from error
    return encoder.eval().requires_grad_(False)
