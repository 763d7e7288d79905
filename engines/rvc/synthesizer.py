"""A voice's synthesizer: its networks, built from a voice file."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..base import ModelUnusable
from .checkpoint import VoiceFile
from .decoder import Decoder
from .encoder import TextEncoder
from .flow import REACH_FRAMES, Flow
from .merge import MERGE_NAMES, read_merge
from .source import Merge
from .weights import folded

NOISE_SCALE = 0.66666  # how far the latent is drawn from the prior's mean


class Front(nn.Module):
    """Content features, pitch and speaker to the decoder's latent."""

    def __init__(self, enc_p: TextEncoder, flow: Flow, emb_g: nn.Embedding) -> None:
        super().__init__()
        self.enc_p, self.flow, self.emb_g = enc_p, flow, emb_g

    def forward(
        self, phone: Tensor, pitch: Tensor | None, mask: Tensor, noise: Tensor, sid: Tensor, head: int = 0
    ) -> Tensor:
        """Latent from frame `head` on, (batch, channels, frames − head).

        The encoder sees all frames; the flow runs from `head` − 24, its whole reach, so cutting there changes
        nothing. `noise` is standard normal, (batch, channels, frames − max(head − 24, 0)).
        """
        first = max(head - REACH_FRAMES, 0)
        speaker = self.emb_g(sid).unsqueeze(-1)
        mean, log_deviation = self.enc_p(phone, pitch, mask, first)
        sounding = mask[:, :, first:]
        z = (mean + torch.exp(log_deviation) * noise * NOISE_SCALE) * sounding
        z = self.flow(z, sounding, speaker) * sounding
        out: Tensor = z[:, :, head - first :]
        return out


class Back(nn.Module):
    """Latent, speaker and sine source to audio."""

    def __init__(self, dec: Decoder, emb_g: nn.Embedding) -> None:
        super().__init__()
        self.dec, self.emb_g = dec, emb_g

    def forward(self, z: Tensor, sid: Tensor, source: Tensor | None = None) -> Tensor:
        """(batch, channels, frames) → audio (batch, 1, frames × hop)."""
        out: Tensor = self.dec(z, self.emb_g(sid).unsqueeze(-1), source)
        return out


@dataclass(frozen=True, slots=True)
class Synthesizer:
    """The two halves and what joins them; the latent is stretched and the source made between them."""

    front: Front
    back: Back
    merge: Merge | None  # None: a voice without f0
    rate_hz: int
    hop: int
    features: int
    channels: int
    speakers: int


def build(voice: VoiceFile) -> Synthesizer:
    """Build and fill the networks of `voice`, in float32, ready to infer.

    Raises:
        ModelUnusable: the tensors do not fit the configuration that stands beside them.
    """
    c = voice.config
    emb_g = nn.Embedding(voice.speakers, c.speaker_width)
    enc_p = TextEncoder(
        features=voice.features,
        out=c.inter,
        channels=c.hidden,
        hidden=c.filter,
        heads=c.heads,
        layers=c.layers,
        kernel=c.kernel,
        pitch=voice.has_f0,
    )
    flow = Flow(c.inter, c.hidden, c.speaker_width)
    dec = Decoder(
        channels=c.inter,
        start=c.decoder_start,
        speaker=c.speaker_width,
        rates=c.rates,
        kernels=c.kernels,
        block_kernels=c.block_kernels,
        block_dilations=c.block_dilations,
        short_blocks=c.short_blocks,
        source=voice.has_f0,
    )
    whole = nn.Module()
    whole.enc_p, whole.flow, whole.dec, whole.emb_g = enc_p, flow, dec, emb_g
    state = folded(voice.weights, where=voice.path.name)
    merge = read_merge(voice)
    for name in MERGE_NAMES:
        state.pop(name, None)
    # Left over by some trainers; inference never reads it.
    state = {name: value for name, value in state.items() if not name.startswith("enc_q.")}
    try:
        whole.load_state_dict(state, strict=True)
    except RuntimeError as error:
        detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ModelUnusable(
            f"{voice.path.name} does not fit the configuration inside it: {detail}", path=str(voice.path)
        ) from error
    whole.eval().requires_grad_(False)
    return Synthesizer(
        front=Front(enc_p, flow, emb_g).eval(),
        back=Back(dec, emb_g).eval(),
        merge=merge,
        rate_hz=voice.rate_hz,
        hop=dec.hop,
        features=voice.features,
        channels=c.inter,
        speakers=voice.speakers,
    )
