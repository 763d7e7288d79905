"""How many frames of what a live block needs. Pure sums; a frame here is 10 ms unless a name says otherwise."""

import math
from dataclasses import dataclass

from ..base import ParameterRefused

RATE_16K = 16000
HOP_16K = 160
FORMANT_LIMIT = 2.0  # semitones
SEARCH_MS = 10.0
FLOW_REACH = 24
# Decoder frames before the wanted ones, so that these are not rendered from a cut edge: 4 give 46 dB against a full
# render, 11 are exact. A raised formant needs more decoder frames for the same time and leaves 1.
MARGIN, LEAST_MARGIN = 4, 1


def formant_step(hop: int, formant: float) -> int:
    """Decoder samples that make up 10 ms when the formant is moved, e.g. hop 400, +2 semitones → 449.

    Whole, so that everything stays on exact grids; at hop 320 the error is at most 3 cents.
    """
    return round(hop * math.pow(2.0, formant / 12.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of one block length."""

    block_frames: int  # at the session rate
    crossfade_frames: int  # at the session rate
    search_frames: int  # at the session rate
    hop_frames: int  # session frames in 10 ms
    block: int
    tail: int  # frames rendered anew each block: block, crossfade, search
    total: int  # frames of context, the block included
    latent: int  # frames of latent that reach the decoder
    rendered: int  # decoder frames
    latent_head: int  # first frame of the latent within the context
    flow_head: int  # first frame of noise within the context

    @property
    def wanted_frames(self) -> int:
        """Session frames that are crossfaded into a block."""
        return self.block_frames + self.crossfade_frames + self.search_frames


def plan(rate_hz: int, block_frames: int, *, crossfade_ms: float, context_ms: float) -> Geometry:
    """Sizes for a block of `block_frames` at `rate_hz`.

    At 48 kHz, block 12000 (250 ms), crossfade 50 ms, context 1000 ms: block 25, tail 25 + 5 + 1 = 31, total
    132, rendered 36, latent 43.

    Raises:
        ParameterRefused: the rate has no whole number of frames in 10 ms, or the block is not whole tens of ms.
    """
    if rate_hz % 100:
        raise ParameterRefused(
            f"RVC voices run at sample rates that are multiples of 100 Hz, not {rate_hz}",
            parameter="rate_hz",
            value=rate_hz,
            allowed="multiples of 100",
        )
    hop = rate_hz // 100
    if block_frames <= 0 or block_frames % hop:
        raise ParameterRefused(
            f"a block of {block_frames} frames at {rate_hz} Hz is not a multiple of 10 ms",
            parameter="block_frames",
            value=block_frames,
            allowed=f"multiples of {hop}",
        )
    block = block_frames // hop
    crossfade = max(1, min(round(crossfade_ms * rate_hz / 1000), block_frames))
    search = round(SEARCH_MS * rate_hz / 1000)
    tail = math.ceil((block_frames + crossfade + search) / hop)
    most = 2.0 ** (FORMANT_LIMIT / 12.0)
    rendered = max(tail + MARGIN, math.ceil((tail + LEAST_MARGIN) * most))
    latent = math.ceil(rendered * most) + 2
    total = max(tail + math.ceil(context_ms / 10), latent + FLOW_REACH)
    total += total % 2  # features have frames of 20 ms
    latent_head = total - latent
    return Geometry(
        block_frames=block_frames,
        crossfade_frames=crossfade,
        search_frames=search,
        hop_frames=hop,
        block=block,
        tail=tail,
        total=total,
        latent=latent,
        rendered=rendered,
        latent_head=latent_head,
        flow_head=latent_head - FLOW_REACH,
    )
