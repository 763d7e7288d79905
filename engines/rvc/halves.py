"""The two halves of the synthesizer with the inputs by which backends call them."""

import torch
from torch import Tensor, nn

from .synthesizer import NOISE_SCALE, Back, Front


class LatentOf(nn.Module):
    """`Front` for a whole context that sounds throughout; the noise's length tells where the flow starts."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self.front = front

    def forward(self, phone: Tensor, noise: Tensor, sid: Tensor, pitch: Tensor | None = None) -> Tensor:
        """(1, frames, width), (1, channels, n), (1,), (1, frames) → latent of the last n frames."""
        mask = torch.ones_like(phone[:, :, :1]).transpose(1, 2)
        front = self.front
        speaker = front.emb_g(sid).unsqueeze(-1)
        head = phone.shape[1] - noise.shape[2]
        mean, log_deviation = front.enc_p(phone, pitch, mask, head)
        z = mean + torch.exp(log_deviation) * noise * NOISE_SCALE
        out: Tensor = front.flow(z, torch.ones_like(z[:, :1]), speaker)
        return out


class AudioOf(nn.Module):
    """`Back` with its inputs in the order of the export."""

    def __init__(self, back: Back) -> None:
        super().__init__()
        self.back = back

    def forward(self, z: Tensor, sid: Tensor, source: Tensor | None = None) -> Tensor:
        """(1, channels, frames), (1,), (1, 1, samples) → (1, 1, samples)."""
        out: Tensor = self.back(z, sid, source)
        return out
