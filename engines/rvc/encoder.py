"""The synthesizer's text encoder: content features and pitch bins to the prior of the latent.

Source: VITS, Kim et al., ICML 2021; windowed relative positions after Shaw et al., NAACL 2018.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOW = 10  # relative positions beyond ±10 frames share no embedding: they add nothing


class ChannelNorm(nn.Module):
    """Layer norm over the channels of (batch, channels, frames)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each frame; same shape."""
        y = F.layer_norm(x.transpose(1, 2), (self.gamma.shape[0],), self.gamma, self.beta, 1e-5)
        return y.transpose(1, 2)


class RelativeAttention(nn.Module):
    """Self-attention whose scores and values know the distance between frames, up to `WINDOW`."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.size = channels // heads
        self.emb_rel_k = nn.Parameter(torch.zeros(1, 2 * WINDOW + 1, self.size))
        self.emb_rel_v = nn.Parameter(torch.zeros(1, 2 * WINDOW + 1, self.size))
        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.conv_o = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend within (batch, channels, frames); `mask` (batch, 1, frames, frames) is 0 where it must not."""
        batch, channels, frames = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, self.heads, self.size, frames).transpose(2, 3)

        q = split(self.conv_q(x)) / math.sqrt(self.size)
        k, v = split(self.conv_k(x)), split(self.conv_v(x))
        scores = q @ k.transpose(2, 3) + _spread(q @ self.emb_rel_k.transpose(1, 2))
        weights = torch.softmax(scores.masked_fill(mask == 0, -1e4), dim=-1)
        out = weights @ v + _gathered(weights) @ self.emb_rel_v
        joined: Tensor = self.conv_o(out.transpose(2, 3).reshape(batch, channels, frames))
        return joined


def _spread(by_distance: Tensor) -> Tensor:
    """(…, frames, 2·WINDOW+1) by distance → (…, frames, frames) by position, zero beyond the window.

    Frame i looks at frame j by distance d = j − i + WINDOW. Read by index, for the usual way, padding and reading
    rows anew at another length, multiplies tables that are mostly zeros and cannot be exported for any length.
    """
    batch, heads, frames, _ = by_distance.shape
    at = torch.arange(frames, device=by_distance.device)
    distance = at[None, :] - at[:, None] + WINDOW
    inside = (distance >= 0) & (distance <= 2 * WINDOW)
    index = distance.clamp(0, 2 * WINDOW)[None, None].expand(batch, heads, frames, frames)
    return by_distance.gather(3, index) * inside.to(by_distance.dtype)


def _gathered(by_position: Tensor) -> Tensor:
    """The inverse of `_spread`: (…, frames, frames) by position → (…, frames, 2·WINDOW+1) by distance."""
    batch, heads, frames, _ = by_position.shape
    at = torch.arange(frames, device=by_position.device)
    distances = torch.arange(2 * WINDOW + 1, device=by_position.device)
    # With WINDOW columns of zeros on either side, distance d of row i stands in column i + d.
    index = (at[:, None] + distances[None, :])[None, None].expand(batch, heads, frames, 2 * WINDOW + 1)
    return F.pad(by_position, (WINDOW, WINDOW)).gather(3, index)


class FeedForward(nn.Module):
    """Two convolutions with a ReLU between."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, hidden, kernel)
        self.conv_2 = nn.Conv1d(hidden, channels, kernel)
        self.pad = ((kernel - 1) // 2, kernel // 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, channels, frames) → the same; `mask` (batch, 1, frames)."""
        y = torch.relu(self.conv_1(F.pad(x * mask, self.pad)))
        out: Tensor = self.conv_2(F.pad(y * mask, self.pad)) * mask
        return out


class Transformer(nn.Module):
    """Post-norm attention layers."""

    def __init__(self, channels: int, hidden: int, heads: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.attn_layers = nn.ModuleList(RelativeAttention(channels, heads) for _ in range(layers))
        self.norm_layers_1 = nn.ModuleList(ChannelNorm(channels) for _ in range(layers))
        self.ffn_layers = nn.ModuleList(FeedForward(channels, hidden, kernel) for _ in range(layers))
        self.norm_layers_2 = nn.ModuleList(ChannelNorm(channels) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, channels, frames) → the same; `mask` (batch, 1, frames)."""
        pairs = mask.unsqueeze(2) * mask.unsqueeze(-1)
        x = x * mask
        for attention, norm_1, feed, norm_2 in zip(
            self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2, strict=True
        ):
            x = norm_1(x + attention(x, pairs))
            x = norm_2(x + feed(x, mask))
        return x * mask


class TextEncoder(nn.Module):
    """Content features and pitch bins to mean and log deviation of the prior."""

    def __init__(
        self, *, features: int, out: int, channels: int, hidden: int, heads: int, layers: int, kernel: int, pitch: bool
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(channels)
        self.emb_phone = nn.Linear(features, channels)
        self.emb_pitch = nn.Embedding(256, channels) if pitch else None
        self.encoder = Transformer(channels, hidden, heads, layers, kernel)
        self.proj = nn.Conv1d(channels, 2 * out, 1)

    def forward(self, phone: Tensor, pitch: Tensor | None, mask: Tensor, head: int = 0) -> tuple[Tensor, Tensor]:
        """Encode all frames, return the prior from frame `head` on.

        Args:
            phone: (batch, frames, features).
            pitch: (batch, frames) bins 1..255, None for a voice without f0.
            mask: (batch, 1, frames), 1 where there is sound.
            head: First frame wanted.

        Returns:
            Mean and log deviation, each (batch, out, frames − head).
        """
        x = self.emb_phone(phone)
        if self.emb_pitch is not None and pitch is not None:
            x = x + self.emb_pitch(pitch)
        x = F.leaky_relu(x * self.scale, 0.1).transpose(1, 2)
        x = self.encoder(x * mask, mask)[:, :, head:]
        mean, log_deviation = (self.proj(x) * mask[:, :, head:]).chunk(2, dim=1)
        return mean, log_deviation
