"""The original's live arithmetic, kept to prove ours equal to it; our own live voice does better.

Per step the original restarts the sine's phase, shows the decoder only the frames it returns, skips retrieval
for a whole block that meets one frame with fewer than eight neighbours, bridges every unvoiced gap, and
stretches the tensors when the formant moves. All of that is reproduced here.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ..f0.pitch import coarse, gaps_filled, transposed
from ..index import Retrieval
from .features import doubled
from .source import restarting
from .synthesizer import Synthesizer

Array = NDArray[np.float32]

_CACHE_FRAMES = 1024


class ReferenceLive:
    """Steps of the original's live loop, from features and pitch to audio, without noise."""

    def __init__(
        self, voice: Synthesizer, retrieval: Retrieval | None, *, index_rate: float, speaker_id: int = 0
    ) -> None:
        self._voice = voice
        self._retrieval = retrieval
        self._rate = index_rate
        self._sid = torch.tensor([speaker_id])
        self.pitch = np.zeros(_CACHE_FRAMES, np.int64)
        self.f0_hz = np.zeros(_CACHE_FRAMES, np.float32)

    @torch.inference_mode()
    def step(
        self,
        features: Array,
        f0_hz: Array | None,
        *,
        total: int,
        block: int,
        skip: int,
        returned: int,
        pitch: float,
        formant: float,
    ) -> Array:
        """One block.

        Args:
            features: Of the whole context, 20 ms a frame, (total // 2 − 1, width).
            f0_hz: Pitch of the newest stretch, 10 ms a frame; None for a voice without f0.
            total: Frames of 10 ms in the context.
            block: Frames that are new.
            skip: Frames before the returned ones.
            returned: Frames to return.
            pitch: Semitones.
            formant: Semitones.

        Returns:
            Audio at the voice's rate, (returned × hop,).
        """
        voice = self._voice
        features = np.concatenate((features, features[-1:]))
        if self._retrieval is not None and self._rate > 0:
            tail = self._retrieval.blended(features[skip // 2 :], self._rate, all_or_nothing=True)
            features = np.concatenate((features[: skip // 2], tail))
        factor = 2.0 ** (formant / 12.0)
        rendered = math.ceil(returned * factor)
        bins: torch.Tensor | None = None
        if f0_hz is not None:
            moved = transposed(gaps_filled(f0_hz), pitch - formant)
            for cache in (self.pitch, self.f0_hz):
                cache[:-block] = cache[block:].copy()
            self.pitch[4 - moved.shape[0] :] = coarse(moved)[3:-1]
            self.f0_hz[4 - moved.shape[0] :] = moved[3:-1]
            bins = torch.from_numpy(self.pitch[-total:].copy())[None]
        phone = torch.from_numpy(doubled(features, total))[None]
        first = max(skip - 24, 0)
        noise = torch.zeros(1, voice.channels, total - first)
        z = voice.front(phone, bins, torch.ones(1, 1, total), noise, self._sid, skip)[:, :, :returned]
        source: torch.Tensor | None = None
        if voice.merge is not None:
            f0 = self.f0_hz[-total:][skip : skip + returned] * np.float32(rendered / returned)
            source = torch.from_numpy(restarting(f0, voice.hop, voice.rate_hz, None, voice.merge))[None, None]
        if rendered != returned:
            z = F.interpolate(z, size=rendered, mode="linear")
            if source is not None:
                source = F.interpolate(source, size=rendered * voice.hop, mode="linear")
        audio = voice.back(z, self._sid, source)[0, 0]
        step = math.floor(factor * voice.hop)
        if step != voice.hop:
            audio = sinc_resampled(audio[: returned * step], step, voice.hop)
        return np.asarray(audio.numpy(), np.float32)


def sinc_resampled(audio: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """Resample by new/old with a Hann-windowed sinc of six zero crossings, rolled off at 0.99 of Nyquist.

    Args:
        audio: (frames,).
        old: Rate of the input, or any multiple of the ratio.
        new: Rate of the output on the same scale.

    Returns:
        (ceil(frames × new / old),).

    Source: Smith, Digital Audio Resampling; the parameters are torchaudio's defaults.
    """
    divisor = math.gcd(old, new)
    old, new = old // divisor, new // divisor
    cutoff = min(old, new) * 0.99
    width = math.ceil(6 * old / cutoff)
    at = torch.arange(-width, width + old, dtype=torch.float64)[None, :] / old
    t = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + at) * cutoff
    t = t.clamp(-6, 6)
    window = torch.cos(t * math.pi / 12) ** 2
    t = t * math.pi
    kernel = torch.where(t == 0, torch.ones_like(t), torch.sin(t) / t) * window * (cutoff / old)
    padded = F.pad(audio[None, None], (width, width + old))
    out = F.conv1d(padded, kernel[:, None, :].float(), stride=old)
    return out.transpose(1, 2).reshape(-1)[: math.ceil(new * audio.shape[0] / old)]
